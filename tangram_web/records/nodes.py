"""Rows of nodes. Nodes come and go rarely, so these go through the ORM."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from django.db.models import Case, QuerySet, Value, When

from domain.codec import JournalEntry
from domain.decisions import Forget
from domain.events import ConfigApplied, NodeJoined, NodeLost, NodeReturned
from tangram_web.records.models import NodeRecord, NodeState


def fold_nodes(entry: JournalEntry, drained: frozenset[str]) -> frozenset[str]:
    """Write what ``entry`` says of nodes; return the nodes that are drained after it."""
    for event in entry.events:
        match event:
            case NodeJoined():
                _joined(event, _wall(entry, event.at), drained)
            case NodeLost(node=name, incarnation=incarnation):
                _same_life(name, incarnation).update(
                    state=NodeState.LOST, lost_at=_wall(entry, event.at)
                )
            case NodeReturned(node=name, incarnation=incarnation):
                _same_life(name, incarnation).update(state=_state(name, drained))
            case ConfigApplied(config=config):
                drained = config.drained_nodes
                _redrain(drained)
    for decision in entry.decisions:
        if isinstance(decision, Forget):
            NodeRecord.objects.filter(name=decision.node).delete()
    return drained


def _joined(event: NodeJoined, at: datetime, drained: frozenset[str]) -> None:
    node = event.node
    NodeRecord.objects.update_or_create(
        name=node.name,
        defaults={
            "pool": node.pool,
            "state": _state(node.name, drained),
            "incarnation": node.incarnation,
            "resources": msgspec.to_builtins(node.resources),
            "isolation": node.isolation,
            "oversubscribed": any(have.oversubscribed for have in node.resources.values()),
            "hostname": node.hostname,
            "version": node.version,
            "joined_at": at,
        },
    )


def _same_life(name: str, incarnation: int) -> QuerySet[NodeRecord]:
    """Select the node unless a newer start of it has joined since."""
    return NodeRecord.objects.filter(name=name, incarnation=incarnation)


def _redrain(drained: frozenset[str]) -> None:
    there = NodeRecord.objects.exclude(state=NodeState.LOST)
    there.update(
        state=Case(
            When(name__in=drained, then=Value(NodeState.DRAINED.value)),
            default=Value(NodeState.READY.value),
        )
    )


def _state(name: str, drained: frozenset[str]) -> NodeState:
    return NodeState.DRAINED if name in drained else NodeState.READY


def _wall(entry: JournalEntry, at: float) -> datetime:
    return datetime.fromtimestamp((at or entry.at) + entry.wall_offset_seconds, UTC)
