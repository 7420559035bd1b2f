"""Where moments lie: one sorted set in Redis for each size, by their beginning.

Those of all projects together are always kept; of single projects, those of a few (`weeks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.live.rings import RINGS, Moment
from tangram_web.live.weeks import SIZES, Changes, Kept

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Moment).decode


class RingStore:
    """Stores and reads moments of all projects together, or of one."""

    def __init__(self, client: redis.Redis, keys: Keys, project: str = "") -> None:
        self._client = client
        self._keys = keys
        self._project = project

    def newest(self) -> dict[int, int]:
        """Return the beginning of the newest moment of each size; sizes without one are left out."""
        with self._client.pipeline(transaction=False) as pipeline:
            for step in RINGS:
                pipeline.zrange(self._key(step), -1, -1, withscores=True)
            found = pipeline.execute()
        return {
            step: int(rows[0][1]) for step, rows in zip(RINGS, found, strict=True) if len(rows) > 0
        }

    def save(self, moments: Mapping[int, list[Moment]]) -> None:
        """Store moments, and let go of those that a ring has no room for."""
        with self._client.pipeline(transaction=True) as pipeline:
            for step, fresh in moments.items():
                if fresh:
                    key = self._key(step)
                    pipeline.zadd(key, {_encode(one): one.at for one in fresh})
                    pipeline.zremrangebyscore(
                        key, "-inf", f"({fresh[-1].at - step * RINGS[step] + step}"
                    )
            pipeline.execute()

    def read(self, step: int, first: float, last: float) -> list[Moment]:
        """Return the moments of ``step`` seconds that begin in [first, last), oldest first."""
        rows = self._client.zrangebyscore(self._key(step), first, f"({last}")
        return [_decode(row) for row in cast("list[Any]", rows)]

    def _key(self, step: int) -> str:
        return self._keys.history(step, self._project)


class WeekStore:
    """Stores what is kept of single projects."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def kept(self) -> dict[str, Kept]:
        """Return what is stored of which project."""
        found: Any = self._client.zrange(self._keys.histories, 0, -1, withscores=True)
        return {
            (project := name.decode()): Kept(
                stirred, RingStore(self._client, self._keys, project).newest()
            )
            for name, stirred in found
        }

    def keeps(self, project: str) -> bool:
        """Say whether the past of a project is kept."""
        return self._client.zscore(self._keys.histories, project) is not None

    def save(self, changes: Changes) -> None:
        """Store moments, and let go of the projects that are forgotten."""
        with self._client.pipeline(transaction=True) as pipeline:
            for project in changes.forgotten:
                pipeline.zrem(self._keys.histories, project)
                pipeline.delete(*(self._keys.history(step, project) for step in SIZES))
            if changes.stirred:
                pipeline.zadd(self._keys.histories, dict(changes.stirred))
            pipeline.execute()
        for project, moments in changes.moments.items():
            RingStore(self._client, self._keys, project).save(moments)
