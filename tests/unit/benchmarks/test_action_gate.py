"""The gate of CPU time: what it compares, when it fails, and that a busy moment alone fails nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.action_gate import Costs, costs_of, decide, judge


def costs(web: float, redis: float = 100.0, **commands: float) -> Costs:
    """Return costs of one and of 64 clients, in calibrations."""
    each = {"cpu": {"web": web, "redis": redis}, "commands": commands}
    return {"1": each, "64": each}


def test_costs_are_medians_in_units_of_the_calibration_beside_each_round():
    def row(web: float) -> dict[str, dict[str, float]]:
        return {"cpu_us": {"web": web}, "redis_commands": {"xadd": 4.0}}

    # The third round is slow and so is its calibration; the fifth one is disturbed.
    each = ((10.0, 1.0), (11.0, 1.0), (30.0, 3.0), (9.0, 1.0), (90.0, 1.0))
    rounds: list[tuple[dict[str, Any], float]] = [(row(web), unit) for web, unit in each]

    assert costs_of({"1": rounds}) == {"1": {"cpu": {"web": 10.0}, "commands": {"xadd": 4.0}}}


@pytest.mark.parametrize(
    ("web", "failed", "warns"),
    [(300, False, False), (335, False, False), (345, False, True), (385, True, False)],
)
def test_it_warns_above_a_tenth_and_fails_above_a_fifth(web: float, failed: bool, warns: bool):
    verdict = judge(costs(web), costs(300.0))

    assert (verdict.failed, verdict.warns) == (failed, warns)


def test_it_names_the_processes_and_commands_that_grew():
    verdict = judge(costs(360.0, 95.0, xadd=5.0, get=1.0), costs(300.0, xadd=4.0, get=1.01))

    assert verdict.lines[0].endswith("400 -> 455 calibrations; web +60.0, redis -5.0")
    assert verdict.lines[1] == "1 clients: Redis commands an action: xadd +1.00"


def test_a_process_that_the_reference_lacks_counts():
    now = costs(300.0)
    now["64"] = {"cpu": {**now["64"]["cpu"], "another": 100.0}, "commands": {}}

    assert judge(now, costs(300.0)).growth == {"1": 0.0, "64": 0.25}


@pytest.mark.parametrize(("busy", "growth"), [(1.1, {"1": 1.0, "64": 0.0}), (2.0, {"64": 0.0})])
def test_one_client_is_not_judged_on_a_busy_machine(busy: float, growth: dict[str, float]):
    now = costs(300.0)
    now["1"] = {"cpu": {"web": 800.0}, "commands": {}, "machine": {"busy": busy}}

    assert judge(now, costs(300.0)).growth == growth


@pytest.mark.parametrize(("second", "failed"), [(310.0, False), (400.0, True)])
def test_a_first_verdict_that_fails_is_measured_once_more(second: float, failed: bool):
    measured: Iterator[Costs] = iter([costs(450.0), costs(second)])

    assert decide(lambda: next(measured), costs(300.0)).failed is failed
    assert list(measured) == []


def test_a_first_verdict_that_passes_is_final():
    assert not decide(iter([costs(301.0)]).__next__, costs(300.0)).failed


def test_nothing_is_judged_while_the_machine_changes_its_speed():
    then = costs(300.0)
    now = {
        clients: {"cpu": {"web": 800.0}, "commands": {}, "machine": {"swing": 1.3}}
        for clients in then
    }
    verdict = judge(now, then)
    assert (verdict.growth, verdict.failed) == ({}, False)
