"""Where moments lie: one sorted set in Redis for each size, by their beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import redis

from domain.keys import Keys
from tangram_web.live.rings import RINGS, Moment

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Moment).decode


class RingStore:
    """Stores and reads moments."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def newest(self) -> dict[int, int]:
        """Return the beginning of the newest moment of each size; sizes without one are left out."""
        with self._client.pipeline(transaction=False) as pipeline:
            for step in RINGS:
                pipeline.zrange(self._keys.history(step), -1, -1, withscores=True)
            found = pipeline.execute()
        return {
            step: int(rows[0][1]) for step, rows in zip(RINGS, found, strict=True) if len(rows) > 0
        }

    def save(self, moments: Mapping[int, list[Moment]]) -> None:
        """Store moments, and let go of those that a ring has no room for."""
        with self._client.pipeline(transaction=True) as pipeline:
            for step, fresh in moments.items():
                if fresh:
                    key = self._keys.history(step)
                    pipeline.zadd(key, {_encode(one): one.at for one in fresh})
                    pipeline.zremrangebyscore(
                        key, "-inf", f"({fresh[-1].at - step * RINGS[step] + step}"
                    )
            pipeline.execute()

    def read(self, step: int, first: float, last: float) -> list[Moment]:
        """Return the moments of ``step`` seconds that begin in [first, last), oldest first."""
        rows = self._client.zrangebyscore(self._keys.history(step), first, f"({last}")
        return [_decode(row) for row in cast("list[Any]", rows)]
