"""The projection: journal entries in, rows and a position out, in one transaction.

Entries at or before the stored position are skipped, so the same entries may come again after a
crash. Nothing is remembered between calls: what a batch must know of earlier ones, it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from django.db import connection, transaction

from domain.codec import JournalEntry
from domain.events import (
    ConfigApplied,
    NodeForgetAsked,
    NodeJoined,
    NodeLost,
    NodeReturned,
)
from tangram_web.audit.services import record_asked
from tangram_web.records.asked import asked_verbs
from tangram_web.records.fold import Fold, touched_actions
from tangram_web.records.models import ProjectionPosition
from tangram_web.records.nodes import fold_nodes
from tangram_web.records.statements import (
    instant_writer,
    standings,
    write_actions,
    write_episodes,
    write_sums,
)

_NAME: Final = "journal"
#: Where the journal begins.
START: Final = "0-0"
_OF_NODES = (ConfigApplied, NodeForgetAsked, NodeJoined, NodeLost, NodeReturned)


def position() -> str:
    """Return the stream id of the last journal entry that is in the rows."""
    stored = ProjectionPosition.objects.filter(name=_NAME).first()
    return START if stored is None else stored.entry_id


def project(
    entries: Sequence[tuple[str, JournalEntry]],
    also: Callable[[Sequence[JournalEntry]], None] | None = None,
) -> None:
    """Bring the rows up to the last of ``entries``, given as (stream id, entry) in order.

    ``also`` is given the entries that are new, in the same transaction.
    """
    with transaction.atomic():
        stored = ProjectionPosition.objects.filter(name=_NAME).first()
        done = stream_order(START if stored is None else stored.entry_id)
        fresh = [(name, entry) for name, entry in entries if stream_order(name) > done]
        if not fresh:
            return
        drained = frozenset(stored.drained_nodes if stored is not None else ())
        last_id, last = fresh[-1]
        batch = [entry for _, entry in fresh]
        _project_actions(batch)
        record_asked(asked_verbs(batch))
        if also is not None:
            also(batch)
        for entry in batch:
            if any(isinstance(event, _OF_NODES) for event in entry.events):
                drained = fold_nodes(entry, drained)
        ProjectionPosition.objects.update_or_create(
            name=_NAME,
            defaults={"entry_id": last_id, "seq": last.seq, "drained_nodes": sorted(drained)},
        )


def stream_order(entry_id: str) -> tuple[int, int]:
    """Return what stream ids sort by: ``<milliseconds>-<number>`` is not in order as text."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def _project_actions(batch: list[JournalEntry]) -> None:
    with connection.cursor() as cursor:
        fold = Fold(standings(cursor, touched_actions(batch)), instant_writer())
        for entry in batch:
            fold.entry(entry)
        write_actions(cursor, fold.actions)
        write_episodes(cursor, fold.episodes)
        write_sums(cursor, fold.sums)
