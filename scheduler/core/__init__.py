"""The pure machine: events in, decisions out.

Theory of operation. `Machine.handle(*events)` is the only way to change the state. It applies each
event in order (`handlers`), then runs at most one scheduling cycle (`cycle`) over the batch. Time
comes with the events and never runs backward; there is no clock, no randomness, no I/O and no log
call here, so the same events always give the same decisions: production, the simulator, recovery
and property tests run the same code.

Packages: `state` is everything the scheduler knows, in groups; `handlers` change it, one module for
each kind of event; `cycle` scans the queues, finds places, arranges and resizes; `policies` decide how
many units a group gets; `residency` decides what stays on units between actions; `sharing` divides a
pool among projects; `advice` answers questions about a state and changes nothing.

Rules
1. Every accepted action is in `State.actions` until its one `Finish` (I1).
2. An action holds allocations exactly while it is granted or running; units that a silent node may
   still use are held by `LiveNode.orphans` (I4).
3. A queued action is in exactly one wait queue, or behind another action of its trajectory.
4. Every wait queue that is not empty after a cycle has a reason (I14).
5. A handler that cannot apply an event changes nothing, or answers with `Refuse`.

Lifetimes. An action lives from `ActionSubmitted` to `Finish`. A trajectory lives from its first
mention until its environment is confirmed removed; its name is then remembered for a while, so
that late actions are refused instead of silently getting a fresh workspace. A node lives until an
operator removes it: after a long silence its trajectories end, and it may still return.
"""
