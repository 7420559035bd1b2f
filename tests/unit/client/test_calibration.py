"""`calibrate` plays its probes, and stores what each action took."""

from __future__ import annotations

from pathlib import Path

import pytest

from tangram_client.testing import FakeServer, Ran
from tangram_client.testing.state import Payload
from tangram_client.traces.calibration import FILE, PROBES, MachineIdentity, read_calibration
from tests.unit.client.cli_runner import tangram


def ran_with_a_cost(payload: Payload) -> Ran:
    command = payload["exec"]["command"]
    asked = float(command[1]) if command[0] == "sleep" else int(command[-3]) / 100
    return Ran(seconds=asked + 0.01)


@pytest.mark.slow
def test_every_action_of_every_round_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANGRAM_HOME", str(tmp_path))
    result = tangram(FakeServer(run=ran_with_a_cost), "calibrate", "--rounds", "2")

    found = read_calibration(tmp_path / FILE)
    assert result.exit_code == 0, result.stderr
    assert found is not None
    assert f"stored in {tmp_path / FILE}" in result.stdout
    assert (found.rounds, found.machine) == ([0, 1], MachineIdentity.this())
    for probe in PROBES:
        for run in found.of(probe.name):
            assert len(run.actions) == sum(len(each.steps) for each in probe.recordings)
            assert sum(each.first for each in run.actions) == len(probe.recordings)
            for each in run.actions:
                assert each.execution_seconds - each.asked_seconds == pytest.approx(0.01)


def test_calibration_fails_when_a_command_did(tmp_path: Path) -> None:
    server = FakeServer(run=lambda payload: Ran(outcome="infra_failed"))

    result = tangram(server, "calibrate", "-q", "--out", str(tmp_path / "none.json"))

    assert result.exit_code == 1
    assert "a command of the calibration ended as infra_failed" in result.stderr
    assert not (tmp_path / "none.json").exists()


def test_calibration_needs_a_running_tangram(tmp_path: Path) -> None:
    server = FakeServer()
    server.lose_requests(100)

    result = tangram(server, "calibrate", "-q", "--out", str(tmp_path / "none.json"))

    assert result.exit_code == 5
