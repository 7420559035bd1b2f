"""Counts of live actions and open trajectories that a verb would affect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from django.db.models import Count

from domain.action import ActionState
from tangram_web.records.models import ActionRecord, TrajectoryRecord

#: Most rows that are read one by one, where no column can be filtered.
MOST_LOOKED_AT: Final = 20_000


def live(**which: Any) -> dict[str, int]:
    """Return the number of waiting and of running actions that ``which`` selects."""
    rows = ActionRecord.objects.filter(finished_seq=None, **which)
    states = dict(rows.values_list("state").annotate(Count("id")).order_by())
    return {
        "waiting": states.get(ActionState.QUEUED, 0),
        "running": states.get(ActionState.RUNNING, 0) + states.get(ActionState.GRANTED, 0),
    }


def live_that(needs: Callable[[ActionRecord], bool]) -> dict[str, int]:
    """Return the number of waiting and of running actions for which ``needs`` is true."""
    found = {"waiting": 0, "running": 0}
    for row in live_rows():
        if needs(row):
            found["waiting" if row.state == ActionState.QUEUED else "running"] += 1
    return found


def live_rows() -> Iterable[ActionRecord]:
    """Return the latest actions that have not finished, with their costs and specs."""
    rows = ActionRecord.objects.filter(finished_seq=None).order_by("-id")
    return rows.only("id", "state", "project", "pool", "cost", "spec", "kind")[:MOST_LOOKED_AT]


def open_trajectories(**which: Any) -> int:
    """Return the number of open trajectories that ``which`` selects."""
    return TrajectoryRecord.objects.filter(state="open", **which).count()


def calls(row: ActionRecord, target: str) -> bool:
    """Say whether ``row`` is a call to ``target``."""
    return bool(row.spec) and (row.spec.get("call") or {}).get("target") == target
