"""An action's life as a bar: queue, overhead, execution."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from domain.action import ActionState
from tangram_web.records.models import ActionRecord


@dataclass(frozen=True)
class Phase:
    """One stretch of the bar; places are percentages of it."""

    name: str
    seconds: float
    start: float
    width: float


def phases_of(record: ActionRecord, now: datetime) -> list[Phase]:
    """Return where an action's time went; of a live one, where it goes so far."""
    if record.act_seconds is not None:
        parts = [
            ("queue", record.queue_seconds or 0.0),
            ("overhead", record.overhead_seconds or 0.0),
            ("execution", record.execution_seconds or 0.0),
        ]
    elif record.state == ActionState.QUEUED or record.granted_at is None:
        parts = [("queue", _since(record.submitted_at, now))]
    else:
        waited = _since(record.submitted_at, record.granted_at)
        name = "execution" if record.state == ActionState.RUNNING else "overhead"
        parts = [("queue", waited), (name, _since(record.granted_at, now))]
    return _laid_out(parts)


def _since(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


def _laid_out(parts: list[tuple[str, float]]) -> list[Phase]:
    whole = sum(seconds for _, seconds in parts) or 1.0
    phases: list[Phase] = []
    start = 0.0
    for name, seconds in parts:
        width = 100 * seconds / whole
        phases.append(Phase(name, seconds, round(start, 3), round(width, 3)))
        start += width
    return phases
