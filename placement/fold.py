"""Folds: few trajectories that are left go on at a wide worker, on the GPUs of narrow workers that sleep.

Narrow workers make the most tokens of a GPU while batches are full; the last trajectories are alone on theirs and leave the other GPUs
idle. A wide worker on the same GPUs gives each of them more. `folds` estimates both ends and chooses; `placement.folding` is the way there
and back.

Rules
1. A fold is chosen only if its end is earlier than staying, by more than ``least_gain_seconds``. Its end counts the generations that run
   (they end where they began), the measured wake, and the prefill of every context, one after the other: caches of sleeping workers are void.
   With a store of caches that workers share, a context takes the lesser of its prefill and its transfer.
2. What is not known folds nothing: a trajectory without a prediction, a wake that was never measured, a pinned trajectory.
3. A site takes all trajectories of its narrow workers, or none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from domain.errors import InvalidRequest
from placement.estimates import Work, drain_seconds
from placement.facts import Prediction, TrajectoryFacts, WorkerFacts
from placement.policies.protocol import WorkerTimes


class LeftOver(msgspec.Struct, frozen=True, gc=False):
    """What is left of one trajectory."""

    facts: TrajectoryFacts
    #: Seconds until its running generation ends; 0: it is in a tool, or waits.
    busy_seconds: float = 0.0


class WideSite(msgspec.Struct, frozen=True, gc=False):
    """A wide worker that sleeps, and the narrow workers on its GPUs."""

    worker: WorkerFacts
    narrow: tuple[WorkerFacts, ...]
    #: Measured seconds from the order to wake until it serves; None: never measured.
    wake_seconds: float | None = None


class Fold(msgspec.Struct, frozen=True, gc=False):
    """A fold that is worth it."""

    #: Number of the worker that wakes.
    wide: int
    #: Numbers of the workers that sleep, rising.
    sleeping: tuple[int, ...]
    #: Keys of the trajectories that go on at the wide one.
    trajectories: tuple[str, ...]
    #: Seconds until all of them have ended, from now, if they stay and if they are folded.
    stay_seconds: float
    fold_seconds: float

    @property
    def gain_seconds(self) -> float:
        """Return by how much they end sooner."""
        return self.stay_seconds - self.fold_seconds


def folds(
    left: Sequence[LeftOver], sites: Iterable[WideSite], times: WorkerTimes, *,
    least_gain_seconds: float = 0.0, shared_store: bool = False,
) -> list[Fold]:  # fmt: skip
    """Return the folds to begin now, the greatest gain first; no two have a worker in common."""
    if not (math.isfinite(least_gain_seconds) and least_gain_seconds >= 0):
        wrong = f"{least_gain_seconds!r} is no gain: give seconds, at least 0"
        raise InvalidRequest(wrong, pointer="/least_gain_seconds")
    found = [estimated(left, site, times, shared_store=shared_store) for site in sites]
    worth = [each for each in found if each and each.gain_seconds > least_gain_seconds]
    worth.sort(key=lambda fold: (-fold.gain_seconds, fold.wide))
    chosen: list[Fold] = []
    for fold in worth:
        if not any(_workers(fold) & _workers(other) for other in chosen):
            chosen.append(fold)
    return chosen


def _workers(fold: Fold) -> set[int]:
    return {fold.wide, *fold.sleeping}


def estimated(
    left: Sequence[LeftOver], site: WideSite, times: WorkerTimes, *, shared_store: bool = False
) -> Fold | None:
    """Return the fold onto a site with both ends, worth it or not; None if it is impossible or an end is not known."""
    _check(left, site)
    numbers = {worker.number for worker in site.narrow}
    mine = [each for each in left if each.facts.worker in numbers]
    if site.wake_seconds is None or not mine or not all(map(_foldable, mine)):
        return None
    if sum(worker.degree for worker in site.narrow) < site.worker.degree:
        return None  # not all of its GPUs become free
    stay = 0.0
    for worker in site.narrow:
        here = [each for each in mine if each.facts.worker == worker.number]
        stay = max(stay, drain_seconds(times, worker, _work(here)))
    ready = max(each.busy_seconds for each in mine) + site.wake_seconds
    rest = _work(mine, _made(mine, site, times))
    drained = drain_seconds(times, site.worker, rest)
    return Fold(
        wide=site.worker.number,
        sleeping=tuple(sorted(numbers)),
        trajectories=tuple(each.facts.key for each in mine),
        stay_seconds=stay,
        fold_seconds=ready + _context_seconds(rest, site.worker, times, shared_store) + drained,
    )


def _check(left: Sequence[LeftOver], site: WideSite) -> None:
    for number, each in enumerate(left):
        if not (math.isfinite(each.busy_seconds) and each.busy_seconds >= 0):
            wrong = f"{each.busy_seconds!r} is no time: give the seconds until its generation ends, or 0"
            raise InvalidRequest(wrong, pointer=f"/left/{number}/busy_seconds")
    if site.wake_seconds is not None and not (
        math.isfinite(site.wake_seconds) and site.wake_seconds >= 0
    ):
        wrong = f"{site.wake_seconds!r} is no time: give the measured seconds of a wake, or leave it out"
        raise InvalidRequest(wrong, pointer="/wake_seconds")


def _foldable(each: LeftOver) -> bool:
    """Say whether a trajectory may move and its rest is known (rule 2)."""
    rest = each.facts.prediction
    known = rest is not None and all(
        math.isfinite(number) and number >= 0 for number in (rest.tokens, rest.tool_seconds)
    )
    return known and not each.facts.pinned


def _work(left: Sequence[LeftOver], made: Sequence[float] | None = None) -> Work:
    """Return what is left after ``made`` tokens of each."""
    done = made or [0.0] * len(left)
    rests = [each.facts.prediction or Prediction(0.0) for each in left]
    return Work(
        [max(0.0, rest.tokens - tokens) for rest, tokens in zip(rests, done, strict=True)],
        [rest.tool_seconds for rest in rests],
        [each.facts.context_tokens + tokens for each, tokens in zip(left, done, strict=True)],
    )


def _made(mine: Sequence[LeftOver], site: WideSite, times: WorkerTimes) -> list[float]:
    """Return the tokens that running generations still make where they are."""
    degrees = {worker.number: worker.degree for worker in site.narrow}
    busy = Counter(each.facts.worker for each in mine if each.busy_seconds)
    return [
        each.busy_seconds
        / times.token_seconds(
            degrees[each.facts.worker or 0],
            max(busy[each.facts.worker], 1),
            each.facts.context_tokens,
        )
        for each in mine
    ]


def _context_seconds(
    work: Work, wide: WorkerFacts, times: WorkerTimes, shared_store: bool
) -> float:
    """Return the seconds until the wide worker has every context."""
    total = 0.0
    for context in map(int, work.contexts):
        seconds = times.prefill_seconds(wide.degree, context)
        total += min(seconds, times.transfer_seconds(context)) if shared_store else seconds
    return total
