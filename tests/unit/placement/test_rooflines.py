"""Rooflines of declared models have the directions that placement depends on, and say that they are modelled."""

from __future__ import annotations

import pytest

from domain.engine_profiles import MODELLED, DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from placement.profiles import ProfiledTimes
from placement.roofline import (
    H100,
    SHAPES,
    TransformerShape,
    declared_times,
    roofline,
    token_seconds,
)


@pytest.mark.parametrize("model", SHAPES)
def test_a_modelled_profile_is_valid_and_needs_no_correction(model):
    profile = roofline(model)
    times = ProfiledTimes(profile)

    assert times.raised == []
    assert times.degrees == (1, 2, 4, 8)
    assert profile.source.startswith("modelled: roofline of Qwen3-")
    assert profile.degrees[0].restart_seconds is profile.degrees[0].wake_seconds is None


def test_a_wider_worker_is_faster_per_token_and_slower_per_gpu():
    times = ProfiledTimes(roofline("14b"))
    seconds = [times.token_seconds(degree, 100, 4096) for degree in times.degrees]

    assert seconds == sorted(seconds, reverse=True)
    per_gpu = [1 / each / degree for each, degree in zip(seconds, times.degrees, strict=True)]
    assert per_gpu == sorted(per_gpu, reverse=True)


def test_one_sequence_on_one_gpu_reads_all_weights_for_each_token():
    shape = SHAPES["14b"]

    assert token_seconds(shape, H100, 1, 1, 0) == pytest.approx(29.6e9 / 2.5125e12)
    assert shape.cache_bytes == 163_840


def test_large_models_take_longer_and_leave_less_room():
    small, large = ProfiledTimes(roofline("8b")), ProfiledTimes(roofline("32b"))

    assert large.token_seconds(1, 8, 0) > 3 * small.token_seconds(1, 8, 0)
    assert large.kv_tokens(1) < small.kv_tokens(1) / 10
    assert large.prefill_seconds(1, 8192) > 3 * small.prefill_seconds(1, 8192)


def test_degrees_that_the_weights_do_not_fit_on_are_left_out():
    shape = TransformerShape("70b", 70e9, 80, 8192, 8, 128)

    assert [each.degree for each in roofline(shape).degrees] == [2, 4, 8]
    with pytest.raises(InvalidRequest, match="give a higher one"):
        roofline(shape, degrees=(1,))


def test_an_undeclared_model_is_refused_with_those_that_are_declared():
    with pytest.raises(InvalidRequest, match="8b, 14b, 32b"):
        roofline("9b")


def test_a_fleet_has_measured_times_or_those_of_a_declared_model():
    measured = EngineProfile(
        degrees=(DegreeProfile(1, (1,), (0,), ((0.5,),), ((1, 1.0),), kv_tokens=1000),)
    )

    assert tuple(SHAPES) == MODELLED
    assert declared_times(measured, "14b").token_seconds(1, 1, 0) == 0.5
    assert declared_times(None, "14b").profile == roofline("14b")
    assert declared_times(None).profile == roofline("8b")
