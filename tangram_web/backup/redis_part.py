"""Lasting Redis keys as one file: key, time to live and the output of DUMP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import redis

from domain.errors import Conflict, InvalidRequest
from domain.redis_keys import Keys

#: Added to a restored epoch, so that it exceeds every epoch elected since the backup.
EPOCH_JUMP = 1_000_000


class Saved(msgspec.Struct, array_like=True):
    """One key."""

    key: bytes
    #: Milliseconds, 0 without expiry, as RESTORE expects it.
    ttl: int
    value: bytes


def lasting_keys(client: redis.Redis, keys: Keys) -> list[bytes]:
    """Return the keys that are meaningful to later processes."""
    named = (
        keys.inbox, keys.journal, keys.epoch, keys.snapshot, keys.config, keys.capacity,
        keys.positions, keys.metrics, keys.dead_letters, keys.arrivals,
    )  # fmt: skip
    loads = cast("list[bytes]", client.hkeys(keys.project_loads))
    projects = [load[3:].decode() for load in loads if load.startswith(b"an:")]
    arrivals = [keys.arrivals_of(project) for project in projects]
    remembered = client.scan_iter(match=f"{keys.prefix}:idempotency:*", count=1000)
    return [name.encode() for name in (*named, *arrivals)] + [bytes(key) for key in remembered]


def save(client: redis.Redis, keys: Keys, path: Path) -> int:
    """Write a consistent copy of the lasting keys to ``path``; return their number."""
    chosen = lasting_keys(client, keys)
    with client.pipeline(transaction=True) as pipeline:
        for key in chosen:
            pipeline.pttl(key)
            pipeline.dump(key)
        answers = pipeline.execute()
    entries = [
        Saved(key, max(0, ttl), value)
        for key, ttl, value in zip(chosen, answers[::2], answers[1::2], strict=True)
        if value is not None
    ]
    path.write_bytes(msgspec.msgpack.encode(entries))
    return len(entries)


def load(client: redis.Redis, keys: Keys, path: Path, *, replace: bool) -> int:
    """Restore saved keys, with the epoch raised by `EPOCH_JUMP`; return their number.

    Raises Conflict while a loop leads, and when keys exist and ``replace`` is not given.
    """
    leader = cast("bytes | None", client.get(keys.leader))
    if leader is not None:
        raise Conflict(f"{leader.decode()} leads: stop all loops before a restore")
    present = list(_ours(client, keys))
    if present and not replace:
        raise Conflict(f"Redis holds {len(present)} keys of a system; --replace deletes them")
    entries = _read(path)
    with client.pipeline(transaction=True) as pipeline:
        for key in present:
            pipeline.delete(key)
        for saved in entries:
            pipeline.restore(saved.key, saved.ttl, saved.value, replace=True)
        pipeline.incrby(keys.epoch, EPOCH_JUMP)
        pipeline.execute()
    return len(entries)


def _read(path: Path) -> list[Saved]:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=list[Saved])
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{path} is not the Redis part of a backup: {error}") from error


def _ours(client: redis.Redis, keys: Keys) -> Iterator[bytes]:
    """Yield every key below the prefix except those of the Celery broker."""
    for key in client.scan_iter(match=f"{keys.prefix}:*", count=1000):
        if not bytes(key).startswith(f"{keys.prefix}:jobs:".encode()):
            yield bytes(key)
