"""The webhook jobs: deliver what is due, watch saved views, and maintain the rows."""

from __future__ import annotations

import asyncio
from random import SystemRandom
from typing import Final

from asgiref.sync import async_to_sync
from django.conf import settings

from managers.common.api_calls.egress import open_connections
from tangram_web.lib.jobs import job, stopping
from tangram_web.webhooks.delivery import deliver_due, is_due, prune
from tangram_web.webhooks.services import reseal_secrets
from tangram_web.webhooks.watched_views import announce_views, watches

EVERY_SECONDS: Final = 1.0
WATCH_EVERY_SECONDS: Final = 30.0
MAINTAIN_EVERY_SECONDS: Final = 3600.0
#: How soon a delivery that waits for its receiver notices that its worker ends.
STOP_CHECK_SECONDS: Final = 0.2


@job("webhooks.deliver", every_seconds=EVERY_SECONDS, is_due=is_due)
def deliver_webhooks() -> None:
    """Send every delivery that is due."""
    async_to_sync(_deliver)()


async def _deliver() -> None:
    while not stopping.is_set():
        batch = asyncio.ensure_future(deliver_due(open_connections, SystemRandom()))
        while not batch.done():
            await asyncio.wait({batch}, timeout=STOP_CHECK_SECONDS)
            if stopping.is_set():
                batch.cancel()
        if batch.cancelled() or not batch.result():
            return


@job("webhooks.watch_views", every_seconds=WATCH_EVERY_SECONDS, is_due=watches)
def watch_views() -> None:
    """Announce saved views that find rows, and those that find none any more."""
    announce_views()


@job("webhooks.maintain", every_seconds=MAINTAIN_EVERY_SECONDS)
def maintain_webhooks() -> None:
    """Seal secrets under the present key, and delete deliveries beyond `TANGRAM_RETENTION_DAYS`."""
    reseal_secrets()
    prune(settings.TANGRAM_RETENTION_DAYS)
