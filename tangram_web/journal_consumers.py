"""Composition root of the journal's consumers: rows, live frames and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from domain.errors import Unreadable
from scheduler.runtime.body_store import BodyLost, BodyStore
from scheduler.runtime.journal_consumer import Entries, JournalConsumer
from scheduler.runtime.object_store.objects import ObjectStore
from scheduler.runtime.object_store.store_address import open_store
from scheduler.runtime.object_store.sweeping import sweep
from scheduler.runtime.recent_entries import RecentEntries
from scheduler.runtime.redis.clients import connect, connect_async
from scheduler.runtime.redis.image_registry import ImageRegistry
from scheduler.runtime.redis.journal import START, Journal, id_parts
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry
from scheduler.runtime.stored_actions import whole_result
from tangram_web.lib import bus
from tangram_web.live.publisher import FramePublisher, LiveFeed
from tangram_web.metrics.store import MetricsStore
from tangram_web.records import projection
from tangram_web.records.open_rows import OpenRows
from tangram_web.webhooks import outbox

log = logging.getLogger(__name__)

#: Entries of this period are projected together: one transaction, one row write per short action.
PROJECTION_PAUSE_SECONDS = 0.1
#: The same under load, where larger batches cost less for each action.
BUSY_PROJECTION_PAUSE_SECONDS = 1.0
FRAME_SECONDS = 0.25
#: Between two attempts at an unreadable entry; each folds the journal from its beginning.
UNREADABLE_SECONDS = 30.0
METRICS_SECONDS = 1.0
BODIES_SECONDS = 3600.0
#: Between two updates of the followed projects.
FOLLOWED_SECONDS = 1.0
#: Longest wait for an entry: frames are then published as a sign of life.
BLOCK_SECONDS = 2.0
#: Journal entries per read; frames are published once the fold has caught up.
READ_COUNT = 500


def rows_and_frames() -> list[tuple[str, Callable[[Event], None]]]:
    """Return the writer of rows and the publisher of frames, which decode the journal once under load."""
    recent = RecentEntries()
    return [
        ("projector", partial(projector, recent=recent)),
        ("frames", partial(frames, recent=recent)),
    ]


def projector(stop: Event, recent: RecentEntries | None = None) -> None:
    """Write rows until stopped."""
    store, open_rows = _body_store(), OpenRows()

    def whole(result: Any) -> Any:
        try:
            return whole_result(result, store)
        except BodyLost as error:
            log.error("a row shows the preview of its result: %s", error)
            return result

    def start() -> str:
        _keep_usable_connection()
        return projection.position()

    def consume(entries: Entries) -> None:
        _keep_usable_connection()
        projection.project(entries, also=outbox.store_events, whole=whole, open_rows=open_rows)

    JournalConsumer(
        connect(settings.TANGRAM_REDIS_URL),
        bus.keys(),
        "projector",
        start,
        consume,
        pause_seconds=PROJECTION_PAUSE_SECONDS,
        busy_pause_seconds=BUSY_PROJECTION_PAUSE_SECONDS,
        recent=recent,
        page=500,
        retry_on=(DatabaseError,),
    ).run(stop)


def _keep_usable_connection() -> None:
    """Close the connection to the database after an error; else keep it, with its cache and statements."""
    connection.close_at = None
    connection.close_if_unusable_or_obsolete()


def bodies(stop: Event) -> None:
    """Delete stored bodies that are older than rows may be, and objects that nothing refers to, until stopped."""
    store, days = _body_store(), settings.TANGRAM_RETENTION_DAYS
    objects = open_store(settings.TANGRAM_OBJECT_STORE)
    while (days > 0 or objects is not None) and not stop.is_set():
        try:
            if days > 0:
                store.clean((days + 1) * 86_400)
        except OSError as error:
            log.warning("stored bodies cannot be cleaned up: %s", error)
        if objects is not None:
            asyncio.run(_sweep(objects))
        stop.wait(BODIES_SECONDS)
    stop.wait()


async def _sweep(objects: ObjectStore) -> None:
    client = connect_async(settings.TANGRAM_REDIS_URL)
    try:
        keys = bus.keys()
        await sweep(objects, SnapshotRegistry(client, keys), ImageRegistry(client, keys))
    finally:
        await client.aclose()


def _body_store() -> BodyStore:
    folder = settings.TANGRAM_BODIES_DIRECTORY
    return BodyStore(Path(folder) if folder else None)


def frames(stop: Event, recent: RecentEntries | None = None) -> None:
    """Publish live frames and keep metrics until stopped; what is read is added to ``recent``.

    A new fold is filled from the retained journal; metrics continue from their stored position.
    """
    client = connect(settings.TANGRAM_REDIS_URL)
    layer = get_channel_layer()
    while not stop.is_set():
        try:
            with (
                FramePublisher(layer, client, settings.TANGRAM_KEY_PREFIX) as publisher,
                closing(Journal(client, bus.keys(), skips_set_aside=True)) as journal,
            ):
                _publish(client, journal, publisher, stop, recent or RecentEntries())
        except redis.RedisError:
            stop.wait(1.0)
        except Unreadable as error:
            log.error("live frames and metrics stopped at an unreadable journal entry: %s", error)
            stop.wait(UNREADABLE_SECONDS)


def _publish(
    client: redis.Redis,
    journal: Journal,
    publisher: FramePublisher,
    stop: Event,
    recent: RecentEntries,
) -> None:
    store, position = MetricsStore(client, bus.keys()), START
    totals = store.load()
    feed, counted = LiveFeed(client, bus.keys(), totals), id_parts(totals.position)
    last_at, read_at, saved_at, followed_at = 0.0, monotonic(), 0.0, 0.0
    while not stop.is_set():
        entries = journal.read(position, count=READ_COUNT, block_seconds=BLOCK_SECONDS)
        recent.add(position, entries)
        for position, entry in entries:
            feed.fold(entry, counted=id_parts(position) <= counted)
            last_at, read_at = entry.at, monotonic()
        if monotonic() - saved_at >= METRICS_SECONDS and id_parts(position) > counted:
            saved_at, counted, totals.position = monotonic(), id_parts(position), position
            store.save(totals)
        if len(entries) < READ_COUNT and last_at:
            if monotonic() - followed_at >= FOLLOWED_SECONDS:
                followed_at = monotonic()
                feed.follow_projects()
            publisher.publish(feed.frames(last_at + monotonic() - read_at))
            feed.save_history()
            if entries:
                stop.wait(FRAME_SECONDS)
