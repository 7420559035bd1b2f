"""``python -m tangram_web.access_keeper``: the keeper of node access (`scheduler.runtime.node_access`), a process of its own.

It has the right to make users of Redis, so it is no worker that other parts could be hosted in or sent jobs to: it loads neither
apps of Django nor Celery, and knows the address of Redis alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
from logging.config import dictConfig

from django.conf import settings

from scheduler.runtime.node_access import NodeAccessKeeper
from scheduler.runtime.redis.clients import connect_async
from tangram_web.lib import bus


async def keep() -> None:
    """Keep the users of nodes until SIGTERM or SIGINT."""
    client = connect_async(settings.TANGRAM_REDIS_URL)
    keeping = asyncio.create_task(NodeAccessKeeper(client, bus.keys()).run())
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, keeping.cancel)
    try:
        await asyncio.wait({keeping})
        if not keeping.cancelled():
            keeping.result()
    finally:
        await client.aclose()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tangram_web.settings")
    dictConfig(settings.LOGGING)
    asyncio.run(keep())
