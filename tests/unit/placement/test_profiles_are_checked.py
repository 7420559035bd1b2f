"""Profiles answer from their points, never fall, and refuse what is not measured by the name of the member."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from placement.profiles import ProfiledTimes, TimeGrid, grid_of


def a_degree(**fields):
    """Return a table of degree 1 with two batches and two contexts."""
    fields = {
        "degree": 1,
        "batches": (1, 8),
        "contexts": (0, 1000),
        "token_seconds": ((0.010, 0.012), (0.020, 0.030)),
        "prefill": ((1000, 0.1), (2000, 0.3)),
        "kv_tokens": 50_000,
        **fields,
    }
    return DegreeProfile(**fields)


def times(**fields):
    return ProfiledTimes(EngineProfile(degrees=(a_degree(**fields),)))


def test_times_are_exact_at_points_and_linear_between():
    found = times()

    assert found.token_seconds(1, 8, 1000) == 0.030
    assert found.token_seconds(1, 1, 500) == pytest.approx(0.011)
    assert found.token_seconds(1, 8, 500) == pytest.approx(0.025)
    assert found.prefill_seconds(1, 0) == 0
    assert found.prefill_seconds(1, 500) == pytest.approx(0.05)
    assert found.prefill_seconds(1, 1500) == pytest.approx(0.2)


def test_times_rise_beyond_the_last_point_by_the_steepest_last_slope():
    found = times()

    assert found.token_seconds(1, 15, 1000) == pytest.approx(0.030 + 7 * (0.018 / 7))
    assert found.token_seconds(1, 8, 2000) == pytest.approx(0.030 + 0.010)
    assert found.prefill_seconds(1, 4000) == pytest.approx(0.3 + 2 * 0.2)


def test_a_table_with_one_context_holds_for_all():
    found = times(contexts=(4096,), token_seconds=((0.01,), (0.02,)))

    assert found.token_seconds(1, 1, 0) == found.token_seconds(1, 1, 10**6) == 0.01


def test_entries_that_fall_are_raised_and_reported():
    found = times(token_seconds=((0.010, 0.012), (0.009, 0.030)))

    assert found.token_seconds(1, 8, 0) == 0.010
    (raised,) = found.raised
    assert (raised.pointer, raised.entries, raised.of) == ("/profile/degrees/0/token_seconds", 1, 4)
    assert raised.most == pytest.approx(10 / 9)
    assert "11.1%" in raised.text


def test_a_prefill_that_falls_is_raised_and_reported():
    found = times(prefill=((1000, 0.2), (2000, 0.1)))

    assert found.prefill_seconds(1, 2000) == 0.2
    assert [raised.pointer for raised in found.raised] == ["/profile/degrees/0/prefill"]


def test_a_rising_profile_raises_nothing():
    assert times().raised == []


@pytest.mark.parametrize(
    ("fields", "pointer", "cure"),
    [
        ({"degree": 3}, "degree", "one of 1, 2, 4, 8"),
        ({"batches": ()}, "batches", "at least one"),
        ({"batches": (2, 8)}, "batches/0", "measure 1 first"),
        ({"batches": (1, 1)}, "batches/1", "sort the values"),
        ({"contexts": (0, -1)}, "contexts/1", "sort the values"),
        ({"contexts": (0, math.nan)}, "contexts/1", "sort the values"),
        ({"token_seconds": ((0.01, 0.02),)}, "token_seconds", "give one for each"),
        ({"token_seconds": ((0.01, 0.02), (0.03,))}, "token_seconds/1", "give one for each"),
        ({"token_seconds": ((0.01, math.nan), (0.03, 0.04))}, "token_seconds/0/1", "give seconds"),
        ({"token_seconds": ((0.01, 0.02), (-0.03, 0.04))}, "token_seconds/1/0", "give seconds"),
        ({"token_seconds": ((0.0, 0.02), (0.03, 0.04))}, "token_seconds/0/0", "above 0"),
        ({"token_seconds": ((0.01, math.inf), (0.03, 0.04))}, "token_seconds/0/1", "give seconds"),
        ({"prefill": ()}, "prefill", "at least one point"),
        ({"prefill": ((0, 0.1),)}, "prefill/0", "below 1"),
        ({"prefill": ((10, math.nan),)}, "prefill/0", "give seconds"),
        ({"kv_tokens": math.nan}, "kv_tokens", "at least 1"),
        ({"kv_tokens": 0}, "kv_tokens", "at least 1"),
        ({"restart_seconds": -1.0}, "restart_seconds", "give seconds"),
        ({"wake_seconds": math.nan}, "wake_seconds", "give seconds"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_a_measurement_is_refused_by_name(fields, pointer, cure):
    with pytest.raises(InvalidRequest, match=cure) as refused:
        times(**fields)

    assert refused.value.pointer == f"/profile/degrees/0/{pointer}"


@pytest.mark.parametrize(
    ("profile", "pointer"),
    [
        (EngineProfile(degrees=()), "/profile/degrees"),
        (EngineProfile(degrees=(a_degree(), a_degree())), "/profile/degrees/1/degree"),
        (
            EngineProfile(degrees=(a_degree(),), transfer_tokens_per_second=math.nan),
            "/profile/transfer_tokens_per_second",
        ),
        (
            EngineProfile(degrees=(a_degree(),), transfer_latency_seconds=-1.0),
            "/profile/transfer_latency_seconds",
        ),
    ],
    ids=["empty", "twice", "rate", "latency"],
)
def test_a_profile_that_cannot_be_used_is_refused_by_name(profile, pointer):
    with pytest.raises(InvalidRequest) as refused:
        ProfiledTimes(profile)

    assert refused.value.pointer == pointer


def test_a_degree_that_is_not_measured_is_refused_when_it_is_asked_for():
    with pytest.raises(InvalidRequest, match="no degree 4, only 1: measure it"):
        times().token_seconds(4, 1, 0)


def test_without_a_rate_there_is_no_transfer():
    assert times().transfer_seconds(1) == math.inf
    with_rate = EngineProfile(
        degrees=(a_degree(),), transfer_tokens_per_second=1e5, transfer_latency_seconds=0.5
    )
    assert ProfiledTimes(with_rate).transfer_seconds(100_000) == 1.5


def test_a_profile_is_the_same_after_json():
    profile = EngineProfile(degrees=(a_degree(wake_seconds=3.0),), source="measured by hand")

    assert msgspec.json.decode(msgspec.json.encode(profile), type=EngineProfile) == profile


def test_a_member_that_a_profile_does_not_have_is_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown"):
        msgspec.json.decode(b'{"degrees": [], "token_second": 1}', type=EngineProfile)


positive = st.floats(1e-4, 1.0)
grids = st.lists(st.lists(positive, min_size=3, max_size=3), min_size=2, max_size=4)
points = st.floats(0, 5000)


def risen(rows):
    """Return a grid over 1, 11, 21, … sequences and contexts of 100, 1000 and 3000."""
    table = np.maximum.accumulate(np.maximum.accumulate(np.array(rows), axis=0), axis=1)
    return TimeGrid([1 + 10 * row for row in range(len(rows))], [100, 1000, 3000], table)


@given(grids, points, points, points, points)
def test_more_work_never_takes_less_time(rows, batch, context, more_batch, more_context):
    grid = risen(rows)

    less = grid.at(batch, context)

    assert less <= grid.at(batch + more_batch, context + more_context) * (1 + 1e-12)


@given(grids, st.lists(st.tuples(points, points), min_size=1, max_size=9))
def test_many_points_are_looked_up_as_one_is(rows, some):
    grid = risen(rows)

    found = grid.over([batch for batch, _ in some], [context for _, context in some])

    assert found == pytest.approx([grid.at(*each) for each in some])


class Line:
    """Times that rise with batch and context, and fall once."""

    def prefill_seconds(self, degree, tokens):
        return 0.0

    def transfer_seconds(self, tokens):
        return 0.0

    def kv_tokens(self, degree):
        return 1.0

    def token_seconds(self, degree, batch, context_tokens):
        return 0.01 if batch == 4 else (batch + context_tokens / 1000) / 100 / degree


def test_times_of_any_kind_are_sampled_as_a_grid_that_never_falls():
    grid = grid_of(Line(), 2, most_batch=16, most_context=3000)

    assert grid.at(8, 2048) == pytest.approx((8 + 2.048) / 200)
    assert grid.at(4, 0) == grid.at(2, 0)
