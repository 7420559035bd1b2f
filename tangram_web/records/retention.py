"""Retention: deletes rows of actions, rollouts and trajectories that ended long ago, in small batches.

Live rows are kept whatever their age, and so are tasks: they are few and hold the sums. The logs of
completions, of actions and of rollouts, lose their oldest parts with the rows up to `Retention.forgotten_seq`: a
reader with an older cursor gets 410 instead of a silent gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import Max, QuerySet

from domain.ids import action_id
from domain.rollouts import new_rollout_id
from tangram_web.records.models import (
    ActionRecord,
    Retention,
    RolloutRecord,
    TrajectoryRecord,
    TrajectoryRecordState,
)

log = logging.getLogger(__name__)

#: Rows deleted in one transaction: writers of a SQLite file wait for each other.
BATCH: Final = 500
#: Marks in `Retention`.
_ACTIONS: Final = "actions"
_ROLLOUTS: Final = "rollouts"


def prune(
    before: datetime, *, batch: int = BATCH, keep_running: Callable[[], bool] = lambda: True
) -> tuple[int, int]:
    """Delete what ended before ``before``; return the number of actions and trajectories.

    ``keep_running`` is called between batches; stopping between them leaves the rows consistent.
    """
    actions = rollouts = trajectories = 0
    while keep_running() and (gone := _prune(_old_actions(before), _ACTIONS, batch)):
        actions += gone
    while keep_running() and (gone := _prune(_old_rollouts(before), _ROLLOUTS, batch)):
        rollouts += gone
    while keep_running() and (gone := _prune_trajectories(before, batch)):
        trajectories += gone
    if actions or rollouts or trajectories:
        log.info(
            "retention: %d actions, %d rollouts and %d trajectories deleted",
            actions,
            rollouts,
            trajectories,
        )
    return actions, trajectories


def count_old(before: datetime) -> tuple[int, int]:
    """Return the number of actions and trajectories that `prune` would delete."""
    return _old_actions(before).count(), _old_trajectories(before).count()


def forgotten_seq(*, rollouts: bool = False) -> int:
    """Return the cursor of completions, of actions or of rollouts, up to which rows may be deleted."""
    marks = Retention.objects.filter(name=_ROLLOUTS if rollouts else _ACTIONS)
    stored = marks.values_list("forgotten_seq", flat=True).first()
    return 0 if stored is None else stored


def cutoff(days: float) -> datetime:
    """Return the instant ``days`` days ago."""
    return datetime.now(UTC) - timedelta(days=days)


def _milliseconds(at: datetime) -> int:
    return max(0, int(at.timestamp() * 1000))


def _old_actions(before: datetime) -> QuerySet[ActionRecord]:
    # Ids begin with their time, so the primary key finds the oldest rows.
    first = action_id(_milliseconds(before), bytes(8))
    return ActionRecord.objects.filter(id__lt=first, finished_at__lt=before)


def _old_rollouts(before: datetime) -> QuerySet[RolloutRecord]:
    first = new_rollout_id(_milliseconds(before), bytes(8))
    return RolloutRecord.objects.filter(id__lt=first, finished_at__lt=before)


def _prune(ended: QuerySet[ActionRecord] | QuerySet[RolloutRecord], name: str, batch: int) -> int:
    """Delete the oldest rows of ``ended`` and move the mark ``name`` past them; return their number."""
    with transaction.atomic():
        old = list(ended.order_by("id").values_list("id", flat=True)[:batch])
        if not old:
            return 0
        chosen = ended.model._default_manager.filter(id__in=old)
        last = chosen.aggregate(last=Max("finished_seq"))["last"] or 0
        mark, _ = Retention.objects.get_or_create(name=name)
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
