"""Estimate of the mean ACT of a pool with a number of nodes of each elastic group. Pure.

Two parts are added up, for what waits now (`list_schedule`) and for what arrives within `HORIZON_SECONDS` (`queue_estimate`). Both see on
which nodes an action fits. The mean is that of each *class* (`pool_load`): of the actions that the same groups take. A few large actions that
wait for a large node would not be seen in the mean of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.runtime.node_groups.list_schedule import WaitList
from scheduler.runtime.node_groups.pool_load import NodesFrom, PoolLoad, Takers
from scheduler.runtime.node_groups.queue_estimate import (
    HORIZON_SECONDS,
    QueueEstimate,
)

#: Class → its mean ACT.
Acts = Mapping[Takers, float]


class PoolEstimate:
    """The estimate for one load. It remembers what it has found for a path."""

    def __init__(self, load: PoolLoad) -> None:
        self.load = load
        self._listed = WaitList(load)
        self._queues = QueueEstimate(load)
        self._sums: dict[tuple[NodesFrom, ...], dict[Takers, tuple[float, float]]] = {}
        self._queued: dict[tuple[int, ...], Mapping[Takers, float]] = {}

    def acts(self, path: Sequence[NodesFrom]) -> Acts:
        """Return the mean seconds from submission to end of each class.

        ``path``: the groups' nodes over time, by rising moments; the first is now.
        """
        sums = self._of(path)
        return {takers: total / count for takers, (total, count) in sums.items() if count > 0}

    def act(self, path: Sequence[NodesFrom]) -> float:
        """Return the mean over all classes; 0 if nothing waits or arrives."""
        sums = self._of(path).values()
        count = sum(number for _, number in sums)
        return sum(total for total, _ in sums) / count if count > 0 else 0.0

    def count(self, takers: Takers) -> float:
        """Return how many actions of a class wait or arrive within the horizon."""
        waiting, _ = self.load.waiting.get(takers, (0, 0.0))
        rate, _ = self.load.arriving.get(takers, (0.0, 0.0))
        return waiting + rate * HORIZON_SECONDS

    def _of(self, path: Sequence[NodesFrom]) -> dict[Takers, tuple[float, float]]:
        key = tuple(path)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = self._class_sums(key)
        return found

    def _class_sums(self, path: tuple[NodesFrom, ...]) -> dict[Takers, tuple[float, float]]:
        """Return class → sum of the seconds from submission to end of what waits and arrives, and its number."""
        load, waits = self.load, self._listed.schedule(path)
        found: dict[Takers, tuple[float, float]] = {
            takers: (waits.sums.get(takers, 0.0) + seconds, float(count))
            for takers, (count, seconds) in load.waiting.items()
        }
        busy = self._queues.busy_share(path[-1].nodes) if waits.drained_at else 0.0
        queued = self._queued_within(path)
        for takers, (rate, seconds) in load.arriving.items():
            # What arrives before the last of those that wait has started waits behind them.
            drained_at = waits.drained_at.get(takers, 0.0)
            behind = min(HORIZON_SECONDS, drained_at / max(1.0 - busy, 0.03))
            total, count = found.get(takers, (0.0, 0.0))
            total += rate * behind * drained_at / 2 + HORIZON_SECONDS * seconds
            total += queued.get(takers, 0.0)
            found[takers] = total, count + rate * HORIZON_SECONDS
        return found

    def _queued_within(self, path: Sequence[NodesFrom]) -> Mapping[Takers, float]:
        """Return the waits of what arrives within the horizon, by class."""
        found: dict[Takers, float] = {}
        if not self.load.arrivals:
            return found
        ends = [each.after_seconds for each in path[1:]] + [HORIZON_SECONDS]
        for each, end in zip(path, ends, strict=True):
            seconds = min(end, HORIZON_SECONDS) - each.after_seconds
            if seconds > 0:
                queued = self._queued.get(each.nodes)
                if queued is None:
                    queued = self._queued[each.nodes] = self._queues.seconds(each.nodes)
                for takers, wait in queued.items():
                    found[takers] = found.get(takers, 0.0) + seconds * wait
        return found
