"""Rollouts are counted by project and outcome, with their tokens and the times of their stages."""

from __future__ import annotations

from domain.decisions import AssignRollout, FinishRollout
from domain.rollout_events import RolloutsSubmitted
from domain.rollouts import RolloutOutcome, RolloutResult, Stage, StageTimes
from tangram_web.live.frames import FrameFold
from tangram_web.metrics.exposition import families
from tangram_web.metrics.reading import SystemReading
from tangram_web.metrics.totals import Totals
from tests.unit.core.rollout_scenario import a_rollout
from tests.unit.live.journal import Journal


def counted() -> Totals:
    """Return the totals of two rollouts, of which one had a second worker and ended."""
    journal, one, two = Journal(), a_rollout(1, project="p"), a_rollout(2, project="p")
    journal.write([RolloutsSubmitted(rollouts=(one, two))], [AssignRollout(one, "w1", 1, 1)])
    result = RolloutResult(
        RolloutOutcome.TIMEOUT, prompt_tokens=70, response_tokens=40,
        times=(StageTimes(Stage.RUN, 2.0, 30.0, 2),),
    )  # fmt: skip
    end = FinishRollout(rollout_id=one.id, project="p", task="t", result=result)
    journal.write([], [AssignRollout(one, "w2", 1, 2), end])
    totals = Totals()
    fold = FrameFold(totals)
    for entry in journal.entries:
        fold.fold(entry)
    return totals


def test_rollouts_are_counted_by_outcome_with_tokens_and_times():
    totals = counted()

    assert totals.rollouts_submitted == {("p",): 2}
    assert totals.rollouts_finished == {("p", "timeout"): 1}
    assert totals.rollouts_reassigned == {("p",): 1}
    assert totals.rollout_tokens == {("p", "prompt"): 70, ("p", "response"): 40}
    assert {key: times.sum_seconds for key, times in totals.stages.items()} == {
        ("run", "queued"): 2.0,
        ("run", "active"): 30.0,
    }


def test_outcomes_that_did_not_occur_yet_are_exposed_as_0():
    system = SystemReading("l", 1, 0.1, 0, {}, 0, [])
    found = {family.name: family for family in families(counted(), system, {}, {}, {}, [])}

    ends = {each.labels["outcome"]: each.value for each in found["tangram_rollouts"].samples}
    assert ends == {
        "completed": 0, "failed": 0, "timeout": 1, "cancelled": 0, "infra_failed": 0,
    }  # fmt: skip
    assert {each.value for each in found["tangram_rollouts_submitted"].samples} == {2}
