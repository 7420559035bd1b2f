"""Composition root of the webhooks: the outbox, the guard of API calls, and the leader's status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import SystemRandom
from time import monotonic
from typing import Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections
from django.utils import timezone

from domain.errors import Unavailable
from managers.quota.calls.driver import open_connections
from tangram_web.lib import ask
from tangram_web.webhooks.delivering import deliver_due, prune
from tangram_web.webhooks.models import Endpoint, Event
from tangram_web.webhooks.outbox import feed_standing

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
#: Between two looks at circuits and quotas, and between two looks for what is old.
STANDING_SECONDS: Final = 2.0
PRUNE_SECONDS: Final = 3600.0
_OF_STANDING: Final = {Event.BREAKER_OPENED, Event.QUOTA_EXHAUSTED}


async def webhooks() -> None:
    """Send what is due, and look at what has no journal entry, for ever."""
    await asyncio.gather(_in_turn(_send, POLL_SECONDS), _in_turn(_look, STANDING_SECONDS),
                         _in_turn(_forget, PRUNE_SECONDS))  # fmt: skip


async def _in_turn(work: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
    while True:
        began = monotonic()
        try:
            await work()
        except DatabaseError as error:
            log.warning("webhooks wait: %s", error)
        await asyncio.sleep(max(0.0, pause_seconds - (monotonic() - began)))


async def _send() -> None:
    await sync_to_async(close_old_connections)()
    while await deliver_due(open_connections, SystemRandom()):
        pass


async def _look() -> None:
    # It waits for the leader's answer, which sending must not.
    await sync_to_async(look, thread_sensitive=False)()


def look() -> None:
    """Tell what turned bad, if somebody wants to be told and a leader answers."""
    close_old_connections()
    wanted = Endpoint.objects.filter(enabled=True).values_list("events", flat=True)
    if not any(_OF_STANDING & set(events) for events in wanted):
        return
    try:
        status = ask.status()
    except Unavailable:
        return
    feed_standing(status.get("resources", {}), timezone.now())


async def _forget() -> None:
    await sync_to_async(prune)(settings.TANGRAM_RETENTION_DAYS)
