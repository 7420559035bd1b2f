"""The trace of actions for the viewer: what a Chrome trace has, in a quarter of its bytes.

Names of processes and threads stand once; an action is a list: index of its thread, title, submission and duration in
seconds, the seconds of its three phases, and what the viewer shows of a selected one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any, Final

import msgspec

from tangram_web.dashboard.chrome_trace import MOST_ACTIONS, TracePlaces

#: Columns of an action's row that a trace is made from.
COLUMNS: Final = (
    "id", "project", "task", "trajectory", "family", "kind", "submitted_at", "finished_at",
    "queue_seconds", "overhead_seconds", "execution_seconds", "state", "outcome", "units", "node",
)  # fmt: skip
_DIGITS: Final = 6


def trace_rows(rows: Iterable[tuple[Any, ...]], now: datetime) -> bytes:
    """Return the trace as JSON; ``rows`` have `COLUMNS` and are in order of submission."""
    rest, places = iter(rows), TracePlaces()
    start: datetime | None = None
    actions = []
    for row in islice(rest, MOST_ACTIONS):
        id_, project, task, trajectory, family, kind, begin, finished, *phases = row[:11]
        start = start or begin
        end = finished or now
        actions.append((
            places.of(project, task, trajectory, begin, end), family or kind,
            _seconds((begin - start).total_seconds()), _seconds((end - begin).total_seconds()),
            *(_seconds(each or 0.0) for each in phases), id_, *row[11:],
        ))  # fmt: skip
    return msgspec.json.encode({
        "start": start, "most_actions": MOST_ACTIONS, "cut": next(rest, None) is not None,
        "processes": places.processes, "threads": places.threads, "actions": actions,
    })  # fmt: skip


def _seconds(value: float) -> float:
    return round(max(0.0, value), _DIGITS)
