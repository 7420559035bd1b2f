"""Projection of the journal: entries in, rows and a position out, in one transaction.

Entries at or before the stored position are skipped, so the same entries may be delivered again
after a crash. What a batch needs of earlier ones is read from rows, or is left by the batch before
(`OpenRows`), which holds at its position alone.

Actions that a batch submits are taken to be new. If one has a row already, since it was submitted
twice, the transaction is rolled back, and the batch is folded again from all rows that it touches.

The position moves only from the value that was read. If a stopped projector resumes beside its
replacement, one of the two writes a batch, and the transaction of the other is rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from django.db import DatabaseError, connection, transaction
from django.db.models import Case, QuerySet, Value, When

from domain.codec import JournalEntry
from domain.decisions import Forget
from domain.events import (
    ActionCancelRequested,
    ConfigApplied,
    NodeJoined,
    NodeLost,
    NodeReturned,
    ServiceEvictionAsked,
    TaskCancelRequested,
    TaskPaused,
    TaskPrioritised,
)
from domain.fleet_events import FleetWorkersChanged, TrajectoryPinned
from domain.ids import task_key
from domain.journal_reducer import JournalReducer, on
from domain.rollout_events import (
    BackendsChanged,
    RolloutCancelRequested,
    RolloutParkRequested,
    RolloutResumeRequested,
)
from tangram_web.audit.services import AskedVerb, record_asked
from tangram_web.records.action_rows import (
    ActionChange,
    WholeResult,
    as_reported,
    changed_actions,
)
from tangram_web.records.fold import RowFold
from tangram_web.records.models import NodeAvailability, NodeRecord, ProjectionPosition
from tangram_web.records.open_rows import OpenRows
from tangram_web.records.rollout_rows import RolloutFold, changed_rollouts
from tangram_web.records.statements import (
    instant_writer,
    load_actions,
    load_rollouts,
    write_actions,
    write_rollouts,
    write_sums,
    write_workloads,
)

log = logging.getLogger(__name__)

_NAME: Final = "journal"
#: The position before the first entry.
START: Final = "0-0"


def position() -> str:
    """Return the stream id of the last journal entry that is in the rows."""
    stored = ProjectionPosition.objects.filter(name=_NAME).first()
    return START if stored is None else stored.entry_id


def project(
    entries: Sequence[tuple[str, JournalEntry]],
    also: Callable[[Sequence[JournalEntry]], None] | None = None,
    whole: WholeResult = as_reported,
    open_rows: OpenRows | None = None,
) -> None:
    """Bring the rows up to the last of ``entries``, given as (stream id, entry) in order.

    ``also`` is called with the entries that are new, in the same transaction. ``whole`` fills in what a
    result refers to. ``open_rows``: kept by the caller from call to call.
    """
    try:
        _project(entries, also, whole, open_rows or OpenRows())
    except _SubmittedAgain:
        _project(entries, also, whole, open_rows or OpenRows(), reads_all=True)


class _SubmittedAgain(Exception):
    """An action of the batch that was taken to be new has a row."""


def _project(
    entries: Sequence[tuple[str, JournalEntry]],
    also: Callable[[Sequence[JournalEntry]], None] | None,
    whole: WholeResult,
    open_rows: OpenRows,
    *,
    reads_all: bool = False,
) -> None:
    with transaction.atomic():
        stored = ProjectionPosition.objects.filter(name=_NAME).first()
        at = START if stored is None else stored.entry_id
        done = stream_order(at)
        fresh = [(name, entry) for name, entry in entries if stream_order(name) > done]
        if not fresh:
            return
        _log_gap(stored, fresh[0][1])
        last_id, last = fresh[-1]
        batch = [entry for _, entry in fresh]
        submitted, changed = changed_actions(batch)
        known = open_rows.take(at, changed)
        wanted = (changed | submitted if reads_all else changed) - known.keys()
        actions = _project_actions(batch, whole, known, wanted)
        _project_rollouts(batch)
        verbs = AuditedVerbs()
        nodes = NodeRows(stored)
        for entry in batch:
            verbs.reduce(entry)
            nodes.reduce(entry)
        record_asked(verbs.found)
        if also is not None:
            also(batch)
        _move(stored, entry_id=last_id, seq=last.seq, drained_nodes=sorted(nodes.drained),
              finishing_nodes=sorted(nodes.finishing))  # fmt: skip
    open_rows.keep(last_id, actions)


class Overtaken(DatabaseError):
    """Another projector has moved the position meanwhile; nothing of this batch was written."""


def _move(stored: ProjectionPosition | None, **to: Any) -> None:
    """Move the position from ``stored``. Raises a DatabaseError when it is elsewhere by now."""
    if stored is None:
        ProjectionPosition.objects.create(name=_NAME, **to)
        return
    unchanged = ProjectionPosition.objects.filter(name=_NAME, entry_id=stored.entry_id)
    if unchanged.update(**to) != 1:
        raise Overtaken(
            f"the projection is no longer at {stored.entry_id}: is there a second projector?"
        )


def _log_gap(stored: ProjectionPosition | None, first: JournalEntry) -> None:
    """Log missing entries: the database is older than Redis, or an entry was set aside."""
    expected = 1 if stored is None else stored.seq + 1
    if first.seq > expected:
        log.error("rows miss journal entries %d to %d", expected, first.seq - 1)


def stream_order(entry_id: str) -> tuple[int, int]:
    """Return the sort key of a stream id: ``<milliseconds>-<number>`` is not in order as text."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def _project_actions(
    batch: list[JournalEntry],
    whole: WholeResult,
    known: dict[str, ActionChange],
    wanted: Collection[str],
) -> dict[str, ActionChange]:
    """Write actions, ``wanted`` from their rows and others from ``known``; return all of them as written."""
    with connection.cursor() as cursor:
        fold = RowFold(known | load_actions(cursor, wanted), instant_writer(), whole)
        for entry in batch:
            fold.reduce(entry)
        if not write_actions(cursor, fold.actions):
            raise _SubmittedAgain
        write_workloads(cursor, fold.workloads)
        write_sums(cursor, fold.sums)
        return fold.actions


