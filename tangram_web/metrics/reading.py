"""Present state of the control plane, read from Redis: leader, lags of streams, workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from time import time
from typing import Any, cast

import msgspec
import redis

from domain.codec import read_entry
from domain.errors import Unreadable
from domain.redis_keys import Keys
from tangram_web.metrics.store import CONSUMER

#: Consumers of the journal in every installation.
READERS = ("projector", CONSUMER)
#: A worker without a heartbeat for this long counts as gone.
WORKER_SECONDS = 10.0
#: Number of entries of a stream after a position, counted in Redis up to a limit.
_COUNT = "return #redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])"
_MOST_COUNTED = 10_000
#: The lowest stream id.
_START = b"0-0"


class Lag(msgspec.Struct, frozen=True):
    """Distance of a reader of the journal from its end."""

    entries: int
    #: Between the times of the last entry that it has read and of the newest one.
    seconds: float


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one GPU as NVML reported it."""

    node: str
    #: Its number in NVML's order.
    gpu: int
    #: Share of the last sampling period in which it was busy, 0 to 1; None: unknown.
    busy_ratio: float | None
    used_bytes: int
    #: None: reported by a node worker of an earlier version.
    total_bytes: int | None
    #: Wall clock of the heartbeat.
    at: float


class SystemReading(msgspec.Struct):
    """State of the control plane at one instant."""

    leader: str | None
    epoch: int
    #: Seconds since the leader's last heartbeat; None without a leader that sent one.
    tick_lag_seconds: float | None
    #: Inbox entries that the leader has not handled yet.
    inbox_entries: int
    #: Reader of the journal → its lag.
    lags: dict[str, Lag]
    #: Messages that were set aside because they could not be processed.
    dead_letters: int
    #: Live workers, as they describe themselves.
    workers: list[dict[str, Any]]
    #: All that ever showed life and were not deleted.
    known: list[dict[str, Any]] = []

    def life_of_leader(self) -> dict[str, Any]:
        """Return the leader's description of itself; empty without a live leader."""
        return next((w for w in self.workers if w["name"] == self.leader), {})

    def repairs(self) -> dict[tuple[str], int]:
        """Return the number of cpuset repairs by each node's worker since it started."""
        return {
            (worker["name"].removeprefix("node@"),): worker["repairs"]
            for worker in self.workers
            if "repairs" in worker
        }

    def gpus(self) -> Iterator[GpuReading]:
        """Yield what NVML said of each GPU in the latest heartbeat of its node."""
        for worker in self.workers:
            totals = worker.get("gpu_memory", {})
            for unit, (busy_ratio, used_bytes) in sorted(worker.get("gpus", {}).items()):
                yield GpuReading(
                    node=worker["name"].removeprefix("node@"),
                    gpu=int(unit),
                    busy_ratio=busy_ratio,
                    used_bytes=used_bytes,
                    total_bytes=totals.get(unit),
                    at=worker["at"],
                )

    def service_memory(self) -> Iterator[tuple[str, int, int]]:
        """Yield each node that measures it, the host memory that services use, and its limit."""
        for worker in self.workers:
            if (memory := worker.get("service_memory")) is not None:
                used_bytes, capacity_bytes = memory
                yield worker["name"].removeprefix("node@"), used_bytes, capacity_bytes

    def standby_lag(self) -> list[float]:
        """Return how far the best standby is behind the leader; nothing while none keeps a state."""
        return sorted(w["behind_seconds"] for w in self.workers if w.get("behind_seconds") is not None)[:1]  # fmt: skip

    def warm(self) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        """Yield the prepared environments of each image on a node, as (node, image) with `WarmFacts`."""
        for worker in self.workers:
            node = worker["name"].removeprefix("node@")
            for image, facts in sorted(worker.get("warm", {}).items()):
                yield (node, image), facts


def read_system(client: redis.Redis, keys: Keys, consumers: Iterable[str] = ()) -> SystemReading:
    """Read the present state. ``consumers`` are included even before they have a position.

    Raises redis.RedisError when Redis does not answer.
    """
    with client.pipeline(transaction=False) as pipeline:
        pipeline.get(keys.leader)
        pipeline.get(keys.epoch)
        pipeline.hgetall(keys.workers)
        pipeline.hgetall(keys.positions)
        pipeline.xrevrange(keys.journal, count=1)
        pipeline.hlen(keys.dead_letters)
        pipeline.xrevrange(keys.inbox, count=1)
        leader, epoch, workers, positions, newest, letters, unread = pipeline.execute()
    name = leader.decode() if leader else None
    known = _known(workers)
    alive = [worker for worker in known if time() - worker["at"] <= WORKER_SECONDS]
    # Includes a leader that counts as gone: the age of its heartbeat is the alarm.
    ages = [max(0.0, time() - worker["at"]) for worker in known if worker["name"] == name]
    places = {consumer.encode(): _START for consumer in consumers} | positions
    handled = next((w["inbox_id"] for w in alive if w["name"] == name and "inbox_id" in w), "0-0")
    inbox = 0
    if unread and unread[0][0].decode() != handled:
        inbox = cast("int", client.eval(_COUNT, 1, keys.inbox, handled, _MOST_COUNTED))
    return SystemReading(
        leader=name,
        epoch=int(epoch or 0),
        tick_lag_seconds=min(ages, default=None),
        inbox_entries=inbox,
        lags={
            consumer.decode(): _lag(client, keys, place, newest)
            for consumer, place in sorted(places.items())
        },
        dead_letters=letters,
        workers=alive,
        known=known,
    )


def _known(rows: dict[bytes, bytes]) -> list[dict[str, Any]]:
    return [{"name": name.decode(), **json.loads(body)} for name, body in rows.items()]


def _lag(client: redis.Redis, keys: Keys, place: bytes, newest: list[Any]) -> Lag:
    if not newest or newest[0][0] == place:
        return Lag(0, 0.0)
    last_id, fields = newest[0]
    # The entry at a consumer's position exists: trimming stops right before it. A consumer without
    # a position has to read the oldest entry, too.
    at_id, at_fields = cast("list[Any]", client.xrange(keys.journal, place, "+", count=1))[0]
    unread = _seq(last_id, fields) - _seq(at_id, at_fields) + (at_id != place)
    seconds = (_milliseconds(last_id) - _milliseconds(at_id)) / 1000
    return Lag(max(0, unread), max(0.0, seconds))


def _seq(stream_id: bytes, fields: dict[bytes, bytes]) -> int:
    """Return the number of an entry; 0 for an unreadable one, which its readers report."""
    try:
        return read_entry(stream_id.decode(), fields).seq
    except Unreadable:
        return 0


def _milliseconds(stream_id: bytes) -> int:
    return int(stream_id.partition(b"-")[0])
