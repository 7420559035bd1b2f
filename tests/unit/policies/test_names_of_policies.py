"""Policies by name, as pools are configured with them."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from scheduler.core.policies.registry import policy_named


@pytest.mark.parametrize(
    "name",
    [
        "paper",
        "paper(free restores)",
        "minimum",
        "fixed(4)",
        "balanced",
        "malleable",
        "makespan",
        "makespan(9)",
        "weighted",
    ],
)
def test_a_policy_says_the_name_it_was_asked_for_by(name):
    assert policy_named(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "Paper",
        "fixed",
        "fixed()",
        "fixed(0)",
        "fixed(-1)",
        "fixed(4",
        "makespan(101)",
        "fixed(k)",
        "paper(2)",
        "paper(free)",
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(
        InvalidRequest,
        match=r"known are balanced, fixed\(k\), makespan, makespan\(p\), malleable, minimum, paper, paper\(free restores\), weighted",
    ):
        policy_named(name)


@pytest.mark.parametrize(
    ("counts", "admitted"),
    [((1000, 2000, 8000), 2000), ((8000, 9000), 8000), ((1000, 4000), 4000), ((100,), 100)],
    ids=["largest up to it", "all are larger", "exactly it", "light"],
)
def test_fixed_admit_count_the_largest_count_up_to_its_own(counts, admitted):
    assert policy_named("fixed(4)").admit_count(counts) == admitted


@pytest.mark.parametrize("name", ["paper", "minimum", "balanced"])
def test_all_others_admit_at_the_smallest_count(name):
    assert policy_named(name).admit_count((2000, 4000)) == 2000
