"""Oracle of degrees of parallelism: the least time of a whole run, with all contexts known beforehand; and replays of choices.

A step has the context, longest context and responses of its load. Its time on a degree is its tokens over the rate of the degree at its
context, on the GPUs of the largest degree. A degree that does not survive the longest context of a step cannot run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from domain.selectors import Parallelism, SelectorSpec, StageLoad
from scheduler.core.residency.parallelism import ParallelismStanding, ProfileTable, choose


class Replay(NamedTuple):
    """A run on the degrees that were chosen."""

    seconds: float
    switches: int
    #: Steps on a degree that does not survive them.
    out_of_memory: int
    #: Degree of each step.
    degrees: tuple[Parallelism, ...]


def step_seconds(
    spec: SelectorSpec, table: ProfileTable, degree: Parallelism, load: StageLoad
) -> float:
    """Return the time of one step; infinite where the degree runs out of memory."""
    rate = table.rate(degree, load.context, load.responses)
    if rate is None or not table.survives(degree, load.longest, load.responses):
        return inf
    return load.work_tokens / max(each.gpus for each in spec.degrees) / rate


def best_seconds(
    spec: SelectorSpec, table: ProfileTable, loads: Sequence[StageLoad], switch_seconds: float
) -> float:
    """Return the least time of all steps with their switches."""
    so_far = dict.fromkeys(spec.degrees, 0.0)
    for load in loads:
        cheapest = min(so_far.values()) + switch_seconds
        so_far = {
            each: min(spent, cheapest) + step_seconds(spec, table, each, load)
            for each, spent in so_far.items()
        }
    return min(so_far.values())


def replay(
    spec: SelectorSpec, table: ProfileTable, loads: Sequence[StageLoad], switch_seconds: float
) -> Replay:
    """Run all steps, each on the degree that is chosen from the loads before it; the first one from its own."""
    standing, seconds, switches, failed = ParallelismStanding(), 0.0, 0, 0
    degrees: list[Parallelism] = []
    for number, load in enumerate(loads):
        known = loads[number - 1] if number else load
        choice = choose(spec, table, known, standing)
        assert choice.parallelism is not None
        if choice.switched and choice.former is not None:
            switches, seconds = switches + 1, seconds + switch_seconds
        standing = choice.standing
        took = step_seconds(spec, table, choice.parallelism, load)
        failed += took == inf
        seconds += 0.0 if took == inf else took
        degrees.append(choice.parallelism)
    return Replay(seconds, switches, failed, tuple(degrees))
