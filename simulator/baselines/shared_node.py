"""A node whose cores all its commands share: processor sharing with a cap for each command.

Every run gets an equal share of the cores, none more than its cap; what capped runs leave is shared
by the others (what the Linux scheduler does with equal weights and ``cpu.max``, in the limit of
short slices). Shares change whenever a run begins or ends.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.agenda import Agenda
from simulator.work import ActionWork


class SharedRun:
    """Work on a shared node."""

    __slots__ = ("began_at", "cap_milli", "done", "rate", "remaining", "share_milli", "work")

    def __init__(self, work: ActionWork, cap_milli: int, done: Callable[[SharedRun], None]) -> None:
        self.work = work
        self.cap_milli = cap_milli
        self.done = done
        #: Seconds of T_ori.
        self.remaining = work.base_seconds
        self.began_at = 0.0
        self.share_milli = 0.0
        self.rate = 0.0


class SharedNode:
    """Starts every command at once."""

    def __init__(self, agenda: Agenda, capacity_milli: int) -> None:
        self._agenda = agenda
        self._capacity = capacity_milli
        self._runs: list[SharedRun] = []
        self._since = 0.0
        self._version = 0
        #: Milli-core·seconds that were used.
        self.used = 0.0

    def begin(self, run: SharedRun) -> None:
        """Start ``run`` now."""
        self._proceed()
        run.began_at = self._agenda.now
        self._runs.append(run)
        self._share()

    def _proceed(self) -> None:
        """Do what was done since the last change."""
        now = self._agenda.now
        seconds, self._since = now - self._since, now
        for run in self._runs:
            run.remaining -= seconds * run.rate
            self.used += seconds * run.share_milli

    def _share(self) -> None:
        """Share out the cores, and expect the next end."""
        left, count = float(self._capacity), len(self._runs)
        for run in sorted(self._runs, key=lambda run: run.cap_milli):
            run.share_milli = min(run.cap_milli, left / count)
            left, count = left - run.share_milli, count - 1
            run.rate = _rate(run.work, run.share_milli)
        self._version += 1
        if self._runs:
            soonest = min(max(0.0, run.remaining) / run.rate for run in self._runs)
            self._agenda.at(self._agenda.now + soonest, self._end, self._version)

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._proceed()
        # The one that was expected has nothing left but rounding.
        least = min(run.remaining for run in self._runs)
        ended = [run for run in self._runs if run.remaining <= max(least, 1e-9)]
        self._runs = [run for run in self._runs if run.remaining > max(least, 1e-9)]
        self._share()
        for run in ended:
            run.done(run)


def _rate(work: ActionWork, share_milli: float) -> float:
    """Return T_ori seconds done per second; what cannot use more than a core slows below it."""
    if work.elasticity is None:
        return min(1.0, share_milli / 1000)
    return work.rate(round(share_milli)) if share_milli >= 1 else share_milli / 1000
