"""The projection: journal entries in, rows and a position out, in one transaction.

Entries at or before the stored position are skipped, so the same entries may come again after a
crash. Nothing is remembered between calls: what a batch must know of earlier ones, it reads.

The position is moved from where it was read and from nowhere else. So of two projectors (one stood still
and was replaced) one writes a batch, and the other's transaction is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db import DatabaseError, connection, transaction

from domain.codec import JournalEntry
from domain.events import (
    ConfigApplied,
    NodeForgetAsked,
    NodeJoined,
    NodeLost,
    NodeReturned,
)
from tangram_web.audit.services import record_asked
from tangram_web.records.audited_verbs import asked_verbs
from tangram_web.records.fold import Fold
from tangram_web.records.known_actions import touched_actions
from tangram_web.records.models import ProjectionPosition
from tangram_web.records.nodes import fold_nodes
from tangram_web.records.statements import (
    instant_writer,
    standings,
    write_actions,
    write_episodes,
    write_sums,
)

log = logging.getLogger(__name__)

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
        _tell_hole(stored, fresh[0][1])
        last_id, last = fresh[-1]
        batch = [entry for _, entry in fresh]
        _project_actions(batch)
        record_asked(asked_verbs(batch))
        if also is not None:
            also(batch)
        for entry in batch:
            if any(isinstance(event, _OF_NODES) for event in entry.events):
                drained = fold_nodes(entry, drained)
        _move(stored, entry_id=last_id, seq=last.seq, drained_nodes=sorted(drained))


class Overtaken(DatabaseError):
    """Another projector has moved the position meanwhile; nothing of this batch was written."""


def _move(stored: ProjectionPosition | None, **to: Any) -> None:
    """Move the position from ``stored``. Raises a DatabaseError when it is elsewhere by now."""
    if stored is None:
        ProjectionPosition.objects.create(name=_NAME, **to)
        return
    there = ProjectionPosition.objects.filter(name=_NAME, entry_id=stored.entry_id)
    if there.update(**to) != 1:
        raise Overtaken(
            f"the rows are not at {stored.entry_id} any more: is there a second projector?"
        )


def _tell_hole(stored: ProjectionPosition | None, first: JournalEntry) -> None:
    """Say so when entries are missing: the database is older than Redis, or one was laid aside."""
    expected = 1 if stored is None else stored.seq + 1
    if first.seq > expected:
        log.error("rows lack what journal entries %d to %d say", expected, first.seq - 1)


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
