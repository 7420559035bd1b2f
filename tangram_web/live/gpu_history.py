"""History of the GPU map: snapshots of all GPUs every 15 s in which they changed, for six hours.

Rollups merge by addition; a state does not, so snapshots are stored beside them: by wall clock,
made by the fold that makes the rollups, and made again from the retained journal after a restart
(decision 0023). A state without a change is repeated every `REPEAT_SECONDS`, which tells it apart
from a time in which no fold ran. A snapshot stores the restores and evictions since the one before; a
reader gets the latest `MAX_LOG` up to its instant, as the live map shows them.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.live.capacity import Capacity
from tangram_web.live.holders import Holders
from tangram_web.live.residents import MAX_LOG, GpuResidents

#: Between two snapshots, at least; and at most, while the fold runs.
STEP_SECONDS: Final = 15
REPEAT_SECONDS: Final = 300
#: Older snapshots are deleted.
RETAINED_SECONDS: Final = 6 * 3600
#: Snapshots that are read for the log of one instant, at most.
_MAX_READ: Final = 120
#: Snapshots that wait to be stored, at most.
_MAX_PENDING: Final = RETAINED_SECONDS // STEP_SECONDS


class GpuSnapshot(msgspec.Struct, array_like=True):
    """The GPUs of all nodes at one instant, as rows of the topics `nodes` and `holders`."""

    #: Wall clock, whole seconds.
    at: int
    #: Node → name, pool, state, gpus, holders of GPUs, and the number of holders left out.
    nodes: list[dict[str, Any]]
    residents: list[dict[str, Any]]
    #: Loads and evictions of services since the snapshot before, newest first.
    log: list[dict[str, Any]]


class GpuHistory:
    """Makes snapshots of a fold's state, and holds them until they are stored."""

    def __init__(self, newest: int = -1) -> None:
        #: Wall clock of the newest snapshot, made now or before a restart.
        self._newest = newest
        #: Hash of its state.
        self._state: int | None = None
        self._pending: deque[GpuSnapshot] = deque(maxlen=_MAX_PENDING)

    def record(
        self,
        wall: int,
        offset: float,
        capacity: Capacity,
        holders: Holders,
        residents: GpuResidents,
    ) -> None:
        """Make a snapshot at ``wall`` if one is due; ``offset`` is wall clock minus journal time."""
        if wall % STEP_SECONDS or wall <= self._newest or not capacity.has_gpus:
            return
        nodes = _gpu_nodes(capacity, holders, wall - offset, offset)
        rows = residents.rows(offset)
        state = hash(msgspec.json.encode((nodes, rows["residents"])))
        if state == self._state and wall - self._newest < REPEAT_SECONDS:
            return
        log = [row for row in rows["log"] if row["at"] > self._newest]
        self._pending.append(GpuSnapshot(wall, nodes, rows["residents"], log))
        self._newest, self._state = wall, state

    def take(self) -> list[GpuSnapshot]:
        """Return and remove the snapshots that are not stored yet."""
        taken = list(self._pending)
        self._pending.clear()
        return taken


def _gpu_nodes(
    capacity: Capacity, holders: Holders, at: float, offset: float
) -> list[dict[str, Any]]:
    held = {row["name"]: row for row in holders.current_rows(at, offset)}
    return [
        {name: row[name] for name in ("name", "pool", "state", "gpus")}
        | {
            "holders": [
                one
                for one in held.get(row["name"], {"holders": []})["holders"]
                if one["kind"] == "gpu"
            ]
        }
        for row in capacity.rows()
        if row["gpus"]["groups"]
    ]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GpuSnapshot).decode


class GpuHistoryStore:
    """Stores and finds snapshots: a sorted set in Redis by their wall clock."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._key = keys.scenes

    def span(self) -> tuple[int, int] | None:
        """Return the wall clock of the oldest and of the newest snapshot; None without any."""
        ends: Any = [self._client.zrange(self._key, at, at, withscores=True) for at in (0, -1)]
        return (int(ends[0][0][1]), int(ends[1][0][1])) if ends[0] else None

    def save(self, snapshots: Iterable[GpuSnapshot]) -> None:
        """Store snapshots, and delete those that are too old."""
        fresh = {zlib.compress(_encode(snapshot), 1): snapshot.at for snapshot in snapshots}
        if fresh:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.zadd(self._key, fresh)
                pipeline.zremrangebyscore(
                    self._key, "-inf", f"({max(fresh.values()) - RETAINED_SECONDS}"
                )
                pipeline.execute()

    def at(self, wall: float) -> GpuSnapshot | None:
        """Return the state at ``wall``; None where no fold ran or it is no longer stored.

        Its log has the latest restores and evictions of all snapshots up to it.
        """
        found: Any = self._client.zrevrangebyscore(
            self._key, wall, "-inf", start=0, num=_MAX_READ, withscores=True
        )
        if not found or found[0][1] < wall - REPEAT_SECONDS - STEP_SECONDS:
            return None
        snapshot = _decode(zlib.decompress(found[0][0]))
        log = list(snapshot.log)
        for packed, _ in found[1:]:
            if len(log) >= MAX_LOG:
                break
            log += _decode(zlib.decompress(packed)).log
        return msgspec.structs.replace(snapshot, log=log[:MAX_LOG])
