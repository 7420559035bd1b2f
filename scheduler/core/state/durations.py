"""Durations of actions: declared, else learned from completed actions (paper §4.1).

The estimator. For each (task, kind, family) a mean of normalised durations in which each further
observation weighs 1 / `DECAY` times the one before: after n of them the weights sum to
(1 − DECAYⁿ) / (1 − DECAY), 10 in the long run, so about the last ten matter. Normalised means T_ori:
an action with a profile that ran t seconds on m units counts as t · E(m) · m. Only completed actions
are observed. An unknown family takes `DEFAULT_SECONDS`.

Residual life. An action that outlives its prediction is expected to run for another `OVERDUE_SHARE` of
its time so far. (The mean residual life of a Pareto tail of index 5.) It is never zero, so a wake-up
set by it is always in the future.

The means follow from the journal and are part of the snapshot.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

from domain.action import Action
from domain.resources import MILLI
from scheduler.core.policies.choices import DEFAULT_SECONDS, Choices, elastic, rigid
from scheduler.core.policies.profile import Profile, profile_of
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State

OVERDUE_SHARE = 0.25
#: No action is expected to end sooner than this.
LEAST_SECONDS = 1e-3


def family_of(action: Action) -> str:
    """Return the name under which durations of ``action`` are learned."""
    return _family(action.project, action.task, action.kind, action.family)


@lru_cache(maxsize=4096)
def _family(project: str, task: str, kind: str, family: str | None) -> str:
    return f"{project}/{task} {kind} {family or ''}".rstrip()


def learn(state: State, live: LiveAction, execution_seconds: float) -> None:
    """Add one completed execution to the mean of its family."""
    family = family_of(live.action)
    seconds = worked(state, live) if live.resizes else execution_seconds * _speed(live)
    state.learned.add_duration(family, seconds)


def account(state: State, live: LiveAction) -> None:
    """Sum up the work and cost of ``live`` so far; it continues with other units."""
    live.worked_seconds = worked(state, live)
    live.key_milli_seconds = cost(state, live)
    live.accounted_at = state.now


def worked(state: State, live: LiveAction) -> float:
    """Return the seconds of T_ori that ``live`` has completed."""
    return live.worked_seconds + _speed(live) * _since(state, live)


def cost(state: State, live: LiveAction) -> float:
    """Return the milli-unit seconds of its key resource that ``live`` has held."""
    key = live.key_resource
    amount = sum(each.amount for each in live.allocations if each.resource == key)
    return live.key_milli_seconds + amount * _since(state, live)


def _since(state: State, live: LiveAction) -> float:
    """Return for how many seconds ``live`` has held its present units."""
    latest = live.granted_at
    for at in (live.started_at, live.accounted_at):
        if at is not None and (latest is None or at > latest):
            latest = at
    return 0.0 if latest is None else state.now - latest


def base_seconds(state: State, action: Action) -> float | None:
    """Return T_ori of ``action``: declared, else learned; None when nothing is known."""
    if action.duration_seconds is not None:
        return action.duration_seconds
    learned = state.learned.durations.get(family_of(action))
    return None if learned is None else max(LEAST_SECONDS, learned.mean_seconds)


def residual_seconds(state: State, live: LiveAction) -> float:
    """Return in how many seconds ``live``, which holds units, is expected to end; never 0."""
    since = live.started_at if live.started_at is not None else live.granted_at
    age = state.now - (state.now if since is None else since)
    base = base_seconds(state, live.action)
    left = (DEFAULT_SECONDS if base is None else base) - worked(state, live)
    return max(left / _speed(live), OVERDUE_SHARE * age, LEAST_SECONDS)


def left_seconds(state: State, live: LiveAction) -> float | None:
    """Return the remaining seconds of T_ori of ``live``; None when T_ori is unknown."""
    base = base_seconds(state, live.action)
    if base is None or live.granted_at is None:
        return base
    done = worked(state, live)
    return max(base - done, OVERDUE_SHARE * done)


def expected_seconds(state: State, live: LiveAction) -> float:
    """Return the expected seconds of a waiting action with the amounts it is admitted with."""
    if live.needs.key:
        return choices_of(state, live).smallest_seconds
    base = base_seconds(state, live.action)
    return DEFAULT_SECONDS if base is None else base


def choices_of(state: State, live: LiveAction) -> Choices:
    """Return the counts of its key resource that a waiting action may get, with their durations."""
    action = live.action
    counts, least = action.cost[live.needs.key], live.needs.key_amount
    if counts[0] < least:  # the policy admits at no less
        counts = counts[bisect_left(counts, least) :]
    cached = state.learned.choices.get(action.id)
    if cached is not None and cached.smallest == counts[0]:
        return cached
    base = base_seconds(state, action)
    if action.elasticity is None or base is None:
        return rigid(counts[0], DEFAULT_SECONDS if base is None else base)
    choices = elastic(counts, base, action.elasticity)
    if action.duration_seconds is not None:  # a learned duration may change
        state.learned.choices[action.id] = choices
    return choices


def speedup_of(state: State, live: LiveAction) -> Profile:
    """Return the profile of a malleable action over the counts of its key resource."""
    action, profiles = live.action, state.learned.profiles
    profile = profiles.get(action.id)
    if profile is None:
        counts = action.cost[live.needs.key]
        profile = profiles[action.id] = profile_of(counts, action.elasticity)
    return profile


def _speed(live: LiveAction) -> float:
    """Return E(m) · m for the m units that ``live`` holds; 1 without a profile."""
    profile = live.action.elasticity
    if profile is None:
        return 1.0
    key = live.key_resource
    for allocation in live.allocations:
        if allocation.resource == key:
            return profile.efficiency(allocation.amount) * allocation.amount / MILLI
    return 1.0
