"""Working the outbox off.

Rules
1. Whoever moves ``next_at`` of a due row ahead by a conditional update sends it. Should the process
   die before it wrote what came back, the row is due again after `CLAIM_SECONDS`: at least once.
2. An attempt, the row and the endpoint's standing change in one transaction.
3. 410 disables an endpoint at once, and so does failing for `schedule.FAILING_SECONDS`. What was
   still to be told to it is dead, visible, and can be sent again by hand.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import zip_longest
from random import Random
from typing import Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import transaction
from django.db.models import F, Min, QuerySet
from django.utils import timezone

from tangram_web.lib.sealing import Unsealable
from tangram_web.webhooks.models import Delivery, DeliveryAttempt, DeliveryState, Endpoint
from tangram_web.webhooks.signing import signed_headers
from tangram_web.webhooks.transport import OpenConnections, PostResult, post, reach_of

PAUSES_SECONDS: Final = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
MOST_ATTEMPTS: Final = len(PAUSES_SECONDS) + 1
JITTER: Final = 0.1
#: What ``Retry-After`` may ask for at most.
LONGEST_WISH_SECONDS: Final = 86400.0
#: An endpoint that answered nothing well for so long is disabled.
FAILING_SECONDS: Final = 5 * 86400.0

#: Sent at once; one endpoint gets at most `OF_ONE` of them, so that one that hangs delays no other
#: for long.
BATCH: Final = 32
OF_ONE: Final = 8
CLAIM_SECONDS: Final = 60.0


async def deliver_due(open_connections: OpenConnections, chooser: Random) -> int:
    """Send what is due now, once each; return how much that was."""
    claimed = await sync_to_async(claim_due)(timezone.now())
    if claimed:
        await asyncio.gather(*(_deliver(open_connections, each, chooser) for each in claimed))
    return len(claimed)


def is_due() -> bool:
    """Return whether a delivery waits to be sent."""
    return _due(timezone.now()).exists()


def _due(now: datetime) -> QuerySet[Delivery]:
    return Delivery.objects.filter(
        state=DeliveryState.PENDING, next_at__lte=now, endpoint__enabled=True
    )


def claim_due(now: datetime) -> list[Delivery]:
    """Return rows that are due and now ours to send, the oldest of each endpoint first."""
    claimed: list[Delivery] = []
    for row in _in_turn(_due(now)):
        ours = Delivery.objects.filter(pk=row.pk, state=DeliveryState.PENDING, next_at=row.next_at)
        if ours.update(next_at=now + timedelta(seconds=CLAIM_SECONDS)) == 1:
            claimed.append(row)
        if len(claimed) == BATCH:
            break
    return claimed


def _in_turn(due: QuerySet[Delivery]) -> list[Delivery]:
    """Return the first of each endpoint, then the second of each: however long its own line is."""
    waiting = due.values("endpoint_id").annotate(first=Min("next_at")).order_by("first")
    keys = waiting.values_list("endpoint_id", flat=True)[:BATCH]
    lines = [
        due.filter(endpoint_id=key).select_related("endpoint").order_by("next_at")[:OF_ONE]
        for key in keys
    ]
    return [row for rank in zip_longest(*lines) for row in rank if row is not None]


async def _deliver(open_connections: OpenConnections, row: Delivery, chooser: Random) -> None:
    now = timezone.now()
    endpoint, body = row.endpoint, row.body.encode()
    try:
        known = endpoint.secrets_at(now)
    except Unsealable:
        unknown = PostResult(
            None, "its secret cannot be read: the key of the installation is another"
        )
        await sync_to_async(record_result)(row, unknown, timezone.now(), chooser)
        return
    headers = signed_headers(known, row.message_id, int(now.timestamp()), body)
    reach = reach_of(endpoint.url, loopback=settings.TANGRAM_WEBHOOKS_LOOPBACK)
    async with open_connections(reach) as pool:
        answer = await post(
            pool, endpoint.url, headers, body, timeout_seconds=settings.TANGRAM_WEBHOOK_SECONDS
        )
    await sync_to_async(record_result)(row, answer, timezone.now(), chooser)


def record_result(row: Delivery, answer: PostResult, now: datetime, chooser: Random) -> None:
    """Write what came back, and what follows from it."""
    attempts = row.attempts + 1
    pause = pause_seconds(attempts, answer.wished_seconds, chooser)
    state, next_at = DeliveryState.PENDING, now
    if answer.good:
        state = DeliveryState.DELIVERED
    elif answer.gone or pause is None:
        state = DeliveryState.DEAD
    else:
        next_at = now + timedelta(seconds=pause)
    with transaction.atomic():
        DeliveryAttempt.objects.create(
            delivery=row,
            status=answer.status,
            said=answer.said,
            body=answer.body,
            seconds=answer.seconds,
        )
        Delivery.objects.filter(pk=row.pk).update(
            state=state, attempts=F("attempts") + 1, next_at=next_at, last_said=answer.said
        )
        _update_endpoint(row.endpoint_id, answer, now)


def _update_endpoint(key: str, answer: PostResult, now: datetime) -> None:
    endpoint = Endpoint.objects.filter(pk=key, enabled=True)
    if answer.good:
        endpoint.exclude(failing_since=None).update(failing_since=None)
    elif answer.gone:
        disable(key, "it answered 410: it wants nothing more")
    else:
        endpoint.filter(failing_since=None).update(failing_since=now)
        if endpoint.filter(failing_since__lte=now - timedelta(seconds=FAILING_SECONDS)).exists():
            disable(key, f"it has failed for {FAILING_SECONDS / 86400:g} days: {answer.said}")


def disable(key: str, notice: str) -> None:
    """Tell an endpoint nothing more; what it had not been told is dead."""
    Endpoint.objects.filter(pk=key).update(enabled=False, notice=notice[:300])
    waiting = Delivery.objects.filter(endpoint_id=key, state=DeliveryState.PENDING)
    waiting.update(state=DeliveryState.DEAD, last_said="the endpoint was disabled")


def prune(days: float) -> int:
    """Delete what was delivered, or given up, more than ``days`` ago; 0 keeps all."""
    if not days:
        return 0
    old = Delivery.objects.filter(created_at__lt=timezone.now() - timedelta(days=days))
    return old.exclude(state=DeliveryState.PENDING).delete()[0]


def pause_seconds(attempts: int, wished_seconds: float, chooser: Random) -> float | None:
    """Return how long to wait after so many attempts; None when there shall be no further one.

    ``wished_seconds`` is what the receiver asked for by ``Retry-After``; the longer one holds.
    """
    if attempts >= MOST_ATTEMPTS:
        return None
    planned = PAUSES_SECONDS[attempts - 1] * (1.0 + JITTER * chooser.random())
    return max(planned, min(wished_seconds, LONGEST_WISH_SECONDS))
