"""The virtual-time twin: the production core and ledgers, with everything around them modelled.

Nothing of the scheduler is written twice. Real are the machine (`scheduler.core`), its policies and
the ledgers (`managers`). Modelled are time (`agenda`), the loop's passes and the hops between
processes (`overheads`), what nodes do with a grant (`nodes`), and trainers (`trainers`), which play
`workloads`. Whatever comes out of this package is simulated and must be called so.

Rules
1. A run is a function of its workload, cluster, policy and seed: equal runs give equal bytes.
   Nothing here reads a clock, except to say how fast a simulation ran.
2. Random draws belong to a trajectory or a group by name, never to the order of events, so every
   policy meets the same arrivals.
3. Action completion times are the core's own accounting (`Finish.timing`).
"""
