"""Composition root of what follows the journal (rows, live frames, metrics)."""

from __future__ import annotations

import logging
from contextlib import closing
from threading import Event
from time import monotonic, time

import redis
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections

from domain.errors import Unreadable
from scheduler.runtime.journal_consumer import Entries, Follower
from scheduler.runtime.redis.clients import connect
from scheduler.runtime.redis.journal import START, Journal, id_parts
from tangram_web.lib import bus
from tangram_web.live.frames import FrameFold
from tangram_web.live.gpu_history import Scenes, SceneStore
from tangram_web.live.project_frames import Parts
from tangram_web.live.publisher import FramePublisher
from tangram_web.live.rings import Rings
from tangram_web.live.ringstore import RingStore, WeekStore
from tangram_web.live.watching import watched
from tangram_web.live.weeks import Weeks
from tangram_web.metrics.store import MetricsStore
from tangram_web.records import projection
from tangram_web.webhooks import outbox

log = logging.getLogger(__name__)

#: Entries of this long are projected together: one transaction, and one row for short actions.
PROJECTION_PAUSE_SECONDS = 0.1
FRAME_SECONDS = 0.25
#: Between two attempts at an entry that cannot be read; each folds the journal before it again.
UNREADABLE_SECONDS = 30.0
METRICS_SECONDS = 1.0
#: Between two looks for projects that somebody watches.
WATCHED_SECONDS = 1.0


def projector(stop: Event) -> None:
    """Write rows until stopped."""

    def consume(entries: Entries) -> None:
        close_old_connections()
        projection.project(entries, also=outbox.feed)

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
    """Publish live frames and keep metrics until stopped.

    A fresh fold is filled from the retained journal; metrics go on from their stored position.
    """
    client = connect(settings.TANGRAM_REDIS_URL)
    layer = get_channel_layer()
    while not stop.is_set():
        try:
            with (
                FramePublisher(layer, client, settings.TANGRAM_KEY_PREFIX) as publisher,
                closing(Journal(client, bus.keys(), passes_over=True)) as journal,
            ):
                _publish(client, journal, publisher, stop)
        except redis.RedisError:
            stop.wait(1.0)
        except Unreadable as error:
            log.error("live frames and metrics stand still: %s", error)
            stop.wait(UNREADABLE_SECONDS)


def _publish(client: redis.Redis, journal: Journal, publisher: FramePublisher, stop: Event) -> None:
    store, position = MetricsStore(client, bus.keys()), START
    totals = store.load()
    fold, counted = FrameFold(totals), id_parts(totals.position)
    rings = RingStore(client, bus.keys())
    fold.rings = Rings(rings.newest())
    weeks = WeekStore(client, bus.keys())
    fold.pasts.weeks = Weeks(weeks.kept())
    scenes = SceneStore(client, bus.keys())
    _, newest = scenes.span() or (-1, -1)
    fold.scenes = Scenes(newest)
    parts, looked_at = Parts(fold), 0.0
    last_at, read_at, saved_at = 0.0, monotonic(), 0.0
    while not stop.is_set():
        entries = journal.read(position, count=500, block_seconds=1.0)
        for position, entry in entries:
            fold.fold(entry, counted=id_parts(position) <= counted)
            parts.fold(entry)
            last_at, read_at = entry.at, monotonic()
        if monotonic() - saved_at >= METRICS_SECONDS and id_parts(position) > counted:
            saved_at, counted, totals.position = monotonic(), id_parts(position), position
            store.save(totals)
        if len(entries) < 500 and last_at:
            if monotonic() - looked_at >= WATCHED_SECONDS:
                looked_at = monotonic()
                parts.watch(watched(client, settings.TANGRAM_KEY_PREFIX, time()))
            at = last_at + monotonic() - read_at
            publisher.publish(fold.frames(at) | parts.frames(at))
            if fold.rings.due:
                rings.save(fold.rings.take())
                weeks.save(fold.pasts.weeks.take())
                scenes.save(fold.scenes.take())
            stop.wait(FRAME_SECONDS)
