"""Drawings of a fleet: load of each worker, predicted and sampled tokens, predicted and true times of trajectories. Pure; places are percentages.

Pages have no inline style, so drawings are SVG with attributes, and each has its numbers as text beside it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from statistics import median
from typing import Final, NamedTuple

from contract.fleet_status import FleetTrajectoryStatus, FleetWorkerStatus

#: Width and height of the plot of predicted over true times.
PLOT: Final = (330, 200)
#: Shorter remaining times count as this one: a second more or less decides nothing.
_SHORTEST: Final = 1.0


class LoadBar(NamedTuple):
    """Load of one worker: slots that are held, and above them generations that wait."""

    name: str
    start: float
    center: float
    width: float
    held_top: float
    held_height: float
    waiting_top: float
    waiting_height: float
    title: str


class LengthPair(NamedTuple):
    """Tokens of one trajectory as shares of the longest one."""

    facts: FleetTrajectoryStatus
    sampled: float
    #: None: nothing was predicted.
    predicted: float | None
    #: Name of its worker; empty: none.
    worker: str
    #: The reader may pin it.
    pinnable: bool = False


class Accuracy(NamedTuple):
    """Predicted over true remaining seconds of finished trajectories, on logarithmic axes of equal ends."""

    #: Places of the trajectories in pixels of `PLOT`, from the left and from the top.
    dots: list[tuple[float, float]]
    #: Ticks of both axes: place on the lower one, place on the left one, and seconds.
    ticks: list[tuple[float, float, float]]
    #: Of predicted over true: the median, and the factor within which half of them are.
    median: float
    factor: float


def accuracy_of(pairs: Sequence[tuple[float, float]]) -> Accuracy | None:
    """Return the drawing of (predicted, true) seconds; None without any."""
    logs = [[math.log10(max(each, _SHORTEST)) for each in pair] for pair in pairs]
    if not logs:
        return None
    low, high = math.floor(min(map(min, logs))), math.ceil(max(map(max, logs)))
    high = max(high, low + 1)

    def across(value: float) -> float:
        return round(PLOT[0] * (value - low) / (high - low), 1)

    def down(value: float) -> float:
        return round(PLOT[1] * (high - value) / (high - low), 1)

    ratios = [predicted - true for predicted, true in logs]
    return Accuracy(
        [(across(true), down(predicted)) for predicted, true in logs],
        [(across(power), down(power), 10.0**power) for power in range(low, high + 1)],
        10 ** median(ratios),
        10 ** median(map(abs, ratios)),
    )


def load_strip(workers: Sequence[FleetWorkerStatus]) -> list[LoadBar]:
    """Return a column for each worker; a full column is the greatest load by slot, at least one in each slot."""
    most = max([1.0, *((each.running + each.waiting) / each.facts.slots for each in workers)])
    width = 100 / max(1, len(workers))
    return [_bar(each, number * width, width, most) for number, each in enumerate(workers)]


def _bar(each: FleetWorkerStatus, start: float, width: float, most: float) -> LoadBar:
    held, waiting = (
        round(100 * count / each.facts.slots / most, 2) for count in (each.running, each.waiting)
    )
    inset = width * 0.08
    return LoadBar(
        each.facts.name,
        round(start + inset, 3),
        round(start + width / 2, 3),
        round(width - 2 * inset, 3),
        round(100 - held, 2),
        held,
        round(100 - held - waiting, 2),
        waiting,
        f"{each.facts.name}: {each.running} of {each.facts.slots} slots used, {each.waiting} wait",
    )


def length_pairs(
    trajectories: Sequence[FleetTrajectoryStatus],
    workers: Sequence[FleetWorkerStatus],
    operated: Container[str] | None = (),
) -> list[LengthPair]:
    """Return the lengths of trajectories in their order; ``operated``: projects whose trajectories the reader may pin, None: all."""
    longest = max([1.0, *(max(t.sampled_tokens, t.predicted_tokens or 0.0) for t in trajectories)])
    names = {each.number: each.facts.name for each in workers}
    return [
        LengthPair(
            each,
            round(100 * each.sampled_tokens / longest, 2),
            None if each.predicted_tokens is None else round(100 * each.predicted_tokens / longest, 2),
            "" if each.worker is None else names.get(each.worker, f"number {each.worker}"),
            operated is None or each.key.partition("/")[0] in operated,
        )
        for each in trajectories
    ]  # fmt: skip
