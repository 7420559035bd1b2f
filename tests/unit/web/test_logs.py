"""Logs say the same to people and to machines, and name actions in a field of their own."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import uvicorn

from domain.action import Outcome, Timing
from domain.decisions import AssignRollout, Decision, Finish, FinishRollout, Grant
from domain.events import Event
from domain.ids import ActionId
from domain.rollout_events import BackendJudged, RolloutWorkerLost
from domain.rollouts import Rollout, RolloutId, RolloutOutcome, RolloutResult
from scheduler.runtime.loop import action_log
from tangram_web.lib.logs import logging_config


@pytest.fixture
def speak(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Configure logging for the test, and restore the former configuration."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    of_actions = action_log.log.level

    def configure(form: str, *, actions: bool = False) -> Any:
        logging.config.dictConfig(logging_config(form, "INFO", actions=actions))
        return lambda: capsys.readouterr().err.splitlines()

    yield configure
    root.handlers[:] = before
    root.setLevel(level)
    action_log.log.setLevel(of_actions)


def finish(outcome: Outcome) -> Finish:
    timing = Timing(0.0, 0.0, 1.0, 1.0)
    return Finish(ActionId("act_1"), "alpha", "tests", outcome, timing, trajectory="t1", node="n1")


def test_json_lines_have_ids_as_fields(speak: Any) -> None:
    lines = speak("json")
    action_log.record([], [finish(Outcome.UNKNOWN)])
    reported = json.loads(lines()[0])
    assert reported["event"] == "finished"
    assert (reported["action_id"], reported["trajectory"], reported["node"]) == (
        "act_1",
        "t1",
        "n1",
    )
    assert (reported["level"], reported["logger"]) == ("warning", "tangram.actions")
    assert datetime.fromisoformat(reported["at"]).tzinfo is not None
    assert reported["pid"] > 0


def test_lines_for_people_show_the_same_fields(speak: Any) -> None:
    lines = speak("text")
    action_log.record([], [finish(Outcome.UNKNOWN)])
    assert "WARNING tangram.actions finished" in (line := lines()[0])
    assert "action_id=act_1" in line
    assert "outcome=unknown" in line


def test_steps_are_logged_only_on_request(speak: Any) -> None:
    decisions: list[Decision] = [Grant(ActionId("act_1"), "n1", ()), finish(Outcome.COMPLETED)]
    lines = speak("json")
    action_log.record([], decisions)
    assert lines() == []
    lines = speak("json", actions=True)
    action_log.record([], decisions)
    assert [json.loads(line)["event"] for line in lines()] == ["granted", "finished"]


def test_requests_are_not_logged_after_uvicorn_was_started_without_an_access_log(
    speak: Any,
) -> None:
    uvicorn.Config(speak, access_log=False)
    speak("text")  # as Django's settings do, once uvicorn has read its own options
    assert not logging.getLogger("uvicorn.access").hasHandlers()
    assert logging.getLogger("uvicorn.error").hasHandlers()


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_brings_its_trace(speak: Any, form: str) -> None:
    lines = speak(form)
    try:
        raise RuntimeError("out of luck")
    except RuntimeError:
        logging.getLogger("somewhere").exception("it %s", "broke")
    reported = "\n".join(lines())
    assert "it broke" in reported
    assert "RuntimeError: out of luck" in reported


def rollout_end(outcome: RolloutOutcome) -> FinishRollout:
    result = RolloutResult(outcome, reason="10 workers were lost")
    return FinishRollout(rollout_id=ROLLOUT.id, project="p", task="t", result=result)


ROLLOUT = Rollout(id=RolloutId("rol_1"), project="p", task="t", handler="math")


def test_rollouts_that_fail_by_the_fault_of_tangram_are_always_logged(speak: Any) -> None:
    lines = speak("json")
    action_log.record([], [rollout_end(RolloutOutcome.FAILED)])
    assert lines() == []
    action_log.record([], [rollout_end(RolloutOutcome.INFRA_FAILED)])
    reported = json.loads(lines()[0])
    assert (reported["event"], reported["rollout"]) == ("rollout finished", "rol_1")
    assert (reported["level"], reported["reason"]) == ("warning", "10 workers were lost")


def test_the_loss_of_backends_and_rollout_workers_is_always_logged(speak: Any) -> None:
    lines = speak("json")
    events: list[Event] = [
        BackendJudged(pool="policy", backend="b1", unhealthy="it does not answer"),
        BackendJudged(pool="policy", backend="b1"),
        RolloutWorkerLost(worker="w1", incarnation=3),
    ]
    action_log.record(events, [])
    found = [json.loads(line) for line in lines()]
    assert [(each["level"], each["event"]) for each in found] == [
        ("warning", "backend failed"),
        ("info", "backend works"),
        ("warning", "rollout worker lost"),
    ]
    assert (found[0]["backend"], found[0]["reason"]) == ("b1", "it does not answer")


def test_assignments_are_logged_only_on_request(speak: Any) -> None:
    decision = AssignRollout(ROLLOUT, "w1", 1, 2)
    lines = speak("json")
    action_log.record([], [decision])
    assert lines() == []
    lines = speak("json", actions=True)
    action_log.record([], [decision])
    assert json.loads(lines()[0])["worker"] == "w1"
