"""What lay on which GPUs, for hours: scenes of the chunk map, a state every 15 s in which it changed.

A moment of the rings merges by addition; a state does not, so scenes are kept beside them: by wall
clock, made by the fold that makes the rings, and made again from the retained journal after a
restart (decision 0023). A state that does not change is told again every `STILL_SECONDS`, so that a
time that nobody watched is told from one in which nothing happened.
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
from tangram_web.live.residents import Residents

#: Between two scenes, at least; and at most, while somebody watches.
STEP_SECONDS: Final = 15
STILL_SECONDS: Final = 300
#: Scenes older than that are forgotten.
KEPT_SECONDS: Final = 6 * 3600
#: Scenes that wait to be stored, at most.
_WAITING: Final = KEPT_SECONDS // STEP_SECONDS


class Scene(msgspec.Struct, array_like=True):
    """The GPUs of all nodes at one instant, as rows of the topics `nodes` and `holders` say it."""

    #: Wall clock, whole seconds.
    at: int
    #: Node → name, pool, state, gpus, holders of GPUs, and how many more there are.
    nodes: list[dict[str, Any]]
    residents: list[dict[str, Any]]
    #: Services that came and went since the scene before, newest first.
    log: list[dict[str, Any]]


class Scenes:
    """Makes scenes out of what the fold knows, and gives out those that are not stored yet."""

    def __init__(self, newest: int = -1) -> None:
        #: Wall clock of the newest scene that was made, now or before a restart.
        self._newest = newest
        self._told: int | None = None
        self._waiting: deque[Scene] = deque(maxlen=_WAITING)

    def look(
        self, wall: int, offset: float, capacity: Capacity, holders: Holders, residents: Residents
    ) -> None:
        """Take the state at ``wall`` if it is time; ``offset`` is wall clock minus journal time."""
        if wall % STEP_SECONDS or wall <= self._newest or not capacity.has_gpus:
            return
        nodes = _gpu_nodes(capacity, holders, offset)
        told = residents.rows(offset)
        state = hash(msgspec.json.encode((nodes, told["residents"])))
        if state == self._told and wall - self._newest < STILL_SECONDS:
            return
        log = [row for row in told["log"] if row["at"] > self._newest]
        self._waiting.append(Scene(wall, nodes, told["residents"], log))
        self._newest, self._told = wall, state

    def take(self) -> list[Scene]:
        """Return the scenes that are not stored yet, and keep them no longer."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def _gpu_nodes(capacity: Capacity, holders: Holders, offset: float) -> list[dict[str, Any]]:
    held = {row["name"]: row for row in holders.now(offset)}
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
_decode = msgspec.msgpack.Decoder(Scene).decode


class SceneStore:
    """Stores and finds scenes: a sorted set in Redis by their wall clock."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._key = keys.scenes

    def span(self) -> tuple[int, int] | None:
        """Return the wall clock of the oldest and of the newest scene; None without any."""
        ends: Any = [self._client.zrange(self._key, at, at, withscores=True) for at in (0, -1)]
        return (int(ends[0][0][1]), int(ends[1][0][1])) if ends[0] else None

    def save(self, scenes: Iterable[Scene]) -> None:
        """Store scenes, and let go of those that are too old."""
        fresh = {zlib.compress(_encode(scene), 1): scene.at for scene in scenes}
        if fresh:
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.zadd(self._key, fresh)
                pipeline.zremrangebyscore(
                    self._key, "-inf", f"({max(fresh.values()) - KEPT_SECONDS}"
                )
                pipeline.execute()

    def at(self, wall: float) -> Scene | None:
        """Return how things stood at ``wall``; None where nobody knows."""
        found: Any = self._client.zrevrangebyscore(
            self._key, wall, wall - STILL_SECONDS - STEP_SECONDS, start=0, num=1
        )
        return _decode(zlib.decompress(found[0])) if found else None
