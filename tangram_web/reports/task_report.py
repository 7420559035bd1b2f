"""Report of one task: one structure that the page, the API and the command line show alike.

Rules
1. Counts, outcomes, steps and costs are those of the task's page, from the same selectors.
2. Times by phase and family are of the latest `MOST_ROWS` finished actions; ``read`` says of how many.
3. ``other`` names a second task of the reader: the comparison is that of the page Compare.
4. A reader gets reports of tasks that `Sight` shows; any other task is NotFound.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from domain.errors import NotFound
from tangram_web.compare.api import as_data
from tangram_web.compare.comparison import compare
from tangram_web.compare.sides import rows_of
from tangram_web.dashboard import selectors
from tangram_web.dashboard.costs import bill_of_task
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord, TaskRecord
from tangram_web.reports.breakdowns import (
    FamilyTimes,
    FinishedRow,
    GrantedCounts,
    PhaseTimes,
    family_times,
    granted_counts,
    phase_times,
)

#: Finished actions that are read, the latest ones.
MOST_ROWS: Final = 10_000


class TaskReport(msgspec.Struct):
    """Report of one task; seconds, and units times seconds."""

    task: str
    project: str
    #: UTC, RFC 3339.
    made_at: str
    opened_at: str
    actions: int
    finished: int
    #: Finished actions that the times are of.
    read: int
    phases: list[PhaseTimes]
    families: list[FamilyTimes]
    granted: list[GrantedCounts]
    #: Outcome, or ``exit code not 0``, with counts and mean times.
    outcomes: list[dict[str, Any]]
    #: Training steps, the latest first.
    steps: list[dict[str, Any]]
    #: Core-seconds and GPU-seconds: asked, granted, used, and held by a reservation for whole trajectories.
    costs: list[dict[str, Any]]
    #: Comparison with another task: None without one.
    comparison: dict[str, Any] | None = None


def report_of(sight: Sight, key: str, other: str = "") -> TaskReport:
    """Return the report of the task ``PROJECT/NAME``; ``other`` names a task of the same form. Raises NotFound."""
    record = selectors.task_record(sight, key)
    if record is None:
        raise NotFound(f"there is no task {key[:200]!r}")
    rows = _finished(record)
    costs = [
        {**asdict(line), "used_share": line.used_share, "saving": line.saving}
        for line in bill_of_task(record).lines
    ]
    return TaskReport(
        task=record.name,
        project=record.project,
        made_at=_text(datetime.now(UTC)),
        opened_at=_text(record.opened_at),
        actions=record.actions,
        finished=record.finished,
        read=len(rows),
        phases=phase_times(rows),
        families=family_times(rows),
        granted=granted_counts(rows),
        outcomes=selectors.outcomes_of(record),
        steps=selectors.steps_of(record),
        costs=costs,
        comparison=_compared(sight, key, other) if other else None,
    )


def _compared(sight: Sight, key: str, other: str) -> dict[str, Any]:
    """Compare ``other`` (A) with the task of the report (B): better means that this task is better."""
    return as_data(compare(rows_of(f"task:{other}", sight), rows_of(f"task:{key}", sight)))


def _finished(task: TaskRecord) -> list[FinishedRow]:
    rows = ActionRecord.objects.filter(
        project=task.project, task=task.name, finished_seq__isnull=False, act_seconds__isnull=False
    ).order_by("-id")
    found = rows.values_list(*FinishedRow._fields)[:MOST_ROWS]
    return [
        FinishedRow(
            kind, family, outcome, code, cost or {}, units or {}, *(x or 0.0 for x in times)
        )
        for kind, family, outcome, code, cost, units, *times in found
    ]


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
