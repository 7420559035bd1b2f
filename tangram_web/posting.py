"""Composition root of the webhooks: the outbox and the guard of API calls."""

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

from managers.common.api_calls.driver import open_connections
from tangram_web.webhooks.delivering import deliver_due, prune
from tangram_web.webhooks.services import secrets_seal_anew

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
#: Between two looks for what is old, and for secrets under a key that was rotated.
TIDY_SECONDS: Final = 3600.0


async def webhooks() -> None:
    """Send what is due, and keep the rows tidy, for ever."""
    await asyncio.gather(_in_turn(_send, POLL_SECONDS), _in_turn(_tidy, TIDY_SECONDS))


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


async def _tidy() -> None:
    await sync_to_async(secrets_seal_anew)()
    await sync_to_async(prune)(settings.TANGRAM_RETENTION_DAYS)
