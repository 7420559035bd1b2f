"""Steps of trajectories are made of the journal: tokens of answers, and the tools until the next request."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from domain.action import Action, Outcome, Timing
from domain.codec import JournalEntry
from domain.decisions import Decision, Finish
from domain.events import ActionFinished, ActionSubmitted, Event, TrajectoryFinished
from domain.fleets import TokenUsage
from placement.features import FinishedTrajectory, TrajectoryStep
from scheduler.runtime.fleets import trajectory_steps
from scheduler.runtime.fleets.trajectory_steps import (
    StepEnded,
    StoredSteps,
    TrajectoryOver,
    TrajectorySteps,
    WentOn,
)
from tests.builders import a_generation, an_action


class FoldedJournal:
    """A reducer, and the entries that it gets one by one."""

    def __init__(self, first_seq: int = 1) -> None:
        self.steps = TrajectorySteps()
        self._seq = count(first_seq)
        self._names = count()

    def entry(self, at: float, *facts: Event | Decision) -> None:
        events = [each for each in facts if not isinstance(each, Finish)]
        decisions = [each for each in facts if isinstance(each, Finish)]
        self.steps.reduce(JournalEntry(next(self._seq), 1, at, 0.0, "0-1", events, decisions))  # type: ignore[arg-type]

    def generation(
        self, begins: float, ends: float, sampled: int, prompt: int = 100, **fields: object
    ) -> None:
        action = a_generation(f"g{next(self._names)}", "t1", group="p1", **fields)  # type: ignore[arg-type]
        self.entry(begins, ActionSubmitted(action=action))
        usage = TokenUsage(prompt, sampled) if sampled else None
        report = ActionFinished(
            action_id=action.id, node="", outcome=Outcome.COMPLETED, usage=usage
        )
        self.entry(ends, report, the_end(action))

    def tool(self, begins: float, ends: float, family: str) -> None:
        action = an_action(f"x{next(self._names)}", trajectory="t1", family=family)
        self.entry(begins, ActionSubmitted(action=action))
        self.entry(ends, the_end(action, ends - begins))

    def finish(self, at: float) -> FinishedTrajectory | None:
        self.steps.fetch()
        self.entry(at, TrajectoryFinished(project="default", trajectory="t1"))
        (over,) = self.steps.fetch()
        assert isinstance(over, TrajectoryOver)
        return over.finished


def the_end(action: Action, seconds: float = 1.0) -> Finish:
    """Return the decision that an action has ended."""
    return Finish(
        action.id, action.project, action.task, Outcome.COMPLETED, Timing(0.0, 0.0, seconds, seconds),
        action.trajectory, kind=action.kind,
    )  # fmt: skip


def test_a_step_has_the_tokens_of_its_answer_and_the_seconds_until_the_next_request() -> None:
    folded = FoldedJournal()
    folded.generation(10, 12, 50, prompt=100)
    folded.tool(12, 13, "read")
    folded.tool(13, 18, "test")
    folded.generation(20, 21, 0)  # it failed: its wait and what follows count as tools
    folded.generation(23, 24, 70, prompt=180)

    facts = folded.steps.fetch()
    asked = [each.features.steps for each in facts if isinstance(each, StepEnded)]
    assert asked == [1, 1, 1, 1, 2]  # after the answer, both tools, the failure, the second answer
    assert [type(each) for each in facts].index(WentOn) == 3
    assert folded.finish(30) == FinishedTrajectory(
        "default/task", (TrajectoryStep(50, 10, 150, "exec:test"), TrajectoryStep(70, 0, 250)),
        "default/p1", 100,
    )  # fmt: skip


def test_a_question_before_the_first_answer_is_asked_for_a_batch_alone() -> None:
    folded = FoldedJournal()
    folded.entry(1, ActionSubmitted(action=a_generation("a", "alone")))
    folded.entry(1, ActionSubmitted(action=a_generation("b", "member", batch="b1", batch_size=4)))
    folded.entry(1, ActionSubmitted(action=an_action("c", trajectory="no generation")))

    (asked,) = folded.steps.fetch()
    assert isinstance(asked, StepEnded)
    assert (asked.trajectory, asked.features.steps) == ("default/member", 0)


def test_nothing_is_learnt_where_steps_may_be_missing() -> None:
    trimmed = FoldedJournal(first_seq=500)
    trimmed.generation(10, 12, 50)
    assert trimmed.steps.fetch() == []
    assert trimmed.finish(15) is None

    holed = FoldedJournal()
    holed.generation(10, 12, 50)
    holed.steps.skipped()
    holed.generation(13, 14, 50)
    assert holed.finish(15) is None


@pytest.mark.parametrize("reason", ["node n1 is drained", "lost"])
def test_a_trajectory_that_did_not_reach_its_length_is_forgotten(reason: str) -> None:
    folded = FoldedJournal()
    folded.generation(10, 12, 50)
    folded.steps.fetch()
    folded.entry(15, TrajectoryFinished(project="default", trajectory="t1", reason=reason))
    assert folded.steps.fetch() == [TrajectoryOver("m", "default/t1", None)]


def test_memory_is_bounded_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_steps, "MOST_STEPS", 2)
    monkeypatch.setattr(trajectory_steps, "MOST_TRAJECTORIES", 2)
    folded = FoldedJournal()
    for number in range(4):
        folded.generation(10 * number, 10 * number + 2, 50)
    stored = msgspec.msgpack.encode(folded.steps.remember())
    after = FoldedJournal(first_seq=100)
    after.steps.recall(msgspec.msgpack.decode(stored, type=list[StoredSteps]), 40)
    after.generation(42, 43, 50)
    finished = after.finish(50)
    assert finished is not None
    assert len(finished.steps) == 2
    assert sum(step.tokens for step in finished.steps) == 5 * 50

    for number in range(4):
        action = a_generation(f"n{number}", f"new-{number}")
        after.entry(51 + number, ActionSubmitted(action=action))
    after.entry(60)
    assert [each.trajectory for each in after.steps.remember()] == [
        "default/new-2",
        "default/new-3",
    ]
