"""Trajectories and actions whose times are seconds, for tests of what is drawn of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tangram_web.records.models import ActionRecord, TrajectoryRecord

OPENED = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return OPENED + timedelta(seconds=seconds)


def action(submitted: float, name: str = "act_1", **fields: Any) -> ActionRecord:
    return ActionRecord(id=name, kind="exec", submitted_at=at(submitted), **fields)


def finished(
    submitted: float, queue: float, overhead: float, execution: float, name: str = "act_1",
    **fields: Any,
) -> ActionRecord:  # fmt: skip
    act = queue + overhead + execution
    return action(
        submitted, name, queue_seconds=queue, overhead_seconds=overhead,
        execution_seconds=execution, act_seconds=act, finished_at=at(submitted + act),
        state="finished", **fields,
    )  # fmt: skip


def trajectory(ended: float | None = None) -> TrajectoryRecord:
    return TrajectoryRecord(
        name="t", opened_at=OPENED, finished_at=None if ended is None else at(ended)
    )
