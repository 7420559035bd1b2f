"""Rows as the pages show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from django.db.models import Model, QuerySet
from django.http import QueryDict

from domain.action import ActionState, Outcome
from tangram_web.lib.instants import instant_of
from tangram_web.live.access import Sight
from tangram_web.records.models import (
    ActionRecord,
    EndRecord,
    StepRecord,
    TaskRecord,
    TrajectoryRecord,
)

Row = TypeVar("Row", bound=Model)

PAGE: Final = 50
#: Actions drawn of one trajectory, and steps shown of one task.
LANES: Final = 300
STEPS: Final = 100
#: Filters by the names they have in the address.
FILTERS: Final = ("state", "outcome", "task", "trajectory", "project")
TRAJECTORY_FILTERS: Final = ("state", "task", "project")
TASK_FILTERS: Final = ("project",)
LIVE_STATES: Final = frozenset(ActionState) - {ActionState.FINISHED}


@dataclass(frozen=True)
class ActionPage:
    """Some actions, newest first, and where to go on."""

    rows: list[ActionRecord]
    filters: dict[str, str]
    #: Query strings of the following and of the first page; empty when there is none.
    older: str
    newest: str
    #: A value that no action can have.
    mistake: str = ""

    @property
    def filtered(self) -> bool:
        return bool(self.filters)


def action_page(sight: Sight, query: QueryDict) -> ActionPage:
    """Return the page of actions that an address asks for.

    Ids sort by time of submission, so the cursor is an id: pages stay put while actions arrive.
    """
    filters = _given(query, FILTERS)
    before = query.get("before", "")
    mistake = _mistake(filters | ({"before": before} if before else {}))
    rows = [] if mistake else list(sight.of(_matching(filters, before))[: PAGE + 1])
    older = ""
    if len(rows) > PAGE:
        rows = rows[:PAGE]
        older = urlencode(filters | {"before": rows[-1].id})
    newest = urlencode(filters) or "newest" if before else ""
    return ActionPage(rows, filters, older, newest, mistake)


class Mistake(ValueError):
    """A filter has a value that nothing can have."""


def filtered_actions(sight: Sight, query: QueryDict) -> QuerySet[ActionRecord]:
    """Return all actions that an address asks for. Raises Mistake."""
    return sight.of(_actions_where(_checked(query, FILTERS)))


def filtered_trajectories(sight: Sight, query: QueryDict) -> QuerySet[TrajectoryRecord]:
    """Return all trajectories that an address asks for. Raises Mistake."""
    return sight.of(TrajectoryRecord.objects.filter(**_checked(query, TRAJECTORY_FILTERS)))


def filtered_tasks(sight: Sight, query: QueryDict) -> QuerySet[TaskRecord]:
    """Return all tasks that an address asks for. Raises Mistake."""
    return sight.of(TaskRecord.objects.filter(**_checked(query, TASK_FILTERS)))


def _checked(query: QueryDict, names: tuple[str, ...]) -> dict[str, str]:
    filters = _given(query, names)
    mistake = _mistake(filters) if names is FILTERS else _unreadable(filters)
    if mistake:
        raise Mistake(mistake)
    return filters


def _given(query: QueryDict, names: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name in names if (value := query.get(name, "").strip())}


def _unreadable(filters: dict[str, str]) -> str:
    return next((f"{v!r} is no {n}" for n, v in filters.items() if not _readable(v)), "")


def action_record(sight: Sight, action_id: str) -> ActionRecord | None:
    """Return an action's row; None where there is none to be seen."""
    return _one(sight, ActionRecord.objects.all(), action_id)


@dataclass(frozen=True)
class RowPage(Generic[Row]):
    """Some rows, the latest first, and where to go on."""

    rows: list[Row]
    filters: dict[str, str]
    older: str
    mistake: str = ""


def trajectory_page(sight: Sight, query: QueryDict) -> RowPage[TrajectoryRecord]:
    """Return the page of trajectories that an address asks for."""
    rows = TrajectoryRecord.objects.order_by("-opened_at", "-key").defer("environment", "metadata")
    return _by_opening(sight.of(rows), query, TRAJECTORY_FILTERS)


def task_page(sight: Sight, query: QueryDict) -> RowPage[TaskRecord]:
    """Return the page of tasks that an address asks for."""
    rows = TaskRecord.objects.order_by("-opened_at", "-key").defer("metadata")
    return _by_opening(sight.of(rows), query, TASK_FILTERS)


def trajectory_record(sight: Sight, key: str) -> TrajectoryRecord | None:
    """Return a trajectory's row; None where there is none to be seen."""
    return _one(sight, TrajectoryRecord.objects.all(), key)


def task_record(sight: Sight, key: str) -> TaskRecord | None:
    """Return a task's row; None where there is none to be seen."""
    return _one(sight, TaskRecord.objects.all(), key)


def names_hidden_from(sight: Sight, action_ids: Iterable[str]) -> set[str]:
    """Return those of ``action_ids`` that may not be named to somebody; one query at most."""
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


def steps_of(task: TaskRecord) -> list[dict[str, Any]]:
    """Return its latest training steps: how many actions, how long, how much of it waiting."""
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


def outcomes_of(task: TaskRecord) -> list[dict[str, Any]]:
    """Return how its actions ended, the most frequent end first, with their mean times."""
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


def _by_opening(rows: QuerySet[Row], query: QueryDict, names: tuple[str, ...]) -> RowPage[Row]:
    filters = _given(query, names)
    mistake = _unreadable(filters)
    before = query.get("before", "")
    moment = instant_of(before)
    if before and moment is None:
        mistake = f"{before!r} is no instant"
    if mistake:
        return RowPage([], filters, "", mistake)
    rows = rows.filter(**filters)
    if moment is not None:
        rows = rows.filter(opened_at__lt=moment)
    found = list(rows[: PAGE + 1])
    older = ""
    if len(found) > PAGE:
        found = found[:PAGE]
        last: Any = found[-1]
        older = urlencode(filters | {"before": last.opened_at.isoformat()})
    return RowPage(found, filters, older)


def _matching(filters: dict[str, str], before: str) -> QuerySet[ActionRecord]:
    rows = _actions_where(filters).order_by("-id")
    if before:
        rows = rows.filter(id__lt=before)
    # Results can be large, and the list does not show them.
    return rows.defer("result", "spec", "metadata")


def _actions_where(filters: dict[str, str]) -> QuerySet[ActionRecord]:
    rows = ActionRecord.objects.filter(**filters)
    if filters.get("state") in LIVE_STATES:
        # Says nothing new, but it is what the index of live ones is made for: without it, a search
        # for the few that are live reads all that are not.
        rows = rows.filter(finished_seq__isnull=True)
    return rows


def _mistake(filters: dict[str, str]) -> str:
    for name, value in filters.items():
        if not _readable(value):
            return f"{value!r} is no {name}"
    for name, values in (("state", ActionState), ("outcome", Outcome)):
        given = filters.get(name)
        if given is not None and given not in set(values):
            return f"{given!r} is no {name}: take one of {', '.join(values)}"
    return ""


def _readable(text: str) -> bool:
    """Say whether a text column can be compared with ``text``: PostgreSQL refuses U+0000."""
    return "\0" not in text
