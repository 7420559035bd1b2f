"""Launchers: node workers on machines that an engine manages (Ray, Slurm, Kubernetes, SSH, or this machine).

Theory of operation. The engine places, restarts and health-checks processes. A launcher asks it for instances of a group and
lists those that it has; it decides nothing. `plan` is pure: from what is wanted, what the engine lists and what the nodes do,
it says which instances to launch, drain, replace and end. The keeper (`scheduler.runtime.node_groups`) does so, every few seconds.

Rules for launchers; every one passes `tests/conformance/launchers`.
1. Stateless. What finds the instances again is in the engine, under the names of the installation and of the group. A keeper that
   restarts, or another one, continues.
2. `launch` is idempotent by the name of the instance: a second call for a name that the engine has starts nothing.
3. `end` is idempotent, and returns at once. The instance is listed as ending until all its processes are gone.
4. Calls may block, for at most `CALL_SECONDS`; the keeper makes them in a thread. They raise LaunchError, which names the cure.
5. An instance that is not listed is gone: the engine guarantees that its processes have ended, and start no more. So the actions
   of its node may end before the grace period is over.
6. `ends_at` is the engine's notice: a time limit, a preemption, a drained machine. The node is drained before.
7. The engine restarts an instance that died; `restarts` counts how often, where the engine does.
8. The engine keeps the fingerprint of an order and lists it with the instance, as long as there is one of that name.
9. Where some machines of an engine do not answer, `MachinesSilent` names them, and has the instances of the others.
"""
