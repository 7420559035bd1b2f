"""Rollups in Redis: one sorted set for each size, scored by their beginning.

Those of all projects together are always stored; of single projects, those of a few (`projects`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.live.rollups.projects import PROJECT_SIZES, PendingRollups, StoredProject
from tangram_web.live.rollups.rollup import RETAINED, Rollup

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Rollup).decode


class RollupStore:
    """Stores and reads rollups. An empty project name means all projects together."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def newest(self, project: str = "") -> dict[int, int]:
        """Return the beginning of the newest rollup of each size; sizes without one are left out."""
        with self._client.pipeline(transaction=False) as pipeline:
            for size in RETAINED:
                pipeline.zrange(self._keys.history(size, project), -1, -1, withscores=True)
            found = pipeline.execute()
        return {
            size: int(rows[0][1])
            for size, rows in zip(RETAINED, found, strict=True)
            if len(rows) > 0
        }

    def save(self, rollups: Mapping[int, list[Rollup]], project: str = "") -> None:
        """Store rollups, and delete those that are older than the retention of their size."""
        with self._client.pipeline(transaction=True) as pipeline:
            for size, fresh in rollups.items():
                if fresh:
                    key = self._keys.history(size, project)
                    pipeline.zadd(key, {_encode(one): one.at for one in fresh})
                    oldest = fresh[-1].at - size * RETAINED[size] + size
                    pipeline.zremrangebyscore(key, "-inf", f"({oldest}")
            pipeline.execute()

    def read(self, size: int, first: float, last: float, project: str = "") -> list[Rollup]:
        """Return the rollups of ``size`` seconds that begin in [first, last), oldest first."""
        key = self._keys.history(size, project)
        rows = self._client.zrangebyscore(key, first, f"({last}")
        return [_decode(row) for row in cast("list[Any]", rows)]

    def projects(self) -> dict[str, StoredProject]:
        """Return the projects whose rollups are stored."""
        found: Any = self._client.zrange(self._keys.histories, 0, -1, withscores=True)
        return {
            (project := name.decode()): StoredProject(active_at, self.newest(project))
            for name, active_at in found
        }

    def has_project(self, project: str) -> bool:
        """Return whether rollups of a project are stored."""
        return self._client.zscore(self._keys.histories, project) is not None

    def save_projects(self, pending: PendingRollups) -> None:
        """Store rollups of projects, and delete those of projects that are dropped."""
        with self._client.pipeline(transaction=True) as pipeline:
            for project in pending.dropped:
                pipeline.zrem(self._keys.histories, project)
                pipeline.delete(*(self._keys.history(size, project) for size in PROJECT_SIZES))
            if pending.active_at:
                pipeline.zadd(self._keys.histories, dict(pending.active_at))
            pipeline.execute()
        for project, rollups in pending.rollups.items():
            self.save(rollups, project)
