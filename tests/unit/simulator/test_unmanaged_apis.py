"""The baseline of trajectories that call APIs by themselves, on cases computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from domain.errors import InvalidRequest
from simulator.baselines.unmanaged import CallRules, Unmanaged
from simulator.cluster import Cluster
from simulator.work import ActionWork
from simulator.workloads.program import Act
from tests.builders import an_action
from tests.unit.simulator.scripts import Script, act, script

LIMITS = {"api:search": 1, "api:judge": 1}


def call(name: str, seconds: float, api: str = "api:search") -> Act:
    action = an_action(name, kind="call", cost={api: 1}, trajectory=f"t-{name}")
    return Act(action, ActionWork(seconds, key=api))


def played(workload: Script, **rules: Any) -> dict[str, Any]:
    """Return outcome, ACT and attempts of each action."""
    Unmanaged(workload, Cluster(apis=LIMITS), CallRules(**rules)).run()
    return {
        name: (finish.outcome.value, finish.timing.act_seconds, finish.attempts)
        for name, finish in workload.answers.items()
    }


def test_a_call_within_the_limit_is_answered():
    assert played(script([call("a", 2.0)])) == {"a": ("completed", 2.0, 1)}


def test_a_call_beyond_the_limit_is_refused_and_tried_again():
    """Refused at 0, again at 1.2; served at 3.4 (0.2 + 1, then 0.2 + 2), for 2 s."""
    ends = played(script([call("a", 3.0)], [call("b", 2.0)]))

    assert ends["b"] == ("completed", pytest.approx(5.4), 3)


def test_after_three_retries_a_call_is_given_up():
    """0.2 + 1, 0.2 + 2, 0.2 + 4, and refused once more."""
    ends = played(script([call("a", 100.0)], [call("b", 2.0)]))

    assert ends["b"] == ("infra_failed", pytest.approx(7.8), 4)


def test_a_service_of_ones_own_queues():
    ends = played(script([call("a", 3.0, "api:judge")], [call("b", 2.0, "api:judge")]))

    assert ends["b"] == ("completed", 5.0, 1)


@pytest.mark.parametrize("seconds", [(700.0, 1.0), (5.0, 700.0)], ids=["the one before", "itself"])
def test_no_call_waits_longer_than_ten_minutes(seconds):
    first, second = seconds
    ends = played(script([call("a", first, "api:judge")], [call("b", second, "api:judge")]))

    assert ends["a" if first > 600 else "b"][0] == "infra_failed"
    assert ends["b"][1] == pytest.approx(601.0 if first > 600 else 605.0)


def test_commands_are_refused():
    with pytest.raises(InvalidRequest, match="a call of one API"):
        played(script([act("a", 1.0)]))
