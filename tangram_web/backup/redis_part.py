"""What Redis holds, as one file: key, time to live and Redis' own serialisation of each value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import redis

from domain.errors import Conflict, InvalidRequest
from domain.redis_keys import Keys

#: How far a restored epoch jumps ahead of the saved one: beyond any that was elected meanwhile.
EPOCH_JUMP = 1_000_000


class Saved(msgspec.Struct, array_like=True):
    """One key."""

    key: bytes
    #: Milliseconds; 0 for ever, as RESTORE takes it.
    ttl: int
    value: bytes


def lasting_keys(client: redis.Redis, keys: Keys) -> list[bytes]:
    """Return our keys that mean something to other processes than those that run now."""
    named = (
        keys.inbox, keys.journal, keys.epoch, keys.snapshot, keys.config, keys.capacity,
        keys.positions, keys.metrics, keys.dead_letters,
    )  # fmt: skip
    remembered = client.scan_iter(match=f"{keys.prefix}:idempotency:*", count=1000)
    return [name.encode() for name in named] + [bytes(key) for key in remembered]


def save(client: redis.Redis, keys: Keys, path: Path) -> int:
    """Write our lasting keys, as they are at one instant, to ``path``; return how many there are."""
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
    """Put saved keys back, with the epoch ahead of its time; return how many.

    Raises Conflict while somebody leads, and when there is a Tangram already and ``replace`` is
    not given.
    """
    leader = cast("bytes | None", client.get(keys.leader))
    if leader is not None:
        raise Conflict(f"{leader.decode()} leads: stop all loops before a restore")
    present = list(_ours(client, keys))
    if present and not replace:
        raise Conflict(f"Redis holds {len(present)} keys of a Tangram; --replace deletes them")
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
    """Yield every key of this Tangram but those of the broker, which has its own prefix below it."""
    for key in client.scan_iter(match=f"{keys.prefix}:*", count=1000):
        if not bytes(key).startswith(f"{keys.prefix}:jobs:".encode()):
            yield bytes(key)
