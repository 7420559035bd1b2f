"""Capacity planning: the fewest nodes for a wanted ACT, found by bisection.

More nodes never make an action wait longer in principle, but trainers that are answered sooner also
ask sooner, so a simulated ACT may rise a little with a node more. The answer is therefore what
bisection means: it holds at the number that is given, and does not at the largest smaller number
that was tried. Every trial is in the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from domain.errors import InvalidRequest
from simulator.compare import Scene, check_policies, run
from simulator.result import Result, Spread

#: What of the ACT is wished: a reader of its five numbers.
MEASURES: Final[dict[str, Callable[[Spread], float]]] = {
    "mean": lambda act: act.mean,
    "p50": lambda act: act.p50,
    "p95": lambda act: act.p95,
    "p99": lambda act: act.p99,
}


@dataclass(frozen=True)
class Wish:
    """The wanted ACT, and the actions it holds for."""

    act_seconds: float
    measure: str = "mean"
    #: Rewards alone; otherwise all actions.
    rewards: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.act_seconds) and self.act_seconds > 0):
            raise InvalidRequest(f"the wished ACT must be above 0 s, not {self.act_seconds!r}")
        if self.measure not in MEASURES:
            raise InvalidRequest(f"{self.measure!r} is none of {', '.join(MEASURES)}")

    def measured(self, result: Result) -> float:
        """Return what ``result`` has of it, in seconds."""
        part = result.rewards if self.rewards else result.whole
        if part is None:
            raise InvalidRequest("this workload has no rewards")
        return MEASURES[self.measure](part.act)


@dataclass(frozen=True)
class CapacityTrial:
    """One number of nodes that was simulated."""

    nodes: int
    act_seconds: float
    #: Share of all cores × time that was granted.
    granted: float
    enough: bool


@dataclass(frozen=True)
class CapacityAnswer:
    """The fewest nodes found, None when not even the most are enough; trials in their order."""

    nodes: int | None
    trials: tuple[CapacityTrial, ...]


def fewest_nodes(
    scene: Scene,
    policy: str,
    wish: Wish,
    most_nodes: int,
    done: Callable[[CapacityTrial], None] | None = None,
) -> CapacityAnswer:
    """Return the fewest nodes like those of ``scene`` that fulfil ``wish``, in log2 simulations."""
    check_policies([policy])
    if most_nodes < 1:
        raise InvalidRequest(f"the most nodes must be at least 1, not {most_nodes}")
    trials: list[CapacityTrial] = []

    def enough(nodes: int) -> bool:
        sized = replace(scene, cluster=replace(scene.cluster, nodes=nodes))
        result = run(sized, policy).result
        act_seconds = wish.measured(result)
        trial = CapacityTrial(
            nodes, act_seconds, result.granted["cpu"], act_seconds <= wish.act_seconds
        )
        trials.append(trial)
        if done is not None:
            done(trial)
        return trial.enough

    return CapacityAnswer(_bisect(enough, most_nodes), tuple(trials))


def _bisect(enough: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 1 to ``most`` that is enough, if any."""
    if not enough(most):
        return None
    too_few = 0
    while most - too_few > 1:
        middle = (most + too_few) // 2
        if enough(middle):
            most = middle
        else:
            too_few = middle
    return most
