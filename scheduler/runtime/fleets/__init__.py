"""The keeper of fleets: what finds out how language-model workers are, off the path of requests.

Theory of operation. One process of an installation, the *keeper*, has a lease in Redis (`keeper_lease`). It reads which fleets and
workers there are (`fleets_in_force`), asks each worker for its health, its weights and its controls (`prober`), and appends
`FleetWorkersChanged` with what changed. Workers of our own it starts and ends by actions that run their engines (`own_workers`), and it
divides their GPUs otherwise between two batches (`divisions`). It reads the journal (`journal_follower`), makes steps of trajectories of it
(`trajectory_steps`), has a predictor for each fleet in a process of its own (`fleet_predictor`, `predictor_child`), and appends
`TrajectoryPredicted` while a trajectory is in its tools (`trajectory_predictions`). It makes the transfers of `MoveCache` and appends
`CacheMoved` (`cache_move_runner`). What it found is in Redis for pages (`keeper_reports`).

Rules
1. Whatever the keeper writes is refused once another process has its lease: a keeper that was stopped and continues changes
   nothing. Requests need no keeper: without one, workers keep their registered health.
2. A verdict is reported while it differs from the registered one, so a report that was lost is repeated.
3. The keeper routes nothing: the scheduler's loop does, by the facts that it gets.

Lifetimes. A keeper stands by until it has the lease, and again after it lost it. Checks in a row are its own: the next keeper begins
to count, from the registered verdicts. What was learnt of trajectories is in Redis every 30 s: the next keeper goes on from that entry of the journal.

Not built
- Texts: predictors get numbers. Prompts and answers stay between gateway and worker, and no path leads from there to a predictor.
- Moves through LMCache: its controller finds a cache by its token ids, which the keeper does not have.
- Folds: no engine sleeps so that a wide one wakes on its GPUs. `placement.folding` says when that ends sooner; no process asks it yet.
"""
