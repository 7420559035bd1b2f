"""Policy ``malleable``: actions that declare it are resized while they run.

A grant is no longer a bet on the load to come: an arriving action takes units from running ones, and
released units go to the actions that remain. The paper cannot do this. Actions that are not
malleable are arranged as by `balanced`; the units for their smallest counts are taken from malleable
actions as well.

Distribution. Each action has at least its smallest count. Beyond it, the less work an action has
left, the more units it gets: heSRPT is optimal for the mean completion time of actions that are
present together and speed up as a power k^p of their units (B. Berg, R. Vesilo, M. Harchol-Balter,
Performance Evaluation 144, 2020). Its shares maximise the sum of

    w(rank) · speed,   w(rank) = rank · (1 − (1 − 1/rank)^(1/(1 − p)))^(1 − p)

where the action with the most work left has rank 1. Units are distributed one step at a time to the
largest w · gain, with each action's own profile as speed and p its slope at an equal share. An action
of unknown duration has the middle rank. Profiles at both limits behave as expected: with linear
speedup (p = 1) the shortest action goes first, with hardly any speedup all get alike.

An action gets no more units than the count from which its profile gains no speed. A program with a
fixed number of workers runs with as many as its widest count, squeezed onto fewer cores.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import log
from typing import NamedTuple

from domain.elasticity import Elasticity
from domain.resources import MILLI
from scheduler.core.policies.balanced import Balanced
from scheduler.core.policies.group import ResizeCandidate
from scheduler.core.policies.registry import register

#: Profile of an action that declares none.
ASSUMED = Elasticity(amdahl=0.9)
#: Largest p: speedup of real programs is below linear, and closer to 1 the weights are ranks anyway.
_STEEPEST = 0.95


@register("malleable")
@dataclass(frozen=True)
class Malleable(Balanced):
    """`Balanced` for actions that are not malleable; `distribute_units` for those that are."""

    name: str = "malleable"

    resizes = True

    def resize(
        self,
        candidates: Sequence[ResizeCandidate],
        total: int,
        allowances: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Return the milli-units of each action by heSRPT."""
        actions = [
            MalleableAction(
                profile_of(each.counts, each.elasticity),
                each.left_seconds,
                each.project,
                self.weight(each.project),
            )
            for each in candidates
        ]
        return distribute_units(actions, total, allowances)

    def weight(self, project: str) -> float:
        """Return how much a second of an action of ``project`` counts."""
        return 1.0


class Profile(NamedTuple):
    """Speedup of an action."""

    #: Rising milli-units, up to the count from which more of them gain nothing.
    counts: tuple[int, ...]
    #: By count: the most speed per milli-unit that any larger count gains.
    gains: tuple[float, ...]
    #: By count, up to the next one: p, if speed were a power k^p.
    powers: tuple[float, ...]

    def power(self, milli: float) -> float:
        """Return p at ``milli`` milli-units."""
        return self.powers[max(0, min(len(self.powers), bisect_right(self.counts, milli)) - 1)]


class MalleableAction(NamedTuple):
    """An action that gets part of the units."""

    profile: Profile
    #: Remaining part of T_ori; None: unknown.
    left_seconds: float | None
    project: str = ""
    #: How much its completion time counts.
    weight: float = 1.0


@lru_cache(maxsize=4096)
def profile_of(counts: tuple[int, ...], elasticity: Elasticity | None) -> Profile:
    """Return the profile over ``counts``; without an elasticity all of them are useful."""
    assumed = elasticity is None
    each = ASSUMED if elasticity is None else elasticity
    speeds = [each.efficiency(count) * count / MILLI for count in counts]
    useful = len(counts) if assumed else speeds.index(max(speeds)) + 1
    points = list(zip(counts[:useful], speeds, strict=False))
    gains = tuple(
        max((faster - speed) / (wider - count) for wider, faster in points[index + 1 :])
        for index, (count, speed) in enumerate(points[:-1])
    )
    powers = tuple(
        min(_STEEPEST, max(0.0, log(after / before) / log(wider / count)))
        for (count, before), (wider, after) in pairwise(points)
    )
    return Profile(counts[:useful], gains, powers)


def distribute_units(
    actions: Sequence[MalleableAction], total: int, allowances: Mapping[str, int] | None = None
) -> list[int]:
    """Return the milli-units of each action when they share ``total``.

    The smallest counts fit into ``total`` together. ``allowances`` limit by project the milli-units
    beyond them. Ties of gain: the narrowest action first, then the earliest. O(s · log n) for s
    steps in all.
    """
    counts = [action.profile.counts for action in actions]
    left = total - sum(each[0] for each in counts)
    if left <= 0 or not actions:
        return [each[0] for each in counts]
    weights = _weights(actions, total / len(actions))
    at, rest = [0] * len(actions), dict(allowances or {})
    heap = [
        (-weights[index] * action.profile.gains[0], counts[index][0], index)
        for index, action in enumerate(actions)
        if action.profile.gains
    ]
    heapify(heap)
    while heap and left > 0:
        index = heap[0][2]
        have, gains = at[index], actions[index].profile.gains
        following = counts[index][have + 1]
        step = following - counts[index][have]
        project = actions[index].project
        if step > left or step > rest.get(project, left):
            heappop(heap)
            continue
        left -= step
        if project in rest:
            rest[project] -= step
        at[index] = have + 1
        if have + 1 < len(gains):
            heapreplace(heap, (-weights[index] * gains[have + 1], following, index))
        else:
            heappop(heap)
    return [each[k] for each, k in zip(counts, at, strict=True)]


def _weights(actions: Sequence[MalleableAction], equal: float) -> list[float]:
    """Return w of each action, with p at an ``equal`` share in milli-units."""
    weights = [(len(actions) + 1) / 2] * len(actions)
    known = [
        (-action.left_seconds, -index)
        for index, action in enumerate(actions)
        if action.left_seconds is not None
    ]
    for rank, (_, index) in enumerate(sorted(known), start=1):
        profile = actions[-index].profile
        if profile.powers:
            rest = 1.0 - profile.power(equal)
            weights[-index] = rank * (1.0 - (1.0 - 1.0 / rank) ** (1.0 / rest)) ** rest
    return [weight * action.weight for weight, action in zip(weights, actions, strict=True)]
