"""Bounds: what no policy can do better, and what a policy could do that knows all durations.

| name | what it is | a bound |
|---|---|---|
| `no waiting` | every action at once, alone on the count at which it is fastest; no restore, no hop | for every policy |
| `srpt` | clairvoyant shortest remaining processing time on all units as one machine, preemptive, without restores and hops | a reference |

`srpt` favours the policy that it stands for. An action needs the unit·seconds of its most efficient count, may hold any part of a
unit, is as fast as its units are many up to its fastest duration, and is stopped and resumed at no cost. The least remaining
unit·seconds are served first. It is no proven bound: serving the shortest actions first is optimal for one machine (Schrage, Operations
Research 16, 1968), not for actions that cannot use all units. In a closed loop later actions arrive when earlier ones have ended.

Only for workloads whose programs do not depend on the outcome of actions (`clairvoyant`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from statistics import mean
from typing import Final

from domain.resources import MILLI
from simulator.clairvoyant import moves
from simulator.workloads.program import Act, Think, Workload

NO_WAITING: Final = "no waiting"
SRPT: Final = "srpt"
#: Unit·seconds that count as none: rounding leaves less.
_NOTHING: Final = 1e-9


def bounds(workload: Workload, units: float) -> dict[str, float]:
    """Return the mean ACT in seconds under each of the bounds, on ``units`` units of the key resource."""
    fastest, acts = [], []
    for step in workload.steps():
        played = [list(moves(rollout.program())) for rollout in step]
        fastest += [_fastest(each) for some in played for each in some if isinstance(each, Act)]
        acts += srpt_acts(played, units)
    return {NO_WAITING: mean(fastest), SRPT: mean(acts)}


def _fastest(act: Act) -> float:
    """Return the least seconds of ``act`` on any of its counts."""
    return min(act.work.seconds(count) for count in _counts(act))


def _counts(act: Act) -> tuple[int, ...]:
    return tuple(act.action.cost.get(act.work.key, (MILLI,)))


def _unit_seconds(act: Act) -> float:
    """Return the unit·seconds of ``act`` on the count that needs the least."""
    return min(act.work.seconds(count) * count / MILLI for count in _counts(act))


class _PresentAction:
    """An action that is present; the one with less left comes first."""

    __slots__ = ("arrived_at", "left", "most", "trajectory")

    def __init__(self, act: Act, trajectory: int, arrived_at: float) -> None:
        self.trajectory = trajectory
        self.arrived_at = arrived_at
        #: Unit·seconds.
        self.left = _unit_seconds(act)
        #: Units with which it is as fast as it can be.
        self.most = self.left / max(_NOTHING, _fastest(act))

    def __lt__(self, other: _PresentAction) -> bool:
        return (self.left, self.trajectory) < (other.left, other.trajectory)


def srpt_acts(played: Sequence[Sequence[Think | Act]], units: float) -> list[float]:
    """Return the ACT in seconds of all actions of trajectories that begin at once, as they end (`srpt`)."""
    rests = [iter(each) for each in played]
    thinking = [(0.0, number) for number in range(len(played))]
    heapify(thinking)
    jobs: list[_PresentAction] = []
    acts: list[float] = []
    now = 0.0
    while thinking or jobs:
        front = list(_served(jobs, units))
        ends_at = min((now + job.left / held for job, held in front), default=inf)
        before, now = now, min(thinking[0][0] if thinking else inf, ends_at)
        for job, held in front:
            job.left -= held * (now - before)
        jobs.sort()
        while jobs and jobs[0].left <= _NOTHING:
            job = jobs.pop(0)
            acts.append(now - job.arrived_at)
            heappush(thinking, (now, job.trajectory))
        while thinking and thinking[0][0] <= now:
            _go_on(heappop(thinking)[1], now, rests, thinking, jobs)
    return acts


def _served(jobs: Sequence[_PresentAction], units: float) -> Iterator[tuple[_PresentAction, float]]:
    """Yield the jobs that are served, the first ones, and how many units each holds."""
    for job in jobs:
        held = min(job.most, units)
        if held <= 0.0:
            return
        units -= held
        yield job, held


def _go_on(
    trajectory: int,
    now: float,
    rests: Sequence[Iterator[Think | Act]],
    thinking: list[tuple[float, int]],
    jobs: list[_PresentAction],
) -> None:
    """Let a trajectory make its next move at ``now``."""
    move = next(rests[trajectory], None)
    if isinstance(move, Think):
        heappush(thinking, (now + move.seconds, trajectory))
    elif move is not None:
        insort(jobs, _PresentAction(move, trajectory, now))
