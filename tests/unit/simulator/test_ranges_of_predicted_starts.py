"""Ranges of predicted starts hold as often as they say, over a replay of a journal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from domain.ids import ActionId
from scheduler.core.advice.calibration import FEWEST, HELD, StartCalibration
from scheduler.core.machine import Machine
from simulator.cli import verbs
from tests.unit.simulator.scripts import a_simulation, act, script

#: More trajectories than cores: actions wait, in queues of changing length.
CROWDED = ("--batch", "96", "--nodes", "2", "--cores", "8", "--group", "4")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["paper", "malleable"])
def test_nine_of_ten_ranges_hold(policy: str, tmp_path: Path) -> None:
    journal = str(tmp_path / "journal.jsonl")
    sim = CliRunner()
    played = sim.invoke(verbs, ["run", *CROWDED, "--policy", policy, "-q", "--journal", journal])
    assert played.exit_code == 0

    said = sim.invoke(verbs, ["decisions", journal, "--starts"]).stdout

    found = re.findall(r": ([\d.]+)% of (\d+) ranges held", said)
    ranges = sum(int(count) for _, count in found)
    held = sum(float(rate) / 100 * int(count) for rate, count in found)
    assert ranges >= 200, said
    assert HELD - 0.04 <= held / ranges <= HELD + 0.06, said


def calibrated(waiting: int) -> tuple[StartCalibration, list[object]]:
    """Play one core with ``waiting`` commands of 10 s each; return the range of the last at each pass."""
    calibration = StartCalibration()
    ranges: list[object] = []

    def watch(machine: Machine, _: object, decisions: list[object]) -> None:
        calibration.observe(machine.state, decisions)  # type: ignore[arg-type]
        status = machine.explain(ActionId(f"a{waiting - 1}"))
        if status is not None and status.waiting is not None:
            ranges.append(calibration.range_of(status, machine.state.now))

    commands = [[act(f"a{number}", 10.0)] for number in range(waiting)]
    a_simulation(script(*commands), cores=1, watch=watch).run()
    return calibration, ranges


def test_a_start_is_unknown_until_ranges_were_judged() -> None:
    calibration, ranges = calibrated(FEWEST)

    assert ranges
    assert set(ranges) == {None}
    assert all(count < FEWEST for _, count in calibration.hit_rates().values())
