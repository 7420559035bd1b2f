"""Queries for actions, trajectories and tasks, and their views."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from django.db.models import Model, QuerySet

from contract.responses import ActionResponse, CompletionsResponse
from domain.action import ActionState, Kind, Outcome, Timing
from domain.allocation import Placement, UsedResources
from domain.errors import Gone, InvalidRequest
from domain.principals import Principal
from domain.request_text import RequestDetails, request_details
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord
from tangram_web.records.retention import forgotten_seq

MAX_COMPLETIONS = 1000
#: Value of a filter by door that selects actions of the native API.
NATIVE: Final = "native"

Row = TypeVar("Row", bound=Model)


def action_view(action_id: str, project: str | None = None) -> ActionResponse | None:
    """Return an action from its row; None if there is no such action in ``project``."""
    rows = _of(ActionRecord.objects.all(), project)
    record = rows.filter(pk=action_id).defer("spec").first() if _readable(action_id) else None
    return None if record is None else view_of(record)


def action_request(action_id: str) -> RequestDetails | None:
    """Return the request of an action of any project, with secrets masked; None if there is no such action."""
    rows = ActionRecord.objects.filter(pk=action_id).only("spec", "submitted_by")
    record = rows.first() if _readable(action_id) else None
    return None if record is None else request_details(record.spec, record.submitted_by)


def completions(project: str | None, after: int, limit: int) -> CompletionsResponse:
    """Return the actions that finished after cursor ``after``, oldest first, up to ``limit``.

    ``after`` 0 begins with the oldest one. Raises Gone for a cursor after which retention may have
    deleted rows.
    """
    if not 0 <= after < 2**63:
        raise InvalidRequest("not a cursor of this API", pointer="/after")
    if 0 < after < (forgotten := forgotten_seq()):
        raise Gone(
            f"completions up to {forgotten} may be deleted (retention); start without a cursor, "
            "or with after=now",
            pointer="?after",
        )
    limit = max(1, min(limit, MAX_COMPLETIONS))
    rows = _of(ActionRecord.objects.filter(finished_seq__gt=after), project)
    found = list(rows.defer("spec").order_by("finished_seq")[: limit + 1])
    page = found[:limit]
    last = page[-1].finished_seq if page else after
    return CompletionsResponse(
        items=[view_of(record) for record in page], next=str(last), more=len(found) > limit
    )


def view_of(record: ActionRecord, *, with_result: bool = True) -> ActionResponse:
    """Return the view of an action's row."""
    return ActionResponse(
        id=record.id,
        state=ActionState(record.state),
        outcome=None if record.outcome is None else Outcome(record.outcome),
        result=record.result if with_result else _short_result(record),
        reward=record.reward,
        units=record.units or {},
        placement=_placement(record.placement),
        timing=_timing(record),
        used=None if record.used is None else msgspec.convert(record.used, UsedResources),
        project=record.project,
        task=record.task,
        trajectory=record.trajectory,
        kind=Kind(record.kind),
        door=record.door or "",
        attempt=record.attempt,
        detail=record.detail,
        submitted_at=_rfc3339(record.submitted_at),
        granted_at=_rfc3339(record.granted_at),
        started_at=_rfc3339(record.begun_at),
        finished_at=_rfc3339(record.finished_at),
    )


def task_exists(project: str, task: str) -> bool:
    """Return whether a task was declared, or has had an action."""
    return TaskRecord.objects.filter(project=project, name=task).exists()


def _short_result(record: ActionRecord) -> dict[str, Any] | None:
    """Return the part of the result that has a column of its own."""
    return None if record.exit_code is None else {"exit_code": record.exit_code}


def actions_seen_by(principal: Principal, *, with_result: bool = False) -> QuerySet[ActionRecord]:
    """Select the actions that ``principal`` may see, newest first, without large columns."""
    large = ("spec", "metadata") if with_result else ("spec", "metadata", "result")
    return _of(ActionRecord.objects.defer(*large).order_by("-pk"), principal.project)


def trajectories_seen_by(principal: Principal) -> QuerySet[TrajectoryRecord]:
    """Select the trajectories that ``principal`` may see."""
    return _of(TrajectoryRecord.objects.order_by("-pk"), principal.project)


def tasks_seen_by(principal: Principal) -> QuerySet[TaskRecord]:
    """Select the tasks that ``principal`` may see."""
    return _of(TaskRecord.objects.order_by("-pk"), principal.project)


def through_door(rows: QuerySet[ActionRecord], door: str) -> QuerySet[ActionRecord]:
    """Select the actions that came through ``door``; `NATIVE`: through the native API."""
    return rows.filter(door=None if door == NATIVE else door)


def _of(rows: QuerySet[Row], project: str | None) -> QuerySet[Row]:
    return rows if project is None else rows.filter(project=project)


def _readable(text: str) -> bool:
    """Return whether ``text`` can be compared with a text column; PostgreSQL refuses U+0000."""
    return "\0" not in text and text.isascii()


def _placement(value: dict[str, Any] | None) -> Placement | None:
    return None if value is None else msgspec.convert(value, Placement)


def _timing(record: ActionRecord) -> Timing | None:
    if record.act_seconds is None:
        return None
    return Timing(
        queue_seconds=record.queue_seconds or 0.0,
        overhead_seconds=record.overhead_seconds or 0.0,
        execution_seconds=record.execution_seconds or 0.0,
        act_seconds=record.act_seconds,
    )


def _rfc3339(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
