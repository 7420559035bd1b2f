"""Replay of trajectories: think, act, report, and clean up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tangram_client import AsyncClient
from tangram_client.replay.player import Session
from tangram_client.replay.report import Report, quantile
from tangram_client.replay.tally import ReplayTally
from tangram_client.testing import HOLD, FakeServer, Hold, Ran
from tangram_client.testing.state import Payload
from tangram_client.traces.burn import recorded_cost
from tangram_client.traces.recording import RecordedStep, Recording
from tangram_client.traces.submissions import ReplayPlan
from tests.unit.client.cli_runner import tangram


def ran_as_declared(payload: Payload) -> Ran:
    command = payload["exec"]["command"]
    return Ran(seconds=float(command[1]) if command[0] == "sleep" else int(command[-3]) / 100)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(run=ran_as_declared)


def a_session(
    server: FakeServer, *recordings: Recording, speed: float = 1.0, concurrency: int = 1
) -> Session:
    plan = ReplayPlan("replay", "run", speed, recorded_cost, reserve_memory=True)
    return Session(recordings, plan, concurrency, ReplayTally(), server.clock)


def a_recording(*steps: RecordedStep) -> Recording:
    return Recording("t", steps, 1024)


THINK_AND_ACT = a_recording(
    RecordedStep(0.0, 0.02, 0.1, "read"), RecordedStep(4.0, 2.0, 0.8, "test")
)


async def test_trajectory_thinks_acts_and_is_finished(
    server: FakeServer, aclient: AsyncClient
) -> None:
    began = server.clock.now()

    report = await a_session(server, THINK_AND_ACT).run(aclient)

    first, second = server.world.payloads.values()
    assert first["exec"]["command"] == ["sleep", "0.020"]
    assert (first["cost"], second["cost"]) == ({"cpu": 0.1}, {"cpu": 1})
    assert (second["step"], second["family"]) == (1, "test")
    assert second["environment"] == {"memory_bytes": 1024}
    assert server.clock.now() - began == pytest.approx(4.0 + 0.02 + 2.0)
    assert {t.state for t in server.world.trajectories.values()} == {"finished"}
    assert (report.actions, report.trajectories_done, report.clean) == (2, 1, True)


async def test_speed_divides_thinking_and_acting(server: FakeServer, aclient: AsyncClient) -> None:
    began = server.clock.now()

    await a_session(server, THINK_AND_ACT, speed=4.0).run(aclient)

    assert server.clock.now() - began == pytest.approx((4.0 + 2.0 + 0.02) / 4)


async def test_report_counts_core_seconds_granted_and_used(
    server: FakeServer, aclient: AsyncClient
) -> None:
    report = await a_session(server, a_recording(RecordedStep(0.0, 2.0, 0.8, ""))).run(aclient)

    assert report.cores == 8
    assert report.granted_core_seconds == pytest.approx(2.0)
    assert report.used_core_seconds == pytest.approx(1.6)
    assert report.granted_share == pytest.approx(2.0 / (8 * report.wall_seconds))


@pytest.mark.slow
async def test_five_hundred_trajectories_play_at_once(
    server: FakeServer, aclient: AsyncClient
) -> None:
    recordings = [a_recording(RecordedStep(0.0, 0.01, 0.1, ""))] * 500

    report = await a_session(server, *recordings, concurrency=500).run(aclient)

    assert (report.trajectories_done, report.actions) == (500, 500)
    assert len(server.executed) == len(set(server.executed)) == 500


async def test_action_that_can_never_fit_is_counted_and_the_rest_is_played(
    server: FakeServer, aclient: AsyncClient
) -> None:
    recording = a_recording(RecordedStep(0.0, 1.0, 20.0, ""), RecordedStep(0.0, 1.0, 0.1, ""))

    report = await a_session(server, recording).run(aclient)

    assert report.outcomes == {"refused": 1, "completed": 1}
    assert not report.clean


async def test_failing_server_ends_one_trajectory_and_is_reported(
    server: FakeServer, aclient: AsyncClient
) -> None:
    session = a_session(server, THINK_AND_ACT, THINK_AND_ACT)
    server.be_busy(status=500)
    report = await _without_status(session, aclient)

    assert (report.trajectories_done, report.trajectories_failed) == (1, 1)
    assert report.failures == {"try later": 1}


async def _without_status(session: Session, client: AsyncClient) -> Report:
    """Run with a status that is not asked for over the wire, so that faults meet actions."""

    async def status() -> dict[str, object]:
        return {}

    client.status = status  # type: ignore[method-assign]
    return await session.run(client)


async def test_stop_cancels_what_runs_and_finishes_the_trajectories(
    aclient: AsyncClient,
) -> None:
    server = FakeServer(run=lambda payload: HOLD)
    async with AsyncClient(
        server.url, server.token, transport=server.transport, clock=server.clock
    ) as client:
        session = a_session(server, *[THINK_AND_ACT] * 4, concurrency=3)
        playing = asyncio.create_task(session.run(client))
        while len(server.world.actions) < 3:
            await asyncio.sleep(0)
        playing.cancel()
        report = await playing

    assert (report.stopped, report.actions, report.abandoned) == (True, 0, 3)
    assert {view["outcome"] for view in server.world.actions.values()} == {"cancelled"}
    assert {t.state for t in server.world.trajectories.values()} == {"finished"}
    assert len(server.world.trajectories) == 3


def test_replay_command_plays_a_trace_and_reports(server: FakeServer, tmp_path: Path) -> None:
    step = {"think_s": 1.0, "dur_s": 0.5, "cpu_pct_mean": 80.0, "family": "test"}
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"id": "t1", "steps": [step, step]}))

    result = tangram(server, "replay", str(trace), "--trajectories", "3", "-o", "json")

    report = json.loads(result.stdout)
    assert result.exit_code == 0, result.stderr
    assert (report["trajectories_done"], report["outcomes"]) == (3, {"completed": 6})
    assert report["seconds"]["execution"]["p50"] == pytest.approx(0.5)
    assert "playing as replay-" in result.stderr


def test_replay_command_generates_without_a_trace(server: FakeServer) -> None:
    result = tangram(server, "replay", "--generate", "--trajectories", "2", "--cost-cpu", "1", "-q")

    assert result.exit_code == 0
    assert {payload["cost"]["cpu"] for payload in server.world.payloads.values()} == {1.0}
    for words in ("ACT", "queue", "overhead", "execution", "throughput", "granted", "used"):
        assert words in result.stdout
    assert result.stderr == ""


def test_replay_command_names_the_fault_of_a_trace(server: FakeServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("nonsense\n")

    result = tangram(server, "replay", str(trace))

    assert result.exit_code == 2
    assert "trace.jsonl:1: not JSON" in result.stderr


def test_replay_command_fails_when_actions_did(tmp_path: Path) -> None:
    server = FakeServer(run=lambda payload: Ran(outcome="infra_failed"))

    result = tangram(server, "replay", "--generate", "--trajectories", "1", "-q")

    assert result.exit_code == 1
    assert "infra_failed" in result.stdout


def test_replay_of_an_unreachable_server_ends_with_5(server: FakeServer) -> None:
    server.lose_requests(100)

    assert tangram(server, "replay", "--generate", "-q").exit_code == 5


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.75, 4.0), (0.95, 4.8), (1.0, 5.0)]
)
def test_a_quantile_is_between_its_neighbours(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0, 5.0], share) == pytest.approx(expected)


def test_quantile_of_one_value_is_that_value() -> None:
    assert quantile([7.0], 0.99) == 7.0


def test_quantile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        quantile([], 0.5)


def test_report_of_nothing_shows_dashes() -> None:
    report = Report.of(ReplayTally(), wall_seconds=0.0, cores=0.0)

    assert report.seconds["act"] is None
    assert report.granted_share is None
    assert Hold().state == "running"