def _project_rollouts(batch: list[JournalEntry]) -> None:
    ids = changed_rollouts(batch)
    if not ids:
        return
    with connection.cursor() as cursor:
        fold = RolloutFold(load_rollouts(cursor, ids), instant_writer())
        for entry in batch:
            fold.reduce(entry)
        write_rollouts(cursor, fold.rollouts)


class NodeRows(JournalReducer):
    """Writes the rows of nodes, through the ORM since they rarely change."""

    def __init__(self, position: ProjectionPosition | None) -> None:
        super().__init__()
        #: Nodes that the last configuration drains, and those of them that let trajectories finish.
        self.drained = frozenset(position.drained_nodes if position is not None else ())
        self.finishing = frozenset(position.finishing_nodes if position is not None else ())
        self._at = self._offset = 0.0

    def begin(self, entry: JournalEntry) -> None:
        """Keep the time of ``entry``."""
        self._at, self._offset = entry.at, entry.wall_offset_seconds

    @on(NodeJoined)
    def _joined(self, event: NodeJoined) -> None:
        node = event.node
        NodeRecord.objects.update_or_create(
            name=node.name,
            defaults={
                "pool": node.pool,
                "state": self._status(node.name),
                "finishing": node.name in self.finishing,
                "incarnation": node.incarnation,
                "resources": msgspec.to_builtins(node.resources),
                "isolation": node.isolation,
                "protection": msgspec.to_builtins(node.protection),
                "oversubscribed": any(have.oversubscribed for have in node.resources.values()),
                "hostname": node.hostname,
                "version": node.version,
                "joined_at": self._wall(event.at),
            },
        )

    @on(NodeLost)
    def _lost(self, event: NodeLost) -> None:
        _row_of(event).update(state=NodeAvailability.LOST, lost_at=self._wall(event.at))

    @on(NodeReturned)
    def _returned(self, event: NodeReturned) -> None:
        _row_of(event).update(state=self._status(event.node))

    @on(ConfigApplied)
    def _configured(self, event: ConfigApplied) -> None:
        self.drained = event.config.drained_nodes
        status = Case(
            When(name__in=self.drained, then=Value(NodeAvailability.DRAINED.value)),
            default=Value(NodeAvailability.READY.value),
        )
        NodeRecord.objects.exclude(state=NodeAvailability.LOST).update(state=status)
        self.finishing = event.config.finishing_nodes
        finishing = Case(
            When(name__in=self.finishing, then=Value(value=True)), default=Value(value=False)
        )
        NodeRecord.objects.update(finishing=finishing)

    @on(Forget)
    def _forgotten(self, decision: Forget) -> None:
        NodeRecord.objects.filter(name=decision.node).delete()

    def _status(self, name: str) -> NodeAvailability:
        return NodeAvailability.DRAINED if name in self.drained else NodeAvailability.READY

    def _wall(self, at: float) -> datetime:
        return datetime.fromtimestamp((at or self._at) + self._offset, UTC)


