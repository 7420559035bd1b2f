"""Allotment of units among malleable actions."""

from __future__ import annotations

from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from domain.elasticity import Elasticity, parse_elasticity
from domain.resources import MILLI
from scheduler.core.policies.group import ResizeCandidate
from scheduler.core.policies.malleable import _weights, distribute_units
from scheduler.core.policies.profile import Profile, profile_of
from tests.tiers import by_tier

PERFECT = Elasticity(amdahl=1.0)


def counts(*cores: int) -> tuple[int, ...]:
    return tuple(core * MILLI for core in cores)


def square_roots(widest: int) -> Profile:
    """Return a profile with speeds m^½."""
    table = {str(m): m**-0.5 for m in range(1, widest + 1)}
    return profile_of(counts(*range(1, widest + 1)), parse_elasticity(table))


def cores(shares: list[ResizeCandidate], total: int) -> list[int]:
    return [width // MILLI for width in distribute_units(shares, total * MILLI)]


@pytest.mark.parametrize("order", [1, -1], ids=["shorter first", "longer first"])
def test_two_actions_are_shared_out_to_as_hesrpt_has_it(order):
    """p = ½, two actions: of 400 cores the longer one has (1/2)^2, whatever they have left."""
    shares = [ResizeCandidate(square_roots(400), 1.0), ResizeCandidate(square_roots(400), 7.0)][
        ::order
    ]

    assert cores(shares, 400) == pytest.approx([300, 100][::order], abs=1)


def test_the_shortest_goes_first_where_units_add_up_without_loss():
    profile = profile_of(counts(*range(1, 9)), PERFECT)

    assert cores(
        [
            ResizeCandidate(profile, 30.0),
            ResizeCandidate(profile, 10.0),
            ResizeCandidate(profile, 20.0),
        ],
        12,
    ) == [
        1,
        8,
        3,
    ]


def test_actions_of_unknown_remaining_duration_are_equal():
    profile = profile_of(counts(*range(1, 9)), Elasticity(amdahl=0.9))

    assert cores([ResizeCandidate(profile, None)] * 3, 9) == [3, 3, 3]


def test_counts_that_gain_nothing_are_not_handed_out():
    profile = profile_of(counts(1, 2, 3, 8), parse_elasticity({"1": 1, "2": 1, "3": 0.6, "8": 0.1}))

    assert cores([ResizeCandidate(profile, 1.0)], 8) == [2]


def test_a_step_that_gains_nothing_does_not_hide_a_later_one_that_does():
    profile = profile_of(counts(1, 2, 4), parse_elasticity({"1": 1, "2": 0.5, "4": 0.9}))

    assert cores([ResizeCandidate(profile, 1.0)], 4) == [4]


def test_a_count_that_does_not_fit_is_passed_over():
    profile = profile_of(counts(1, 4), PERFECT)

    assert cores([ResizeCandidate(profile, 1.0), ResizeCandidate(profile, 2.0)], 6) == [4, 1]


profiles = st.builds(
    lambda some, p: profile_of(counts(*sorted(some)), Elasticity(amdahl=p)),
    st.sets(st.integers(1, 12), min_size=1, max_size=5),
    st.floats(0.0, 1.0),
)
shares_of = st.lists(
    st.builds(ResizeCandidate, profiles, st.none() | st.floats(0.0, 1e5)), min_size=1, max_size=6
)


@settings(max_examples=by_tier(25, 100, 1000), deadline=None, derandomize=True)
@given(shares_of, st.integers(0, 40))
def test_the_allotment_fits_and_leaves_nothing_that_an_action_could_use(shares, more):
    total = sum(share.profile.counts[0] for share in shares) + more * MILLI

    wide = distribute_units(shares, total)

    assert sum(wide) <= total
    for share, width in zip(shares, wide, strict=True):
        assert width in share.profile.counts
        wider = [count for count in share.profile.counts if count > width]
        assert not wider or wider[0] - width > total - sum(wide)


def one_step_after_the_other(shares, total, purses):
    """The plain twin: look at all next steps for each, and take the one that gains most."""
    weights = _weights(shares, total / len(shares))
    at, rest, over = [0] * len(shares), dict(purses), set()
    left = total - sum(share.profile.counts[0] for share in shares)
    while True:
        steps = [
            (-weights[i] * share.profile.gains[k], share.profile.counts[k], i)
            for i, (share, k) in enumerate(zip(shares, at, strict=True))
            if i not in over and k < len(share.profile.gains)
        ]
        if not steps or left <= 0:
            return [share.profile.counts[k] for share, k in zip(shares, at, strict=True)]
        _, count, i = min(steps)
        step = shares[i].profile.counts[at[i] + 1] - count
        if step > left or step > rest[shares[i].project]:
            over.add(i)
            continue
        at[i], left = at[i] + 1, left - step
        rest[shares[i].project] -= step


@settings(max_examples=by_tier(25, 100, 1000), deadline=None, derandomize=True)
@given(
    shares_of, st.integers(0, 40), st.lists(st.sampled_from("ab"), min_size=6, max_size=6),
    st.fixed_dictionaries({purse: st.integers(0, 20).map(MILLI.__mul__) for purse in "ab"}),
)  # fmt: skip
def test_limits_of_projects_limit_their_own_actions_alone(shares, more, owners, purses):
    shares = [share._replace(project=who) for share, who in zip(shares, owners, strict=False)]
    total = sum(share.profile.counts[0] for share in shares) + more * MILLI

    wide = distribute_units(shares, total, purses)

    assert wide == one_step_after_the_other(shares, total, purses)
    rest = dict(purses)
    for share, width in zip(shares, wide, strict=True):
        rest[share.project] -= width - share.profile.counts[0]
    assert min(rest.values()) >= 0
    for share, width in zip(shares, wide, strict=True):
        wider = [count for count in share.profile.counts if count > width]
        step = wider[0] - width if wider else 0
        assert not wider or step > total - sum(wide) or step > rest[share.project]


@settings(max_examples=by_tier(15, 60, 600), deadline=None, derandomize=True)
@given(st.lists(st.floats(1.0, 100.0), min_size=2, max_size=4, unique=True), st.floats(0.5, 0.99))
def test_of_equal_profiles_the_one_with_less_left_is_never_narrower(left, amdahl):
    profile = profile_of(counts(*range(1, 9)), Elasticity(amdahl=amdahl))

    wide = distribute_units([ResizeCandidate(profile, each) for each in left], 16 * MILLI)

    for (a, wide_a), (b, wide_b) in product(zip(left, wide, strict=True), repeat=2):
        assert a >= b or wide_a >= wide_b
