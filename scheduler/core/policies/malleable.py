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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from scheduler.core.policies.balanced import Balanced
from scheduler.core.policies.group import ResizeCandidate
from scheduler.core.policies.registry import register


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
        return distribute_units(candidates, total, allowances)


def distribute_units(
    actions: Sequence[ResizeCandidate], total: int, allowances: Mapping[str, int] | None = None
) -> list[int]:
    """Return the milli-units of each action when they share ``total``.

    The smallest counts fit into ``total`` together. ``allowances`` limit by project the milli-units
    beyond them. Ties of gain: the narrowest action first, then the earliest. O(s · log n) for s
    steps in all.
    """
    counts = [action.profile.counts for action in actions]
    most = [each[-1] for each in counts]
    if sum(most) <= total and not allowances:
        return most
    wide = [each[0] for each in counts]
    left = total - sum(wide)
    if left <= 0:
        return wide
    gains = [action.profile.gains for action in actions]
    # Negative: a heap has its smallest entry first.
    weights = [-weight for weight in _weights(actions, total / len(actions))]
    at, rest = [0] * len(actions), dict(allowances or {})
    heap = [
        (weights[index] * each[0], wide[index], index) for index, each in enumerate(gains) if each
    ]
    heapify(heap)
    while heap and left > 0:
        _, width, index = heap[0]
        have = at[index] + 1
        following = counts[index][have]
        step = following - width
        if step > left or (rest and step > rest.get(actions[index].project, left)):
            heappop(heap)
            continue
        left -= step
        if rest and actions[index].project in rest:
            rest[actions[index].project] -= step
        at[index], wide[index] = have, following
        if have < len(gains[index]):
            heapreplace(heap, (weights[index] * gains[index][have], following, index))
        else:
            heappop(heap)
    return wide


def _weights(actions: Sequence[ResizeCandidate], equal: float) -> list[float]:
    """Return w of each action, with p at an ``equal`` share in milli-units."""
    weights = [(len(actions) + 1) / 2] * len(actions)
    known = [
        (-action.left_seconds, -index)
        for index, action in enumerate(actions)
        if action.left_seconds is not None
    ]
    known.sort()
    for rank, (_, index) in enumerate(known, start=1):
        profile = actions[-index].profile
        if profile.powers:
            rest = 1.0 - profile.power(equal)
            weights[-index] = rank * (1.0 - (1.0 - 1.0 / rank) ** (1.0 / rest)) ** rest
    return [weight * action.weight for weight, action in zip(weights, actions, strict=True)]
