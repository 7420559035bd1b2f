"""Transactional outbox: journal entries become deliveries.

Rules
1. `store_events` runs in the transaction that moves the projection's position: an entry is in the rows
   and in the outbox, or in neither, so no event is lost or stored twice.
2. Trajectory events go to the endpoints of their project, system events to every subscribed endpoint.
3. The end of a trajectory is one event, although the journal can contain it twice: as the trainer's
   request and as the removal of its environment.
4. The journal contains each opened circuit and each exhausted quota. A quota in constant use runs out
   with every grant, so its event is repeated only after `CALM` without one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from django.utils import timezone

from domain.codec import JournalEntry
from domain.decisions import Degraded, RemoveEnvironment
from domain.events import NodeLost, TrajectoryFinished
from domain.ids import trajectory_key
from domain.journal_reducer import JournalReducer, on
from domain.limits import Degradation
from domain.resources import units
from tangram_web.webhooks.models import Delivery, Endpoint, LastTurn, WebhookEvent

#: Two ends of one trajectory within this time are one event.
ONE_END: Final = timedelta(hours=1)
MOST_SUBJECT: Final = 400
#: Least time between two events of one exhausted quota.
CALM: Final = timedelta(minutes=1)


class Message(NamedTuple):
    """An event to deliver; ``project`` is None for the whole system."""

    event: WebhookEvent
    subject: str
    project: str | None
    at: datetime
    data: dict[str, Any]
    #: Kind of a problem (`tangram_web.problems.kinds`), or id of a saved view; empty for other events.
    about: str = ""


def store_events(entries: Sequence[JournalEntry]) -> None:
    """Store deliveries for the events in ``entries``. Call it in the projection's transaction."""
    messages = _Messages()
    for entry in entries:
        messages.reduce(entry)
    if messages.found and Endpoint.objects.filter(enabled=True).exists():
        store_messages(_without_frequent_quotas(_without_repeated_ends(messages.found)))


class _Messages(JournalReducer):
    """Collects the messages of journal entries."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Message] = []
        self._at: datetime

    def begin(self, entry: JournalEntry) -> None:
        """Keep the time of ``entry``."""
        self._at = datetime.fromtimestamp(entry.at + entry.wall_offset_seconds, UTC)

    @on(TrajectoryFinished)
    def _trajectory_finished(self, event: TrajectoryFinished) -> None:
        self.found.append(_finished(event.project, event.trajectory, event.reason, self._at))

    @on(RemoveEnvironment)
    def _environment_ended(self, decision: RemoveEnvironment) -> None:
        project, _, name = decision.trajectory.partition("/")
        self.found.append(_finished(project, name, decision.reason, self._at))

    @on(NodeLost)
    def _node_lost(self, event: NodeLost) -> None:
        data = {"node": event.node}
        self.found.append(
            Message(WebhookEvent.NODE_LOST, f"node/{event.node}", None, self._at, data)
        )

    @on(Degraded)
    def _turned_bad(self, decision: Degraded) -> None:
        self.found.append(_turned(decision.resource, decision.degradation, self._at))


def _finished(project: str, name: str, reason: str, at: datetime) -> Message:
    data = {"project": project, "trajectory": name, "reason": reason}
    subject = f"trajectory/{trajectory_key(project, name)}"[:MOST_SUBJECT]
    return Message(WebhookEvent.TRAJECTORY_FINISHED, subject, project, at, data)


def _turned(resource: str, turn: Degradation, at: datetime) -> Message:
    if turn.quota is None:
        data: dict[str, Any] = {"resource": resource, "detail": turn.detail}
        return Message(WebhookEvent.BREAKER_OPENED, f"breaker/{resource}", None, at, data)
    quota = turn.quota.quota
    period: dict[str, Any] = {"window_seconds": quota.window_seconds or None,
              "zone": None if quota.window_seconds else quota.zone}  # fmt: skip
    data = {"resource": resource, "units": units(quota.amount), **period,
            "used": units(turn.quota.used), "left": units(turn.quota.left)}  # fmt: skip
    subject = f"quota/{resource}/{quota.window_seconds or quota.zone}"
    return Message(WebhookEvent.QUOTA_EXHAUSTED, subject, None, at, data)


def _without_frequent_quotas(found: Iterable[Message]) -> list[Message]:
    """Drop events of quotas that ran out less than `CALM` ago."""
    known = dict(LastTurn.objects.values_list("name", "turned_at"))
    last, kept = dict(known), []
    for message in found:
        if message.event is WebhookEvent.QUOTA_EXHAUSTED:
            before = last.get(message.subject)
            last[message.subject] = message.at
            if before is not None and message.at - before < CALM:
                continue
        kept.append(message)
    LastTurn.objects.bulk_create(
        [LastTurn(name=n, turned_at=at) for n, at in last.items() if known.get(n) != at],
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["turned_at"],
    )
    return kept


def _without_repeated_ends(found: Iterable[Message]) -> list[Message]:
    first: dict[str, Message] = {}
    others: list[Message] = []
    for message in found:
        if message.event is WebhookEvent.TRAJECTORY_FINISHED:
            first.setdefault(message.subject, message)
        else:
            others.append(message)
    recent = Delivery.objects.filter(
        subject__in=list(first), created_at__gt=timezone.now() - ONE_END
    )
    for subject in set(recent.values_list("subject", flat=True)):
        del first[subject]
    return [*first.values(), *others]


def store_messages(messages: Iterable[Message]) -> int:
    """Store one delivery for each message and subscribed endpoint; return how many."""
    endpoints = list(Endpoint.objects.filter(enabled=True))
    now = timezone.now()
    rows = [
        Delivery(
            message_id=new_message_id(),
            endpoint=endpoint,
            event=message.event,
            subject=message.subject,
            body=body_of(message.event, message.at, message.data),
            next_at=now,
        )
        for message in messages
        for endpoint in endpoints
        if endpoint.wants(message.event, message.about)
        and message.project in (None, endpoint.project_id)
    ]
    Delivery.objects.bulk_create(rows)
    return len(rows)


def new_message_id() -> str:
    """Return a new message id."""
    return f"msg_{secrets.token_hex(12)}"


def body_of(event: str, at: datetime, data: Mapping[str, Any]) -> str:
    """Return a payload in the recommended form of Standard Webhooks: type, timestamp, data."""
    payload = {"type": str(event), "timestamp": at.isoformat().replace("+00:00", "Z"), "data": data}
    return msgspec.json.encode(payload).decode()
