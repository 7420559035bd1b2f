"""Queries for rollouts, and their views as the API shows them; tokens and artefacts are in their logs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from django.db.models import QuerySet

from contract.batch_requests import MAX_BATCH_ROLLOUTS
from contract.rollout_views import RolloutCompletions, RolloutView
from domain.errors import Gone, InvalidRequest
from domain.rollouts import RolloutOutcome, RolloutState, StageTimes
from tangram_web.records.models import RolloutRecord
from tangram_web.records.retention import forgotten_seq

MAX_COMPLETIONS: Final = 256


def rollout_view(rollout: str) -> RolloutView | None:
    """Return a rollout of any project from its row; None if there is none."""
    record = RolloutRecord.objects.filter(pk=rollout).first()
    return None if record is None else view_of_rollout(record)


def rollout_views(
    ids: Sequence[str], groups: Sequence[str], project: str, task: str
) -> list[RolloutView]:
    """Return rollouts of any project by their ids, or those of groups of a project, and of a task unless it is empty.

    Of groups at most one more than a batch may have.
    """
    if ids:
        rows = RolloutRecord.objects.filter(pk__in=ids)
        return [view_of_rollout(record) for record in rows]
    rows = RolloutRecord.objects.filter(group__in=groups, project=project)
    if task:
        rows = rows.filter(task=task)
    return [view_of_rollout(record) for record in rows.order_by("id")[: MAX_BATCH_ROLLOUTS + 1]]


def rollout_completions(project: str | None, after: int, limit: int) -> RolloutCompletions:
    """Return the rollouts that finished after cursor ``after``, oldest first, up to ``limit``.

    Raises Gone for a cursor after which retention may have deleted rows.
    """
    if not 0 <= after < 2**63:
        raise InvalidRequest("not a cursor of this API", pointer="?after")
    if 0 < after < (forgotten := forgotten_seq(rollouts=True)):
        raise Gone(
            f"completions up to {forgotten} may be deleted (retention); start without a cursor, "
            "or with after=now",
            pointer="?after",
        )
    rows: QuerySet[RolloutRecord] = RolloutRecord.objects.filter(finished_seq__gt=after)
    if project is not None:
        rows = rows.filter(project=project)
    limit = max(1, min(limit, MAX_COMPLETIONS))
    found = list(rows.order_by("finished_seq")[: limit + 1])
    page = found[:limit]
    last = page[-1].finished_seq if page else after
    return RolloutCompletions(
        items=[view_of_rollout(record) for record in page], next=str(last), more=len(found) > limit
    )


def view_of_rollout(record: RolloutRecord) -> RolloutView:
    """Return the view of a rollout's row."""
    first, last = record.first_version, record.last_version
    return RolloutView(
        id=record.id,
        state=RolloutState(record.state),
        outcome=None if record.outcome is None else RolloutOutcome(record.outcome),
        reward=record.reward,
        reason=record.reason,
        project=record.project,
        task=record.task,
        handler=record.handler,
        instance=record.instance,
        group=record.group,
        sample=record.sample,
        llm=record.llm,
        priority=record.priority,
        stage=record.stage,
        queued=record.queued,
        awaited=record.awaited,
        worker=record.worker,
        attempt=record.attempt,
        times=msgspec.convert(record.times, list[StageTimes]),
        queue_seconds=record.queue_seconds,
        total_seconds=record.total_seconds,
        turns=record.turns,
        tokens=record.tokens,
        prompt_tokens=record.prompt_tokens,
        response_tokens=record.response_tokens,
        weights_versions=None if first is None or last is None else (first, last),
        metadata=record.metadata,
        door=record.door or "",
        submitted_at=_rfc3339(record.submitted_at),
        finished_at=_rfc3339(record.finished_at),
    )


def _rfc3339(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
