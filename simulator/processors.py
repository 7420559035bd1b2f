"""Processors of one machine, shared by everything that runs there, as a fluid.

Theory of operation. A job wants CPU seconds, at most at a rate (cores). At each moment the cores are divided by
weight among the jobs that want some, none gets more than it wants, and what one leaves goes to the others
(weighted max-min fairness, which the kernel's fair scheduler approximates; A. Parekh, R. Gallager, "A generalized
processor sharing approach to flow control", 1993). Rates change only when a job begins, ends, or reaches what is
due, so the next such moment is the only entry in the agenda.

A *paced* job spreads its CPU over a time: it wants the share that is due, and as much as it can get while it is
behind (`tangram_client.traces.burn`). It is over when the time has passed and its CPU is done.

Not modelled: which core a job is on, time slices, and caches.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any, Final

from simulator.agenda import Agenda, Step

#: CPU seconds that count as none.
_NOTHING: Final = 1e-9


class ProcessorJob:
    """Work on the processors."""

    __slots__ = (
        "_argument",
        "_done",
        "began_at",
        "behind",
        "left",
        "most",
        "rate",
        "share",
        "until",
        "weight",
    )

    def __init__(
        self, cpu_seconds: float, most: float, weight: float, done: Step | None, argument: Any
    ) -> None:
        self.left = cpu_seconds
        #: Cores that it can use at once.
        self.most = most
        self.weight = weight
        self.rate = 0.0
        #: Of a paced job: cores that are due on average, until when, and whether it is behind them.
        self.share = most
        self.began_at = 0.0
        self.until = -inf
        self.behind = True
        self._done = done
        self._argument = argument

    def wanted(self) -> float:
        """Return the cores that it would use now."""
        if self.left <= _NOTHING:
            return 0.0
        return self.most if self.behind else self.share

    def lag(self, now: float) -> float:
        """Return the CPU seconds by which a paced job is behind what is due at ``now``."""
        return self.left - self.share * max(0.0, self.until - now)

    def end(self) -> None:
        """Tell that it is over."""
        if self._done is not None:
            self._done(self._argument)


class Processors:
    """The cores of a machine and the jobs on them."""

    def __init__(self, agenda: Agenda, cores: float) -> None:
        self._agenda = agenda
        self._cores = cores
        self._jobs: dict[ProcessorJob, None] = {}
        self._settled_at = 0.0
        self._version = 0
        self.busy_seconds = 0.0

    def begin(
        self, cpu_seconds: float, done: Step | None = None, argument: Any = None, *,
        weight: float = 1.0, most: float = 1.0, paced_seconds: float | None = None,
    ) -> ProcessorJob:  # fmt: skip
        """Begin a job of ``cpu_seconds`` on at most ``most`` cores; ``done(argument)`` is called at its end.

        ``paced_seconds``: it spreads its CPU over that time, and does not end before.
        """
        self._settle()
        job = ProcessorJob(cpu_seconds, most, weight, done, argument)
        if paced_seconds is not None:
            now = self._agenda.now
            job.began_at, job.until = now, now + paced_seconds
            job.share = min(most, cpu_seconds / paced_seconds) if paced_seconds > 0 else most
            job.behind = paced_seconds <= 0
        self._jobs[job] = None
        self._divide()
        return job

    def end(self, job: ProcessorJob) -> None:
        """Take a job away before it is over; nothing is called."""
        self._settle()
        if self._jobs.pop(job, self) is None:
            self._divide()

    def rate_of_newcomer(self, weight: float) -> float:
        """Return the cores that one more job of ``weight`` would get now, at most one."""
        job = ProcessorJob(1.0, 1.0, weight, None, None)
        return _divided([*self._jobs, job], self._cores)[job]

    def _settle(self) -> None:
        """Count what was done since the last change."""
        now = self._agenda.now
        passed = now - self._settled_at
        self._settled_at = now
        if passed > 0:
            for job in self._jobs:
                done = job.rate * passed
                job.left -= done
                self.busy_seconds += done

    def _divide(self) -> None:
        """Divide the cores among the jobs, and plan the next change."""
        now = self._agenda.now
        for job, rate in _divided(self._jobs, self._cores).items():
            job.rate = rate
            job.behind = job.behind or rate < job.share - _NOTHING
        self._version += 1
        ahead = min((_change_in(job, now) for job in self._jobs), default=inf)
        if ahead < inf:
            self._agenda.at(now + ahead, self._changed, self._version)

    def _changed(self, version: int) -> None:
        if version != self._version:
            return
        self._settle()
        now = self._agenda.now
        over = []
        for job in self._jobs:
            if job.left <= _NOTHING and job.until <= now + _NOTHING:
                over.append(job)
            elif job.until > now and job.behind and job.lag(now) <= _NOTHING:
                job.behind = False
        for job in over:
            del self._jobs[job]
        self._divide()
        for job in over:
            job.end()


def _change_in(job: ProcessorJob, now: float) -> float:
    """Return the seconds until a job ends, has done its CPU, or has caught up with what is due."""
    if job.left <= _NOTHING:
        return max(0.0, job.until - now)
    if job.rate <= 0:
        return inf
    done_in = job.left / job.rate
    if job.behind and job.until > now and job.rate > job.share:
        return min(done_in, max(0.0, job.lag(now)) / (job.rate - job.share))
    return done_in


def _divided(jobs: Iterable[ProcessorJob], cores: float) -> dict[ProcessorJob, float]:
    """Return the cores of each job: weighted max-min fair shares of ``cores``."""
    wanted = {job: job.wanted() for job in jobs}
    weights = sum(job.weight for job, most in wanted.items() if most > 0)
    rates: dict[ProcessorJob, float] = {}
    for job in sorted(wanted, key=lambda job: wanted[job] / job.weight):
        most = wanted[job]
        if most <= 0:
            rates[job] = 0.0
            continue
        rates[job] = min(most, cores * job.weight / weights)
        cores -= rates[job]
        weights -= job.weight
    return rates
