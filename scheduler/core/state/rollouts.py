"""Live rollouts, the workers that run them, and the order in which they are assigned.

A rollout waits, is assigned to one worker, or is parked; then it ends and is removed. Its *attempt* counts its
assignments and fences its records: the runtime refuses those of an earlier attempt. Its *losses* count the
assignments that ended with their worker.

Rules
1. A worker has at most as many rollouts as slots, unless its slots were reduced below what it has.
2. A rollout that waits again (its worker was lost, it was resumed) waits at the place of its arrival.
3. The trajectories of a rollout have its id as their name, alone or followed by ``-`` or ``.`` and more. They end
   with the rollout, whatever its worker does.
4. A worker gets rollouts whose handlers it has; one that names none, as workers of earlier versions do, gets all.
   A rollout that waits for its handler holds up no other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import msgspec

from domain.rollouts import Rollout, RolloutId, RolloutProgress, RolloutState
from scheduler.core.state.live import Order

#: A rollout ends when so many of its workers were lost.
MAX_LOSSES: Final = 10
#: How long cancels without a rollout, and the ends of rollouts, are remembered.
REMEMBERED_SECONDS: Final = 300.0
#: ``rol_`` and 28 hexadecimal digits.
_PREFIX: Final = "rol_"
_ID_LENGTH: Final = 32


class LiveRollout(msgspec.Struct, eq=False):
    """An accepted rollout that is not finished yet."""

    rollout: Rollout
    order: Order
    submitted_at: float
    state: RolloutState = RolloutState.WAITING
    #: Worker that it is assigned to; empty: none.
    worker: str = ""
    attempt: int = 0
    losses: int = 0
    #: Worker of its latest assignment.
    last_worker: str = ""
    #: Time of its first assignment.
    began_at: float | None = None
    #: Last report of its worker.
    progress: RolloutProgress = RolloutProgress()
    #: Keys of the trajectories that were opened for it.
    trajectories: list[str] = []

    @property
    def id(self) -> RolloutId:
        return self.rollout.id


class LiveRolloutWorker(msgspec.Struct, eq=False):
    """A rollout worker that sends heartbeats."""

    name: str
    incarnation: int
    slots: int
    joined_at: float
    hostname: str = ""
    version: str = ""
    #: Names of the handlers that it has; empty: all.
    handlers: tuple[str, ...] = ()

    def has(self, handler: str) -> bool:
        """Return whether it runs rollouts of ``handler``."""
        return not self.handlers or handler in self.handlers


@dataclass(slots=True)
class Rollouts:
    """All live rollouts and workers."""

    live: dict[RolloutId, LiveRollout] = field(default_factory=dict)
    workers: dict[str, LiveRolloutWorker] = field(default_factory=dict)
    #: A rollout may be assigned since the last pass: one waits, or a slot became free.
    changed: bool = False
    #: Ids of the rollouts of each worker; derived.
    _assigned: dict[str, set[RolloutId]] = field(default_factory=dict)
    #: Handler → heap of waiting rollouts. An entry whose rollout does not wait at this place is stale; derived.
    _waiting: dict[str, list[tuple[Order, RolloutId]]] = field(default_factory=dict)
    #: Live rollouts of each project, by the pool of backends that they name (empty: none); derived.
    _pools: dict[str, Counter[str]] = field(default_factory=dict)

    def find(self, rollout_id: RolloutId, project: str) -> LiveRollout | None:
        """Return a live rollout of ``project``."""
        live = self.live.get(rollout_id)
        return live if live is not None and live.rollout.project == project else None

    def of_worker(self, worker: str) -> list[LiveRollout]:
        """Return the rollouts of a worker, in order."""
        found = [self.live[each] for each in self._assigned.get(worker, ())]
        return sorted(found, key=lambda live: live.order)

    def free_slots(self, worker: LiveRolloutWorker) -> int:
        """Return how many rollouts ``worker`` may still take; negative after its slots were reduced."""
        return worker.slots - len(self._assigned.get(worker.name, ()))

    def wait(self, live: LiveRollout) -> None:
        """Let a rollout wait for a worker."""
        live.state = RolloutState.WAITING
        self._add(live)
        heappush(self._waiting.setdefault(live.rollout.handler, []), (live.order, live.id))
        self.changed = True

    def reorder(self, live: LiveRollout, order: Order) -> None:
        """Give a rollout another place."""
        live.order = order
        if live.state is RolloutState.WAITING:
            self.wait(live)

    def next_assignment(self) -> tuple[LiveRollout, LiveRolloutWorker] | None:
        """Return the waiting rollout that is assigned next, and its worker; None: none can be assigned."""
        found: list[tuple[LiveRollout, LiveRolloutWorker]] = []
        for handler in self._served():
            live = self.first_waiting(handler)
            worker = None if live is None else self.freest_worker(handler)
            if live is not None and worker is not None:
                found.append((live, worker))
        return min(found, key=lambda each: each[0].order, default=None)

    def first_waiting(self, handler: str) -> LiveRollout | None:
        """Return the first waiting rollout of ``handler``."""
        waiting = self._waiting.get(handler, [])
        while waiting:
            order, name = waiting[0]
            live = self.live.get(name)
            if live is not None and live.state is RolloutState.WAITING and live.order == order:
                return live
            heappop(waiting)
        self._waiting.pop(handler, None)
        return None

    def _served(self) -> list[str]:
        """Return the handlers of waiting rollouts that some worker has."""
        named: set[str] = set()
        for worker in self.workers.values():
            if not worker.handlers:
                return list(self._waiting)
            named.update(worker.handlers)
        return [handler for handler in named if handler in self._waiting]

    def freest_worker(self, handler: str) -> LiveRolloutWorker | None:
        """Return the worker with ``handler`` that has most free slots; None: all are full, or none has it."""
        workers = [worker for worker in self.workers.values() if worker.has(handler)]
        best = min(workers, key=lambda each: (-self.free_slots(each), each.name), default=None)
        return best if best is not None and self.free_slots(best) > 0 else None

    def assign(self, live: LiveRollout, worker: LiveRolloutWorker, now: float) -> None:
        """Assign a waiting rollout to ``worker``."""
        live.state, live.worker, live.last_worker = RolloutState.ASSIGNED, worker.name, worker.name
        live.attempt += 1
        if live.began_at is None:
            live.began_at = now
        self._assigned.setdefault(worker.name, set()).add(live.id)

    def take_off(self, live: LiveRollout) -> None:
        """Take a rollout off its worker; the caller says what follows."""
        if live.worker:
            mine = self._assigned[live.worker]
            mine.discard(live.id)
            if not mine:
                del self._assigned[live.worker]
            live.worker = ""
            live.progress = msgspec.structs.replace(live.progress, stage=None, queued=False)
            self.changed = True

    def drop(self, live: LiveRollout) -> None:
        """Remove a rollout that ends."""
        self.take_off(live)
        live.state = RolloutState.FINISHED
        if self.live.pop(live.id, None) is None:
            return
        mine = self._pools[live.rollout.project]
        mine[live.rollout.pool] -= 1
        if not mine[live.rollout.pool]:
            del mine[live.rollout.pool]
        if not mine:
            del self._pools[live.rollout.project]

    def _add(self, live: LiveRollout) -> None:
        rollout = live.rollout
        if live.id not in self.live:
            self._pools.setdefault(rollout.project, Counter())[rollout.pool] += 1
        self.live[live.id] = live

    def count_of(self, project: str) -> int:
        """Return how many live rollouts a project has."""
        found = self._pools.get(project)
        return 0 if found is None else found.total()

    def pools_of(self, project: str) -> int:
        """Return how many pools of backends the live rollouts of a project name."""
        return sum(1 for pool in self._pools.get(project, ()) if pool)

    def name_pool(self, pool: str) -> bool:
        """Return whether a live rollout names ``pool``."""
        return any(pool in names for names in self._pools.values())

    def restore(self, live: list[LiveRollout], workers: list[LiveRolloutWorker]) -> None:
        """Continue from a snapshot."""
        self.workers = {worker.name: worker for worker in workers}
        for each in live:
            self._add(each)
            if each.state is RolloutState.WAITING:
                self.wait(each)
            elif each.worker:
                self._assigned.setdefault(each.worker, set()).add(each.id)
        self.changed = False

    def note_trajectory(self, project: str, name: str, key: str) -> None:
        """Record a trajectory that is opened, if its name says that it belongs to a rollout."""
        live = None if (owner := owner_of(name)) is None else self.find(owner, project)
        if live is not None and key not in live.trajectories:
            live.trajectories.append(key)


def owner_of(trajectory: str) -> RolloutId | None:
    """Return the rollout to which a trajectory of this name belongs; None: to none."""
    if not trajectory.startswith(_PREFIX) or len(trajectory) < _ID_LENGTH:
        return None
    if len(trajectory) > _ID_LENGTH and trajectory[_ID_LENGTH] not in "-.":
        return None
    return RolloutId(trajectory[:_ID_LENGTH])


def cancel_mark(project: str, rollout_id: str) -> str:
    """Return the tombstone name of a cancel that arrives before its rollout."""
    return f"{project}#{rollout_id}"


def over_mark(project: str, rollout_id: str) -> str:
    """Return the tombstone name of a rollout that is over."""
    return f"{project}#{rollout_id}#over"
