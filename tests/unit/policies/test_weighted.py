"""Weights of projects under policy `weighted`."""

from __future__ import annotations

import pytest

from domain.elasticity import Elasticity
from domain.limits import Share
from scheduler.core.policies.group import ResizeCandidate
from scheduler.core.policies.malleable import Malleable
from scheduler.core.policies.profile import profile_of
from scheduler.core.policies.weighted import LEAST_WEIGHT, Weighted

ROOT = Elasticity(amdahl=0.8)
COUNTS = tuple(range(1000, 9000, 1000))


def a_candidate(project: str, left_seconds: float = 10.0) -> ResizeCandidate:
    return ResizeCandidate(profile_of(COUNTS, ROOT), left_seconds, project)


def in_pool(**nominal: int) -> Weighted:
    return Weighted().in_pool({"cpu": {name: Share(n) for name, n in nominal.items()}})


def test_the_nominal_share_is_the_weight():
    policy = in_pool(big=8000, small=2000)

    assert [policy.weight(name) for name in ("big", "small", "other")] == [1.0, 0.25, LEAST_WEIGHT]
    assert policy.head_start("big") > policy.head_start("small") > policy.head_start("other") == 0.0


def test_units_go_to_the_heavier_of_equal_actions():
    big, small = in_pool(big=8000, small=1000).resize(
        [a_candidate("big"), a_candidate("small")], 8000
    )

    assert big > small


@pytest.mark.parametrize("shares", [{}, {"cpu": {}}, {"cpu": {"a": Share(0)}}])
def test_without_shares_it_decides_as_malleable(shares):
    policy = Weighted().in_pool(shares)
    both = [a_candidate("a", 5.0), a_candidate("b", 9.0)]

    assert policy.resize(both, 8000) == Malleable().resize(both, 8000)
    assert policy.head_start("a") == 0.0
