"""Scheduling policies: which admitted actions are granted now, and with how many units.

Theory of operation. The scan (`scheduler.core.cycle.scan`) admits waiting actions at their smallest
counts, in order. Candidates with the same key resource form a `Group`, which holds everything that a
decision may depend on: their choices (count → duration), the actions behind them, the units left,
and the predicted ends of running actions. A policy answers with an `Arrangement`: the first
candidates are granted, with these units; the others are *evicted*, keep their place in the queue,
and claim.

Rules
1. A policy is a pure function of the group: no state, no clock, no I/O. Equal groups give equal
   answers, so a journal replays to equal decisions and a problem is planned without a server.
2. Grants of one arrangement fit together in the group's free units, each is one of the action's
   feasible counts, and none is below the count that the scan admitted. (Malleable actions may go on
   with fewer units: they are resized anyway.)
3. Granted candidates are a prefix, and the first candidate is always granted. So no action is
   overtaken within a group, and none starves by eviction.
4. Units that inelastic actions, other groups and claims need are not in the group to begin with.
5. Each fast path has a plain twin that tests compare it with (tests/oracles).

To add a policy, add one module to this package: a frozen dataclass that extends `protocol.Policy`,
decorated with `registry.register`. Paper sections in the docstrings are those of ARL-Tangram.
"""
