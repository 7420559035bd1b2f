"""Retention: deletes rows of actions and trajectories that ended long ago, in small batches.

Live rows are kept whatever their age, and so are tasks: they are few and hold the sums. The log of
completions loses its oldest part with the rows up to `Retention.forgotten_seq`: a reader with an
older cursor gets 410 instead of a silent gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Max, QuerySet

from domain.ids import action_id
from tangram_web.records.models import (
    ActionRecord,
    Retention,
    TrajectoryRecord,
    TrajectoryRecordState,
)

log = logging.getLogger(__name__)

#: Rows deleted in one transaction: writers of a SQLite file wait for each other.
BATCH: Final = 500
_NAME: Final = "actions"


def prune(
    before: datetime, *, batch: int = BATCH, keep_running: Callable[[], bool] = lambda: True
) -> tuple[int, int]:
    """Delete what ended before ``before``; return the number of actions and trajectories.

    ``keep_running`` is called between batches; stopping between them leaves the rows consistent.
    """
    actions = trajectories = 0
    while keep_running() and (gone := _prune_actions(before, batch)):
        actions += gone
    while keep_running() and (gone := _prune_trajectories(before, batch)):
        trajectories += gone
    if actions or trajectories:
        log.info("retention: %d actions and %d trajectories deleted", actions, trajectories)
    return actions, trajectories


def count_old(before: datetime) -> tuple[int, int]:
    """Return the number of actions and trajectories that `prune` would delete."""
    old = ActionRecord.objects.filter(id__lt=_first_id(before), finished_at__lt=before)
    return old.count(), _old_trajectories(before).count()


def forgotten_seq() -> int:
    """Return the cursor of completions up to which rows may be deleted."""
    stored = Retention.objects.filter(name=_NAME).values_list("forgotten_seq", flat=True).first()
    return 0 if stored is None else stored


def cutoff(days: float) -> datetime:
    """Return the instant ``days`` days ago."""
    return datetime.now(UTC) - timedelta(days=days)


def _first_id(at: datetime) -> str:
    """Return the lowest id of an action of ``at``: ids begin with their time."""
    return action_id(max(0, int(at.timestamp() * 1000)), bytes(8))


def _prune_actions(before: datetime, batch: int) -> int:
    with transaction.atomic():
        # Ids are in order of age, so the primary key finds the oldest rows.
        old = list(
            ActionRecord.objects.filter(id__lt=_first_id(before), finished_at__lt=before)
            .order_by("id")
            .values_list("id", flat=True)[:batch]
        )
        if not old:
            return 0
        chosen = ActionRecord.objects.filter(id__in=old)
        last = chosen.aggregate(last=Max("finished_seq"))["last"] or 0
        mark, _ = Retention.objects.get_or_create(name=_NAME)
        if last > mark.forgotten_seq:
            mark.forgotten_seq = last
            mark.save()
        chosen.delete()
    return len(old)


def _old_trajectories(before: datetime) -> QuerySet[TrajectoryRecord]:
    return TrajectoryRecord.objects.filter(
        state=TrajectoryRecordState.FINISHED, finished_at__lt=before
    )


def _prune_trajectories(before: datetime, batch: int) -> int:
    with transaction.atomic():
        old = list(_old_trajectories(before).order_by("key").values_list("key", flat=True)[:batch])
        TrajectoryRecord.objects.filter(key__in=old).delete()
    return len(old)
