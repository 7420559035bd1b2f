"""Delivery of the outbox: claims, attempts and retries.

Rules
1. A conditional update that moves ``next_at`` of a due row ahead claims it. If the process dies before
   it stores the result, the row is due again after `CLAIM_SECONDS`: delivery is at least once.
2. An attempt, its delivery and the state of the endpoint change in one transaction.
3. The pauses between attempts are those that the Standard Webhooks specification recommends: 5 s,
   5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h; ten attempts over three days. Each is stretched
   by up to a tenth, so that endpoints which fail together are not retried together.
4. A 410 response disables the endpoint, and so do failures for `FAILING_SECONDS`. Its pending
   deliveries become dead; a user can send them again.
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

from domain.receiver_urls import reach_of
from tangram_web.lib.sealing import Unsealable
from tangram_web.webhooks.models import Delivery, DeliveryAttempt, DeliveryState, Endpoint
from tangram_web.webhooks.signing import signed_headers
from tangram_web.webhooks.transport import OpenConnections, PostResult, post

PAUSES_SECONDS: Final = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
MOST_ATTEMPTS: Final = len(PAUSES_SECONDS) + 1
JITTER: Final = 0.1
#: Longest accepted ``Retry-After``.
MOST_RETRY_AFTER_SECONDS: Final = 86400.0
#: After failures for this time, an endpoint is disabled.
FAILING_SECONDS: Final = 5 * 86400.0

#: Deliveries sent concurrently; at most `OF_ONE` of them to one endpoint, so that an endpoint that
#: hangs delays the others little.
BATCH: Final = 32
OF_ONE: Final = 8
CLAIM_SECONDS: Final = 60.0


async def deliver_due(open_connections: OpenConnections, chooser: Random) -> int:
    """Make one attempt for up to `BATCH` due deliveries; return how many there were."""
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
    """Claim due rows and return them, the oldest of each endpoint first."""
    claimed: list[Delivery] = []
    for row in _round_robin(_due(now)):
        ours = Delivery.objects.filter(pk=row.pk, state=DeliveryState.PENDING, next_at=row.next_at)
        if ours.update(next_at=now + timedelta(seconds=CLAIM_SECONDS)) == 1:
            claimed.append(row)
        if len(claimed) == BATCH:
            break
    return claimed


def _round_robin(due: QuerySet[Delivery]) -> list[Delivery]:
    """Return the first row of each endpoint, then the second of each, and so on."""
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
        unknown = PostResult(None, "its secret cannot be read: TANGRAM_SECRET_KEY has changed")
        await sync_to_async(record_result)(row, unknown, timezone.now(), chooser)
        return
    headers = signed_headers(known, row.message_id, int(now.timestamp()), body)
    reach = reach_of(endpoint.url, loopback=settings.TANGRAM_WEBHOOKS_LOOPBACK)
    async with open_connections(reach) as pool:
        result = await post(
            pool, endpoint.url, headers, body, timeout_seconds=settings.TANGRAM_WEBHOOK_SECONDS
        )
    await sync_to_async(record_result)(row, result, timezone.now(), chooser)


def record_result(row: Delivery, result: PostResult, now: datetime, chooser: Random) -> None:
    """Store the result of an attempt, and the next attempt, death or success that follows."""
    attempts = row.attempts + 1
    pause = pause_seconds(attempts, result.retry_after_seconds, chooser)
    state, next_at = DeliveryState.PENDING, now
    if result.ok:
        state = DeliveryState.DELIVERED
    elif result.gone or pause is None:
        state = DeliveryState.DEAD
    else:
        next_at = now + timedelta(seconds=pause)
    with transaction.atomic():
        DeliveryAttempt.objects.create(
            delivery=row,
            status=result.status,
            said=result.said,
            body=result.body,
            seconds=result.seconds,
        )
        Delivery.objects.filter(pk=row.pk).update(
            state=state, attempts=F("attempts") + 1, next_at=next_at, last_said=result.said
        )
        _update_endpoint(row.endpoint_id, result, now)


def _update_endpoint(key: str, result: PostResult, now: datetime) -> None:
    endpoint = Endpoint.objects.filter(pk=key, enabled=True)
    if result.ok:
        endpoint.exclude(failing_since=None).update(failing_since=None)
    elif result.gone:
        disable(key, "it answered 410 Gone")
    else:
        endpoint.filter(failing_since=None).update(failing_since=now)
        if endpoint.filter(failing_since__lte=now - timedelta(seconds=FAILING_SECONDS)).exists():
            disable(key, f"it has failed for {FAILING_SECONDS / 86400:g} days: {result.said}")


def disable(key: str, notice: str) -> None:
    """Disable an endpoint; its pending deliveries become dead."""
    Endpoint.objects.filter(pk=key).update(enabled=False, notice=notice[:300])
    waiting = Delivery.objects.filter(endpoint_id=key, state=DeliveryState.PENDING)
    waiting.update(state=DeliveryState.DEAD, last_said="the endpoint was disabled")


def prune(days: float) -> int:
    """Delete delivered and dead rows that are older than ``days``; 0 keeps all."""
    if not days:
        return 0
    old = Delivery.objects.filter(created_at__lt=timezone.now() - timedelta(days=days))
    return old.exclude(state=DeliveryState.PENDING).delete()[0]


def pause_seconds(attempts: int, retry_after_seconds: float, chooser: Random) -> float | None:
    """Return the pause after ``attempts`` attempts; None after the last one.

    ``retry_after_seconds`` is the receiver's ``Retry-After``; the longer of the two counts.
    """
    if attempts >= MOST_ATTEMPTS:
        return None
    planned = PAUSES_SECONDS[attempts - 1] * (1.0 + JITTER * chooser.random())
    return max(planned, min(retry_after_seconds, MOST_RETRY_AFTER_SECONDS))
