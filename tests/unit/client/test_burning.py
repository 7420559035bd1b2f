"""A recorded step as a command, and what it asks for."""

from __future__ import annotations

import subprocess

import pytest

from tangram_client.traces.burn import BURN, burn_command, burnt_seconds, recorded_cost


def test_short_step_is_only_slept() -> None:
    assert burn_command(0.014, 0.08) == ["sleep", "0.014"]
    assert burnt_seconds(0.014, 0.08) == 0.0


def test_longer_step_burns_its_share() -> None:
    assert burn_command(1.5, 0.08) == ["sh", "-c", BURN, "burn", "150", "8", "1"]
    assert burnt_seconds(1.5, 0.08) == pytest.approx(0.12)


def test_share_above_one_core_is_spread_over_loops() -> None:
    assert burn_command(2.0, 1.65)[-3:] == ["200", "82", "2"]


@pytest.mark.parametrize(
    ("cores", "cost"),
    [(0.0, 0.1), (0.03, 0.1), (0.1, 0.1), (0.11, 0.2), (0.34, 0.4), (0.5, 0.5), (0.51, 1),
     (1.0, 1), (1.65, 2)],
)  # fmt: skip
def test_light_steps_ask_for_tenths_and_bursts_for_whole_cores(cores: float, cost: float) -> None:
    assert recorded_cost(cores) == cost


def test_command_runs_in_a_plain_shell_and_burns_something() -> None:
    """The node's shell may be any: only what POSIX has, and /proc."""
    script = f"{BURN}\nusage; echo $used"

    done = subprocess.run(
        ["sh", "-euc", script, "burn", "6", "100", "1"], capture_output=True, text=True, check=True
    )

    assert int(done.stdout) >= 6
    assert done.stderr == ""
