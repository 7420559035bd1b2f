"""Placement: which worker of a fleet serves a trajectory's generations, in which order, and when its cache moves (Heddle).

A *fleet* is the language-model workers behind one model name. A trajectory alternates generations, on a worker, with tools, elsewhere.
The longest trajectory ends a batch; so workers and order are chosen for trajectories, not for requests (heddle, §3).

Rules
1. Pure. Events in, answers out; time and randomness are data; no I/O, no clock, no logging. The scheduler core, the simulator and the
   benchmarks use the same objects, so a simulated decision is the one that production takes.
2. Deterministic. Equal events give equal answers; ties go to the smaller number, then the earlier arrival. A prediction is an event like others.
3. A generation is routed once: worker and rank are decided when it is submitted, and again only if its worker is gone before it began.
   What runs is never moved; a trajectory moves between its answer and its next request (§5.3).
4. Predictions may be late, missing, NaN or wrong: the last usable one stays, history stands in for a missing one, and `hedged` never depends on one
   being right.
5. Seconds are the unit of order, tokens that of length; a *rank* is greater for what is served first.

Lifetimes. A trajectory is known from its first generation until it finishes or has been silent for the fleet's bound; a batch until its last member
finishes; a profile as long as its fleet's configuration; what predictors learnt outlives weights.
"""
