"""Recent ends by task: failures and rollouts without a reward, over a window of ten minutes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from domain.action import Outcome
from domain.rollouts import RolloutOutcome, RolloutResult
from tangram_web.live.frames import FrameFold
from tangram_web.live.task_endings import MAX_TASKS, WINDOW_SECONDS, TaskEndings, failure_of
from tests.unit.live.journal import Journal

AT = 1_000_000.0


def end(outcome: Outcome = Outcome.COMPLETED, task: str = "verify") -> Any:
    return SimpleNamespace(project="lab", task=task, outcome=outcome)


def rollout(reward: float | None, outcome: RolloutOutcome = RolloutOutcome.COMPLETED) -> Any:
    return SimpleNamespace(project="lab", task="verify", result=RolloutResult(outcome, reward))


@pytest.mark.parametrize(
    ("outcome", "code", "expected"),
    [
        (Outcome.COMPLETED, 0, ""),
        (Outcome.COMPLETED, None, ""),
        (Outcome.COMPLETED, 137, "exit code 137"),
        (Outcome.OOM_KILLED, None, "oom killed"),
        (Outcome.CANCELLED, None, ""),
        (Outcome.EXPIRED, None, ""),
    ],
)
def test_a_failure_is_an_exit_code_or_an_outcome(
    outcome: Outcome, code: int | None, expected: str
) -> None:
    assert failure_of(outcome, code) == expected


def test_ends_are_counted_for_ten_minutes() -> None:
    endings = TaskEndings()
    for second in range(5):
        endings.finish(end(), AT + second, 1 if second else 0)
    (row,) = endings.rows(AT + 10, 0.0)
    assert (row["finished"], row["failed"], row["endings"]) == (5, 4, {"exit code 1": 4})

    assert endings.rows(AT + WINDOW_SECONDS + 20, 0.0) == []


def test_a_task_without_failures_is_not_listed_and_tasks_are_bounded() -> None:
    endings = TaskEndings()
    for number in range(MAX_TASKS + 10):
        endings.finish(end(task=f"t{number}"), AT, 0)

    assert endings.rows(AT, 0.0) == []
    assert len(endings._tasks) == MAX_TASKS


def test_rollouts_without_a_reward_are_counted_beside_the_newest_reward() -> None:
    endings = TaskEndings()
    endings.finish_rollout(rollout(1.0), AT)
    endings.finish_rollout(rollout(None), AT + 1)
    endings.finish_rollout(rollout(None, RolloutOutcome.CANCELLED), AT + 2)

    (row,) = endings.rows(AT + 3, 50.0)
    assert (row["rollouts"], row["unrewarded"], row["rewarded_at"]) == (2, 1, AT + 50.0)


def test_the_overview_counts_what_queued_actions_need() -> None:
    journal = Journal()
    journal.join("n1")
    journal.submit("a1")
    journal.submit("a2")
    journal.grant("a1")
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)

    (need,) = fold.frames(journal.at + 5)["overview"].body["wanted"]
    assert (need["pool"], need["resource"], need["waiting"]) == ("default", "cpu", 1)
    assert (need["units"], need["oldest_seconds"]) == (1.0, 5.0)

    journal.grant("a2", (1,))
    fold.fold(journal.entries[-1])
    assert fold.frames(journal.at)["overview"].body["wanted"] == []
