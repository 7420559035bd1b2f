"""What is to be told: from journal entries and from how the system stands, to rows of the outbox.

Rules
1. `feed` runs in the transaction that moves the projection: an entry is either both in the rows and
   in the outbox or in neither, so nothing is lost and an entry never counts twice.
2. A trajectory goes to the endpoints of its project; what befalls the system to all that want it.
3. The end of a trajectory is told once, although the journal may say it in two places: when its
   trainer asked for it, and when its environment goes.
4. Breakers and quotas have no entries of their own. `feed_standing` is given how they stand every
   few seconds, and tells the turn from well to bad: one that opens and closes in between is missed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from django.db import transaction
from django.utils import timezone

from domain.codec import JournalEntry
from domain.decisions import RemoveEnvironment
from domain.events import NodeLost, TrajectoryFinished
from domain.ids import trajectory_key
from tangram_web.webhooks.models import Delivery, Endpoint, Event, Standing

#: Within this the same trajectory does not end twice.
ONE_END: Final = timedelta(hours=1)
MOST_SUBJECT: Final = 400
#: How `managers.quota.pace` begins to speak of an open circuit.
OPEN_CIRCUIT: Final = "its circuit is open"


class Message(NamedTuple):
    """Something to tell; ``project`` None: it is about the whole system."""

    event: Event
    subject: str
    project: str | None
    at: datetime
    data: dict[str, Any]


def feed(entries: Sequence[JournalEntry]) -> None:
    """Put what ``entries`` say into the outbox. Called inside the projection's transaction."""
    found = [message for entry in entries for message in messages_of(entry)]
    if found and Endpoint.objects.filter(enabled=True).exists():
        put(_told_once(found))


def messages_of(entry: JournalEntry) -> Iterator[Message]:
    """Yield what there is to tell of one entry."""
    at = datetime.fromtimestamp(entry.at + entry.wall_offset_seconds, UTC)
    for event in entry.events:
        match event:
            case TrajectoryFinished(project=project, trajectory=name, reason=reason):
                yield _finished(project, name, reason, at)
            case NodeLost(node=node):
                yield Message(Event.NODE_LOST, f"node/{node}", None, at, {"node": node})
    for decision in entry.decisions:
        if isinstance(decision, RemoveEnvironment):
            project, _, name = decision.trajectory.partition("/")
            yield _finished(project, name, decision.reason, at)


def _finished(project: str, name: str, reason: str, at: datetime) -> Message:
    data = {"project": project, "trajectory": name, "reason": reason}
    subject = f"trajectory/{trajectory_key(project, name)}"[:MOST_SUBJECT]
    return Message(Event.TRAJECTORY_FINISHED, subject, project, at, data)


def _told_once(found: Iterable[Message]) -> list[Message]:
    first: dict[str, Message] = {}
    others: list[Message] = []
    for message in found:
        if message.event is Event.TRAJECTORY_FINISHED:
            first.setdefault(message.subject, message)
        else:
            others.append(message)
    recent = Delivery.objects.filter(
        subject__in=list(first), created_at__gt=timezone.now() - ONE_END
    )
    for subject in set(recent.values_list("subject", flat=True)):
        del first[subject]
    return [*first.values(), *others]


def put(messages: Iterable[Message]) -> int:
    """Write one row for each endpoint that wants a message; return how many."""
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
        if message.event in endpoint.events and message.project in (None, endpoint.project_id)
    ]
    Delivery.objects.bulk_create(rows)
    return len(rows)


def feed_standing(resources: Mapping[str, Mapping[str, Any]], at: datetime) -> None:
    """Tell of circuits that opened and of quotas that ran out, as the leader's status has them."""
    bad = {message.subject: message for message in _bad_now(resources, at)}
    with transaction.atomic():
        before = dict(Standing.objects.values_list("name", "bad"))
        put(message for name, message in bad.items() if not before.get(name))
        Standing.objects.filter(bad=True).exclude(name__in=list(bad)).update(bad=False)
        Standing.objects.bulk_create(
            [Standing(name=name, bad=True) for name in bad],
            update_conflicts=True,
            unique_fields=["name"],
            update_fields=["bad"],
        )


def _bad_now(resources: Mapping[str, Mapping[str, Any]], at: datetime) -> Iterator[Message]:
    for name, stands in resources.items():
        hindrance = stands.get("hindrance") or ""
        if hindrance.startswith(OPEN_CIRCUIT):
            data = {"resource": name, "detail": hindrance}
            yield Message(Event.BREAKER_OPENED, f"breaker/{name}", None, at, data)
        for quota in stands.get("quotas", ()):
            if quota["left"] <= 0:
                period = quota.get("window_seconds") or quota.get("zone")
                subject = f"quota/{name}/{period}"
                yield Message(Event.QUOTA_EXHAUSTED, subject, None, at, {"resource": name, **quota})


def new_message_id() -> str:
    """Return a name for a message."""
    return f"msg_{secrets.token_hex(12)}"


def body_of(event: str, at: datetime, data: Mapping[str, Any]) -> str:
    """Return a payload as the specification recommends: type, timestamp, data."""
    said = {"type": str(event), "timestamp": at.isoformat().replace("+00:00", "Z"), "data": data}
    return msgspec.json.encode(said).decode()
