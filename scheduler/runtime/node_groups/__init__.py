"""The keeper of node groups: it has the engines of a cluster run as many node workers as are declared.

Theory of operation. One process of an installation has a lease in Redis (`fleets.keeper_lease`, under a key of its own). Every few
seconds it makes a pass over each group (`group_pass`): the engine lists the instances (`managers.launch`), the loop says what
hangs on the nodes and what waits in their pools, `elastic` says how many nodes a group with bounds should have, `plan` says what to
do, and the keeper does it: it launches, drains and ends.

Rules
1. The engine's list and the loop's answer are the truth; the keeper remembers nothing that it could not read again. What it must know
   beyond them, which nodes it asked for, is in the report of the group before the engine is asked.
2. A drain of the keeper lets trajectories finish, and has its reason (`group_pass.because`). Drains with another reason are an operator's:
   they are not ended.
3. A node ends when the loop, in one answer, says that it is drained and that nothing hangs on it: nothing can be granted there after.
4. A node whose instance the engine does not list has no process any more. If it is not launched again, what hangs on it
   ends at once (`NodeFenced`), without a wait for the grace period, and it is forgotten.
5. A call that fails changes nothing but the report of its group; calls that launch are then made less often, up to every five minutes,
   also where instances fail before their nodes join.
6. What may run on a machine that does not answer is neither launched, nor ended, nor gone; the group goes on with the other machines.
7. Instances whose fingerprint is not that of the group are replaced as `plan` says, so that no trajectory is interrupted.

Lifetimes. A keeper stands by until it has the lease, and again after it lost it. Between two steps of a pass it may die, or stand
still while another one takes over: every step is idempotent, by the names of instances. A call of an engine that it began goes on
in its thread meanwhile; at worst it repeats what the next keeper does. Instances go on without a keeper, and without the installation.

A group that is deleted is kept with no node wanted until its last instance has ended; one whose engine changes likewise,
then the new engine is asked. Where the engine itself is gone, the group is given up after ten minutes without a node that lives.
"""
