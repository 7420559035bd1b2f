"""The gate of CPU time: what it compares, when it fails, and that a busy moment alone fails nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks.action_gate import Verdict, decide, judge, judge_commands


def row(web: float, redis: float = 100.0, **commands: float) -> Mapping[str, Any]:
    """Return the row of a load, in microseconds and calls an action."""
    return {"cpu_us": {"web": web, "redis": redis}, "redis_commands": commands}


def a_growth_of(by: float) -> Verdict:
    return Verdict({"64 clients": by}, [f"{by:+.1%}"])


def test_each_round_is_judged_by_the_ratio_of_its_two_sides():
    # The machine is slow in the third round, and the fourth one is disturbed on one side.
    pairs = [(300.0, 340.0), (310.0, 351.0), (900.0, 1000.0), (300.0, 900.0), (300.0, 340.0)]
    rounds = [(row(then), row(now)) for then, now in pairs]

    assert judge({64: rounds}).growth == {"64 clients": 0.1}


@pytest.mark.parametrize(
    ("web", "failed", "warns"),
    [(300, False, False), (335, False, False), (345, False, True), (385, True, False)],
)
def test_it_warns_above_a_tenth_and_fails_above_a_fifth(web: float, failed: bool, warns: bool):
    verdict = judge({1: [(row(300.0), row(300.0))], 64: [(row(300.0), row(web))]})

    assert (verdict.failed, verdict.warns) == (failed, warns)


def test_it_names_the_processes_and_commands_that_grew():
    verdict = judge({1: [(row(300.0, xadd=4.0, get=1.01), row(355.0, 95.0, xadd=5.0, get=1.0))]})

    assert verdict.lines == [
        "1 clients: +12.5% CPU time an action, 400 -> 450 µs; web +55, redis -5",
        "1 clients: Redis commands an action: xadd +1.00",
    ]


def test_a_process_that_the_reference_lacks_counts():
    now = {"cpu_us": {"web": 300.0, "redis": 100.0, "another": 100.0}, "redis_commands": {}}

    assert judge({64: [(row(300.0), now)]}).growth == {"64 clients": 0.25}


@pytest.mark.parametrize(("xadd", "failed"), [(4.0, False), (6.0, True)])
def test_a_clone_without_the_reference_compares_redis_commands(xadd: float, failed: bool):
    verdict = judge_commands({"xadd": 4.0, "get": 2.0}, {"xadd": xadd, "get": 2.0})

    assert verdict.failed is failed


@pytest.mark.parametrize(("second", "failed"), [(0.03, False), (0.3, True)])
def test_a_first_verdict_that_fails_is_measured_once_more(second: float, failed: bool):
    measured: Iterator[Verdict] = iter([a_growth_of(0.4), a_growth_of(second)])

    assert decide(lambda: next(measured)).failed is failed
    assert list(measured) == []


def test_a_first_verdict_that_passes_is_final():
    assert not decide(iter([a_growth_of(0.01)]).__next__).failed
