"""Counts of a running simulation: one row for each finished action, held cores over time."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection
from hashlib import sha256

from domain.action import COMPLETED
from domain.allocation import Allocation, Hosting
from domain.decisions import Finish
from domain.ids import ActionId, ResourceId, task_key
from domain.resources import MILLI

_Chunk = tuple[ResourceId, tuple[int, ...]]


class Rows:
    """Timings of finished actions in the order in which they ended."""

    __slots__ = ("ended", "execution", "family", "overhead", "queue", "trajectory")

    def __init__(self) -> None:
        self.queue = array("d")
        self.overhead = array("d")
        self.execution = array("d")
        #: When it ended; of a finished run, not of its fingerprint.
        self.ended = array("d")
        #: Indexes into `Tally.families` and `Tally.trajectories`.
        self.family = array("H")
        self.trajectory = array("I")

    def __len__(self) -> int:
        return len(self.queue)


class SimulationTally:
    """Counts what happens to actions, but to those that only lead up to what is asked for."""

    def __init__(self, uncounted: Collection[ActionId] = ()) -> None:
        self.rows = Rows()
        #: When counting began.
        self.began_at = 0.0
        self._uncounted = uncounted
        self.families: dict[str, int] = {}
        self.trajectories: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()
        #: By task: seconds of ACT, and seconds of work, of its finished actions.
        self.tasks: dict[str, tuple[float, float]] = {}
        self.requeued = 0
        self.resized = 0
        #: Calls for which a GPU service had to be brought to its chunk.
        self.restores = 0
        #: Services that were brought to a chunk before anybody was granted it, and those that a call met.
        self.restores_ahead = 0
        self.restores_met = 0
        #: Milli-unit·seconds that were granted, by resource (``cpu:n001``, ``api:search``).
        self.held: defaultdict[str, float] = defaultdict(float)
        #: T_ori of what was completed on cores; of an action at most the core·seconds that it held.
        self.useful_core_seconds = 0.0
        #: Core·seconds that live actions have held, while counted.
        self._cores_held: dict[ActionId, float] = {}
        #: Chunk → how many hold it, and since when anybody does.
        self._seated: dict[_Chunk, tuple[int, float]] = {}
        self._holding: dict[ActionId, tuple[float, tuple[Allocation, ...]]] = {}

    def begin(self, now: float) -> None:
        """Count from now on; what is held already is held from now on."""
        self.began_at = now
        self.requeued = self.resized = 0
        self.restores = self.restores_ahead = self.restores_met = 0
        self.held.clear()
        self._cores_held.clear()
        self._holding = {name: (now, held) for name, (_, held) in self._holding.items()}
        self._seated = {chunk: (count, now) for chunk, (count, _) in self._seated.items()}

    @property
    def held_core_seconds(self) -> float:
        """Core·seconds that were granted, on all nodes."""
        return self.held_milli_seconds("cpu") / MILLI

    def held_milli_seconds(self, kind: str) -> float:
        """Milli-unit·seconds of ``kind`` that were granted, on all nodes."""
        return sum(held for name, held in self.held.items() if name.startswith(f"{kind}:"))

    def hold(self, action_id: ActionId, allocations: tuple[Allocation, ...], now: float) -> None:
        """Note that an action holds ``allocations`` from ``now`` on."""
        self._holding[action_id] = (now, allocations)
        for allocation in allocations:
            if (hosting := allocation.hosting) is not None:
                self.restores += _restored(hosting)
                self.restores_met += hosting.ahead
                if allocation.shared:
                    self._sit(allocation, now)

    def resize(self, action_id: ActionId, allocation: Allocation, now: float) -> None:
        """Note that an action holds another ``allocation`` of one of its resources from now on."""
        holding = self._holding.get(action_id)
        if holding is None:
            return
        self.let_go(action_id, now)
        others = [each for each in holding[1] if each.resource != allocation.resource]
        self.hold(action_id, (*others, allocation), now)
        self.resized += 1

    def let_go(self, action_id: ActionId, now: float) -> None:
        """Note that an action holds nothing any more."""
        holding = self._holding.pop(action_id, None)
        if holding is not None:
            since, allocations = holding
            for allocation in allocations:
                held_since: float | None = since
                if allocation.shared and allocation.hosting is not None:  # others are there as well
                    held_since = self._leave(allocation, since)
                if held_since is not None:
                    held = (now - held_since) * allocation.amount
                    self.held[allocation.resource] += held
                    if allocation.resource.startswith("cpu:"):
                        self._cores_held[action_id] = (
                            self._cores_held.get(action_id, 0.0) + held / MILLI
                        )

    def _sit(self, allocation: Allocation, now: float) -> None:
        """Note one more on a chunk that several may hold; it counts once."""
        count, since = self._seated.get((allocation.resource, allocation.units), (0, now))
        self._seated[(allocation.resource, allocation.units)] = (count + 1, since)

    def _leave(self, allocation: Allocation, since: float) -> float | None:
        """Return since when the chunk was held if this was its last holder."""
        count, first = self._seated.pop((allocation.resource, allocation.units), (1, since))
        if count > 1:
            self._seated[(allocation.resource, allocation.units)] = (count - 1, first)
        return first if count == 1 else None

    def finish(self, finish: Finish, family: str, work_seconds: float, now: float) -> bool:
        """Note a finished action; ``work_seconds`` is its T_ori. Say whether it counts.

        Work without elasticity takes T_ori on half a core as well, and then only half of it is useful.
        """
        self.let_go(finish.action_id, now)
        # Baselines count the units of their pods themselves, and hold none for an action.
        held_seconds = self._cores_held.pop(finish.action_id, work_seconds)
        if finish.action_id in self._uncounted:
            return False
        outcome = finish.outcome
        self.outcomes[outcome._value_] += 1
        if outcome is COMPLETED and _on_cores(finish.allocations):
            self.useful_core_seconds += min(work_seconds, held_seconds)
        rows, timing = self.rows, finish.timing
        rows.queue.append(timing.queue_seconds)
        rows.overhead.append(timing.overhead_seconds)
        rows.execution.append(timing.execution_seconds)
        rows.ended.append(now)
        families, trajectories = self.families, self.trajectories
        rows.family.append(families.setdefault(family, len(families)))
        task = task_key(finish.project, finish.task)
        act, work = self.tasks.get(task, (0.0, 0.0))
        # The durations that a baseline of APIs calls are no T_ori: it runs each as it comes.
        work += work_seconds if work_seconds > 0 else timing.execution_seconds
        self.tasks[task] = act + timing.act_seconds, work
        name = finish.trajectory or finish.action_id
        rows.trajectory.append(trajectories.setdefault(name, len(trajectories)))
        return True

    def fingerprint(self) -> str:
        """Return a digest of every row: equal for equal runs alone."""
        digest = sha256()
        rows = self.rows
        for column in (rows.queue, rows.overhead, rows.execution, rows.family, rows.trajectory):
            digest.update(column.tobytes())
        digest.update("\n".join((*self.families, *self.trajectories)).encode())
        return digest.hexdigest()


def _restored(hosting: Hosting) -> bool:
    return bool(hosting.service) and not hosting.cached


def _on_cores(allocations: tuple[Allocation, ...]) -> bool:
    for allocation in allocations:  # noqa: SIM110  (for every action, a generator costs more)
        if allocation.resource.startswith("cpu:"):
            return True
    return False
