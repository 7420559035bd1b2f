"""Composition root of what follows the journal: rows, and live frames."""

from __future__ import annotations

from threading import Event
from time import monotonic

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections

from scheduler.runtime.connection import connect
from scheduler.runtime.follower import Entries, Follower
from scheduler.runtime.journal import START, Journal
from tangram_web.lib import bus
from tangram_web.live.frames import FrameFold
from tangram_web.live.publisher import FramePublisher
from tangram_web.records import projection

#: Entries of this long are projected together: one transaction, and one row for short actions.
PROJECTION_PAUSE_SECONDS = 0.1
FRAME_SECONDS = 0.25


def projector(stop: Event) -> None:
    """Write rows until stopped."""

    def consume(entries: Entries) -> None:
        close_old_connections()
        projection.project(entries)

    Follower(
        connect(settings.TANGRAM_REDIS_URL),
        bus.keys(),
        "projector",
        projection.position,
        consume,
        pause_seconds=PROJECTION_PAUSE_SECONDS,
        page=500,
        retry_on=(DatabaseError,),
    ).run(stop)


def frames(stop: Event) -> None:
    """Publish live frames until stopped. A fresh fold is filled from the retained journal."""
    client = connect(settings.TANGRAM_REDIS_URL)
    layer = get_channel_layer()
    while not stop.is_set():
        try:
            with FramePublisher(layer, client, settings.TANGRAM_KEY_PREFIX) as publisher:
                _publish(client, publisher, stop)
        except redis.RedisError:
            stop.wait(1.0)


def _publish(client: redis.Redis, publisher: FramePublisher, stop: Event) -> None:
    fold, journal, position = FrameFold(), Journal(client, bus.keys()), START
    last_at, read_at = 0.0, monotonic()
    while not stop.is_set():
        entries = journal.read(position, count=500, block_seconds=1.0)
        for position, entry in entries:  # noqa: B007 - the last one is where to go on
            fold.fold(entry)
            last_at, read_at = entry.at, monotonic()
        if len(entries) < 500 and last_at:
            publisher.publish(fold.frames(last_at + monotonic() - read_at))
            stop.wait(FRAME_SECONDS)