def _row_of(event: NodeLost | NodeReturned) -> QuerySet[NodeRecord]:
    """Select the node's row unless a newer incarnation has joined since."""
    return NodeRecord.objects.filter(name=event.node, incarnation=event.incarnation)


_Requested = (
    ActionCancelRequested | ServiceEvictionAsked | TaskCancelRequested | TaskPaused
    | TaskPrioritised | RolloutCancelRequested | RolloutParkRequested | RolloutResumeRequested
    | BackendsChanged | FleetWorkersChanged | TrajectoryPinned
)  # fmt: skip


class AuditedVerbs(JournalReducer):
    """Collects the verbs that were requested through the gateway, for the audit log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[AskedVerb] = []
        self._offset = 0.0

    def begin(self, entry: JournalEntry) -> None:
        """Keep the clock of ``entry``."""
        self._offset = entry.wall_offset_seconds

    @on(
        ActionCancelRequested, ServiceEvictionAsked, TaskCancelRequested, TaskPaused,
        TaskPrioritised, RolloutCancelRequested, RolloutParkRequested, RolloutResumeRequested,
        BackendsChanged, FleetWorkersChanged, TrajectoryPinned,
    )  # fmt: skip
    def _requested(self, event: _Requested) -> None:
        if event.asked is None:
            return
        verb, target, project, after = _verb_of(event)
        self.found.append(
            AskedVerb(
                asked=event.asked,
                verb=verb,
                target=target,
                project=project,
                after=after,
                at=self._offset + event.at,
            )
        )


def _verb_of(event: _Requested) -> tuple[str, str, str, dict[str, Any]]:
    """Return verb, target, project (empty: none) and the requested state."""
    if isinstance(event, ServiceEvictionAsked):
        return "evict", f"service/{event.service}", "", {}
    if isinstance(event, BackendsChanged):
        return _verb_of_backends(event)
    if isinstance(event, FleetWorkersChanged):
        return _verb_of_fleet(event)
    if isinstance(event, TrajectoryPinned):
        project = event.trajectory.partition("/")[0]
        after = {"fleet": event.fleet, "worker": event.worker}
        verb = "pin" if event.worker else "unpin"
        return verb, f"trajectory/{event.trajectory}", project, after
    project = event.project
    if isinstance(event, ActionCancelRequested):
        return "cancel", f"action/{event.action_id}", project, {"reason": event.reason}
    if isinstance(event, RolloutResumeRequested):
        return "resume", f"rollout/{event.rollout_id}", project, {}
    if isinstance(event, RolloutCancelRequested | RolloutParkRequested):
        verb = "park" if isinstance(event, RolloutParkRequested) else "cancel"
        return verb, f"rollout/{event.rollout_id}", project, {"reason": event.reason}
    task = f"task/{task_key(project, event.task)}"
    if isinstance(event, TaskPaused):
        verb = "pause" if event.paused else "resume"
        return verb, task, project, {"paused": event.paused}
    if isinstance(event, TaskPrioritised):
        return "prioritise", task, project, {"priority": event.priority}
    return "cancel", task, project, {"reason": event.reason}


def _verb_of_fleet(event: FleetWorkersChanged) -> tuple[str, str, str, dict[str, Any]]:
    if len(event.facts) == 1 and event.facts[0].drained is not None:
        fact = event.facts[0]
        verb = "drain" if fact.drained else "undrain"
        return verb, f"worker/{event.fleet}/{fact.name}", "", {"drained": fact.drained}
    return "change", f"fleet/{event.fleet}", "", {"workers": msgspec.to_builtins(event.facts)}


def _verb_of_backends(event: BackendsChanged) -> tuple[str, str, str, dict[str, Any]]:
    after: dict[str, Any] = {}
    if event.clear:
        after["clear"] = True
    if event.removed:
        after["removed"] = list(event.removed)
    if event.put:
        after["put"] = msgspec.to_builtins(event.put)
    if event.balance is not None:
        after["balance"] = event.balance.value
    return "change", f"backends/{event.pool}", "", after
