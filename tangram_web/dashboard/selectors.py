"""Rows for the pages: lists of actions, trajectories and tasks, and sums of a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
from django.db.models import Model, QuerySet, TextField
from django.db.models.functions import Cast

from tangram_web.lib.endings import FAILED
from tangram_web.live.access import Sight
from tangram_web.records.models import (
    ActionRecord,
    EndRecord,
    StepRecord,
    TaskRecord,
    TrajectoryRecord,
)

Row = TypeVar("Row", bound=Model)

#: Most actions drawn of a trajectory, and most steps shown of a task.
LANES: Final = 300
STEPS: Final = 100
#: Actions of a trajectory shown before and after one of them.
NEIGHBOURS: Final = 3
#: Most forks named of a trajectory.
FORKS: Final = 64


class ImpossibleFilter(ValueError):
    """A filter has a value that no row can have."""


def action_record(sight: Sight, action_id: str) -> ActionRecord | None:
    """Return an action's row; None if it is missing or may not be seen."""
    return _one(sight, ActionRecord.objects.all(), action_id)


def trajectory_record(sight: Sight, key: str) -> TrajectoryRecord | None:
    """Return a trajectory's row; None if it is missing or may not be seen."""
    return _one(sight, TrajectoryRecord.objects.all(), key)


def task_record(sight: Sight, key: str) -> TaskRecord | None:
    """Return a task's row; None if it is missing or may not be seen."""
    return _one(sight, TaskRecord.objects.all(), key)


def names_hidden_from(sight: Sight, action_ids: Iterable[str]) -> set[str]:
    """Return those of ``action_ids`` that may not be seen; one query at most."""
    asked = set(action_ids)
    if sight.everything or not asked:
        return set()
    rows = sight.of(ActionRecord.objects.filter(pk__in=asked))
    return asked - set(rows.values_list("pk", flat=True))


def _one(sight: Sight, rows: QuerySet[Row], key: str) -> Row | None:
    return sight.of(rows.filter(pk=key)).first() if _readable(key) else None


def actions_of_trajectory(trajectory: TrajectoryRecord) -> list[ActionRecord]:
    """Return its latest actions, up to `LANES`, the oldest of them first."""
    rows = ActionRecord.objects.filter(project=trajectory.project, trajectory=trajectory.name)
    latest = rows.order_by("-id").defer("result", "spec", "metadata")[:LANES]
    return list(reversed(latest))


def neighbours_of(action: ActionRecord) -> list[ActionRecord]:
    """Return an action among the `NEIGHBOURS` before and after it in its trajectory, oldest first."""
    if action.trajectory is None:
        return []
    rows = ActionRecord.objects.filter(project=action.project, trajectory=action.trajectory).defer(
        "result", "metadata"
    )
    before = list(rows.filter(pk__lt=action.pk).order_by("-pk")[:NEIGHBOURS])
    after = list(rows.filter(pk__gt=action.pk).order_by("pk")[:NEIGHBOURS])
    return [*reversed(before), action, *after]


def forks_of(trajectory: TrajectoryRecord) -> list[str]:
    """Return the names of its forks, which are in its task; up to `FORKS`."""
    named = msgspec.json.encode({"forked_from": trajectory.name}).decode()[1:-1]
    rows = TrajectoryRecord.objects.filter(project=trajectory.project, task=trajectory.task)
    # As text: a comparison with the column itself would be with an encoded value.
    found = rows.annotate(said=Cast("metadata", TextField())).filter(said__contains=named)
    return list(found.order_by("key").values_list("name", flat=True)[:FORKS])


def steps_of(task: TaskRecord) -> list[dict[str, Any]]:
    """Return its latest training steps: actions, duration, mean queue time, ACT and reward."""
    rows = StepRecord.objects.filter(project=task.project, task=task.name).order_by("-step")
    return [
        {
            "step": row.step,
            "actions": row.actions,
            "seconds": row.ended_wall - row.begun_wall if row.finished else None,
            "act": _mean(row.act_seconds, row.finished),
            "queue": _mean(row.queue_seconds, row.finished),
            "reward": _mean(row.reward, row.rewarded),
        }
        for row in rows[:STEPS]
    ]


def failing_of(outcomes: Iterable[dict[str, Any]]) -> int:
    """Return how many commands of a task ended with an exit code that is not 0."""
    return sum(end["actions"] for end in outcomes if end["outcome"] == FAILED)


def outcomes_of(task: TaskRecord) -> list[dict[str, Any]]:
    """Return its endings, the most frequent first, with the number of actions and mean times."""
    rows = EndRecord.objects.filter(project=task.project, task=task.name).order_by("-actions")
    return [
        {
            "outcome": row.outcome,
            "actions": row.actions,
            "queue": _mean(row.queue_seconds, row.actions),
            "overhead": _mean(row.overhead_seconds, row.actions),
            "execution": _mean(row.execution_seconds, row.actions),
            "act": _mean(row.act_seconds, row.actions),
        }
        for row in rows
    ]


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _readable(text: str) -> bool:
    """Say whether a text column can be compared with ``text``: PostgreSQL refuses U+0000."""
    return "\0" not in text
