"""A fold is chosen only where the last trajectories end sooner on a wide worker, with wake and prefill counted."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from placement.facts import Prediction, TrajectoryFacts, WorkerFacts
from placement.fold import LeftOver, WideSite, estimated, folds
from placement.profiles import ProfiledTimes


def a_degree(degree, pace):
    """Return times that grow by 1 ms with each further sequence; 10,000 tokens of prefill a second and GPU."""
    return DegreeProfile(
        degree=degree,
        batches=(1, 101),
        contexts=(0,),
        token_seconds=((pace,), (pace + 0.1,)),
        prefill=((10_000 * degree, 1.0),),
        kv_tokens=10**9,
    )


TIMES = ProfiledTimes(
    EngineProfile(
        degrees=(a_degree(1, 0.020), a_degree(4, 0.008)), transfer_tokens_per_second=100_000
    )
)
NARROW = tuple(WorkerFacts(number, slots=100) for number in (1, 2, 3, 4))
WIDE = WorkerFacts(9, slots=400, degree=4, usable=False)
SITE = WideSite(WIDE, NARROW, wake_seconds=5.0)


def left(key, worker, tokens, tool_seconds=0.0, context=0, busy=0.0, **fields):
    facts = TrajectoryFacts(
        key,
        order=0,
        worker=worker,
        context_tokens=context,
        prediction=Prediction(tokens, tool_seconds),
        **fields,
    )
    return LeftOver(facts, busy)


def test_one_long_trajectory_goes_on_at_the_wide_worker():
    (fold,) = folds([left("a", 2, 2000)], [SITE], TIMES)

    assert (fold.wide, fold.sleeping, fold.trajectories) == (9, (1, 2, 3, 4), ("a",))
    assert fold.stay_seconds == pytest.approx(2000 * 0.020)
    assert fold.fold_seconds == pytest.approx(5 + 2000 * 0.008)
    assert fold.gain_seconds == pytest.approx(19.0)


def test_a_wake_that_takes_longer_than_the_gain_folds_nothing():
    some = [left("a", 2, 2000)]

    assert folds(some, [replace(SITE, wake_seconds=23.9)], TIMES)
    assert folds(some, [replace(SITE, wake_seconds=24.1)], TIMES) == []


def test_the_prefill_of_every_context_counts():
    some = [left("a", 1, 2000, context=400_000), left("b", 2, 100, context=400_000)]

    found = estimated(some, SITE, TIMES)
    assert found is not None

    # Ten seconds each at 40,000 tokens a second, one after the other.
    assert found.fold_seconds == pytest.approx(5 + 2 * 10 + 100 * 0.009 + 1900 * 0.008, rel=0.01)
    assert folds(some, [SITE], TIMES) == []


def test_a_shared_store_of_caches_spares_the_prefill():
    some = [left("a", 1, 2000, context=400_000), left("b", 2, 100, context=400_000)]

    (fold,) = folds(some, [SITE], TIMES, shared_store=True)

    assert fold.fold_seconds == pytest.approx(5 + 2 * 4 + 100 * 0.009 + 1900 * 0.008, rel=0.01)


def test_many_trajectories_stay_where_they_are():
    some = [left(f"t{number}", 1 + number % 4, 2000) for number in range(200)]

    assert folds(some, [SITE], TIMES) == []


def test_tools_take_as_long_anywhere():
    found = estimated([left("a", 1, 2000, tool_seconds=1000.0)], SITE, TIMES)
    assert found is not None

    assert found.gain_seconds == pytest.approx(19.0)


def test_a_fold_waits_for_the_generation_that_runs():
    found = estimated([left("a", 1, 2000, busy=20.0), left("b", 2, 100)], SITE, TIMES)
    assert found is not None

    # Until then 1,000 tokens are made where it is.
    assert found.fold_seconds == pytest.approx(20 + 5 + 100 * 0.009 + 900 * 0.008, rel=0.01)


def test_without_a_prediction_nothing_is_folded():
    unknown = left("a", 1, 2000)
    unknown = replace(unknown, facts=replace(unknown.facts, prediction=None))

    assert folds([unknown, left("b", 2, 2000)], [SITE], TIMES) == []


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
def test_a_prediction_that_is_none_folds_nothing(wrong):
    assert folds([left("a", 1, wrong)], [SITE], TIMES) == []
    assert folds([left("a", 1, 2000, tool_seconds=wrong)], [SITE], TIMES) == []


def test_a_pinned_trajectory_keeps_its_site():
    assert folds([left("a", 1, 2000, pinned=True)], [SITE], TIMES) == []


def test_a_wake_that_was_never_measured_folds_nothing():
    assert folds([left("a", 1, 2000)], [replace(SITE, wake_seconds=None)], TIMES) == []


def test_a_site_without_trajectories_or_without_all_its_gpus_folds_nothing():
    assert folds([left("a", 7, 2000)], [SITE], TIMES) == []
    assert folds([left("a", 1, 2000)], [replace(SITE, narrow=NARROW[:3])], TIMES) == []


def test_sites_with_a_common_worker_are_folded_once_the_best_first():
    other = WideSite(replace(WIDE, number=8), NARROW, wake_seconds=1.0)
    apart = WideSite(
        replace(WIDE, number=7),
        tuple(replace(each, number=each.number + 10) for each in NARROW),
        5.0,
    )

    found = folds([left("a", 1, 2000), left("b", 12, 1000)], [SITE, other, apart], TIMES)

    assert [fold.wide for fold in found] == [8, 7]


def test_a_gain_below_the_least_is_none():
    some = [left("a", 1, 2000)]

    assert folds(some, [SITE], TIMES, least_gain_seconds=18.9)
    assert folds(some, [SITE], TIMES, least_gain_seconds=19.1) == []


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_times_that_are_none_are_refused_by_name(wrong):
    some = [left("a", 1, 2000)]
    for refused_at, call in {
        "/wake_seconds": lambda: folds(some, [replace(SITE, wake_seconds=wrong)], TIMES),
        "/left/0/busy_seconds": lambda: folds([left("a", 1, 1, busy=wrong)], [SITE], TIMES),
        "/least_gain_seconds": lambda: folds(some, [SITE], TIMES, least_gain_seconds=wrong),
    }.items():
        with pytest.raises(InvalidRequest, match="give") as refused:
            call()
        assert refused.value.pointer == refused_at
