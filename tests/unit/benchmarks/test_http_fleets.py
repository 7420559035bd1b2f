"""Batches over HTTP: profiles and fits have the times of the engine, and a batch of few trajectories takes the simulated time."""

from __future__ import annotations

import pytest

from benchmarks.fleets import http_fleets
from benchmarks.fleets.cases import FleetCase
from benchmarks.fleets.http_fleets import missed, profile_of
from benchmarks.fleets.second_engine import fitted
from domain.engine_profiles import check_profile
from managers.llm.fake.engine_spec import MODELLED
from placement.profiles import ProfiledTimes
from simulator.options import RECORDINGS
from simulator.traces import make_recordings
from simulator.workloads.trajectories import RecordedAgents


def test_a_profile_of_the_modelled_engine_has_its_times_at_any_pace() -> None:
    spec = MODELLED["14B"]
    profile = profile_of(spec, (2, 1, 2), speed=4.0)
    check_profile(profile)
    times = ProfiledTimes(profile)

    assert times.degrees == (1, 2)
    assert times.token_seconds(2, 8, 2048) == pytest.approx(spec.token_seconds(2, 8, 2048) / 4)
    assert times.prefill_seconds(1, 8192) == pytest.approx(spec.prefill_seconds(1, 8192) / 4)


def test_an_engine_is_fitted_to_measured_times() -> None:
    spec = MODELLED["8B"]
    [measured] = profile_of(spec, (1,)).degrees
    found = fitted(measured)

    for batch, context in ((1, 0), (6, 3_000), (64, 8_192)):
        expected = spec.token_seconds(1, batch, context)
        assert found.token_seconds(1, batch, context) == pytest.approx(expected, rel=0.02)
    assert found.prefill_seconds(1, 5_000) == pytest.approx(spec.prefill_seconds(1, 5_000))
    assert found.prefill_seconds(1, 0) == 0.0
    assert found.kv_tokens(1) == spec.kv_tokens(1)


def test_makespans_that_are_off_and_lost_tokens_miss_the_goal() -> None:
    simulated = {"makespan": 100.0, "tokens": 7}
    found = {
        "simulated": simulated,
        "direct": {"makespan_off": 0.09, "tokens": 7},
        "router": {"makespan_off": -0.11, "tokens": 6},
    }

    assert missed(found) == [
        "the makespan of router is -11.0% off, goal ±10%",
        "router sampled 6 tokens, the simulation 7",
    ]


@pytest.mark.slow
async def test_a_batch_with_placement_in_the_process_takes_about_its_simulated_time() -> None:
    setting = FleetCase("hedged", (1, 1), slots=2, cache_share=1.0).setting
    batch = RecordedAgents(
        make_recordings(RECORDINGS, 0), 6, 0, token_rate=10.0, tool_ratio=0.2
    ).trajectories()

    expected = http_fleets.simulated(setting, batch)
    found = await http_fleets.direct(setting, batch, 40.0)

    assert found["tokens"] == expected.tokens
    # Slower where the machine is busy, and hardly ever quicker.
    assert found["makespan"] > 0.9 * expected.makespan
