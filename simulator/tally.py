"""What a simulation counts while it runs: one row for each finished action, held cores over time."""

from __future__ import annotations

from array import array
from collections import Counter
from hashlib import sha256

from domain.allocation import Allocation
from domain.decisions import Finish
from domain.ids import ActionId
from domain.resources import MILLI


class Rows:
    """Timings of finished actions in the order in which they ended."""

    __slots__ = ("execution", "family", "overhead", "queue", "trajectory")

    def __init__(self) -> None:
        self.queue = array("d")
        self.overhead = array("d")
        self.execution = array("d")
        #: Indexes into `Tally.families` and `Tally.trajectories`.
        self.family = array("H")
        self.trajectory = array("I")

    def __len__(self) -> int:
        return len(self.queue)


class Tally:
    """Counts what happens to actions."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.families: dict[str, int] = {}
        self.trajectories: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()
        self.requeued = 0
        self.resized = 0
        #: Core·seconds that were granted, and T_ori of what was completed on them.
        self.held_core_seconds = 0.0
        self.useful_core_seconds = 0.0
        self._held: dict[ActionId, tuple[float, int]] = {}

    def hold(self, action_id: ActionId, allocations: tuple[Allocation, ...], now: float) -> None:
        """Note that an action holds ``allocations`` from ``now`` on."""
        milli = 0
        for allocation in allocations:
            if allocation.resource.startswith("cpu:"):
                milli += allocation.amount
        self._held[action_id] = (now, milli)

    def let_go(self, action_id: ActionId, now: float) -> None:
        """Note that an action holds nothing any more."""
        held = self._held.pop(action_id, None)
        if held is not None:
            since, milli = held
            self.held_core_seconds += (now - since) * milli / MILLI

    def finish(self, finish: Finish, family: str, work_seconds: float, now: float) -> None:
        """Note a finished action; ``work_seconds`` is its T_ori."""
        self.let_go(finish.action_id, now)
        self.outcomes[finish.outcome.value] += 1
        if finish.allocations and finish.outcome == "completed":
            self.useful_core_seconds += work_seconds
        rows, timing = self.rows, finish.timing
        rows.queue.append(timing.queue_seconds)
        rows.overhead.append(timing.overhead_seconds)
        rows.execution.append(timing.execution_seconds)
        families, trajectories = self.families, self.trajectories
        rows.family.append(families.setdefault(family, len(families)))
        name = finish.trajectory or finish.action_id
        rows.trajectory.append(trajectories.setdefault(name, len(trajectories)))

    def fingerprint(self) -> str:
        """Return a digest of every row: equal for equal runs alone."""
        digest = sha256()
        rows = self.rows
        for column in (rows.queue, rows.overhead, rows.execution, rows.family, rows.trajectory):
            digest.update(column.tobytes())
        digest.update("\n".join((*self.families, *self.trajectories)).encode())
        return digest.hexdigest()
