"""Store of batches in Redis: manifests until they expire, summaries and what was pulled for a day longer.

Rules
1. A manifest has no tokens of rollouts and no tokens of ranks, and is never changed. It is stored before its summary, so a batch that
   is listed can be pulled until it expires.
2. A project has at most `MOST_LIVE` batches that have not expired, with `MOST_LIVE_BYTES` stored; others get CapacityError. Two requests
   at once may pass this by one batch each.
3. Summaries of expired batches are kept for `KEEP_SECONDS`, at most `MOST_EXPIRED` of a project.
4. Journal and rows have nothing of batches: a batch is made again from its rollouts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from time import time
from typing import Any, Final, cast

import msgspec
import redis
import redis.asyncio

from contract.batch_status import (
    BATCHES_MADE,
    SENT_BY_GATEWAY,
    SENT_BY_WORKERS,
    StoredBatch,
    newest,
    pulls_of,
    stored_batches,
)
from contract.batch_views import BatchManifest, BatchSummary
from domain.errors import CapacityError
from domain.redis_keys import Keys
from scheduler.runtime.redis.confirmation import ConfirmedCalls, Word, unavailable

KEEP_SECONDS: Final = 24 * 3600
MOST_LIVE: Final = 1000
MOST_LIVE_BYTES: Final = 64 * 1024**2
MOST_EXPIRED: Final = 200
_manifests: Final = msgspec.msgpack.Decoder(BatchManifest)


class BatchStore:
    """The batches of all projects. All methods raise Unavailable when Redis does not answer."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, confirmed: ConfirmedCalls | None = None
    ) -> None:
        """``confirmed``: what sends writes, where replicas must confirm what is answered."""
        self._client = client
        self._confirmed = confirmed or ConfirmedCalls(client, keys)
        self._keys = keys

    async def put(self, manifest: BatchManifest, created: float, expires: float) -> None:
        """Store a batch. Raises CapacityError."""
        project, now = manifest.project, time()
        blob = zlib.compress(msgspec.msgpack.encode(manifest), 1)
        former = await self._stored(project)
        live = [each for each in former if each.expires > now]
        used = sum(each.stored_bytes for each in live)
        if len(live) >= MOST_LIVE or used + len(blob) > MOST_LIVE_BYTES:
            first = min((each.expires for each in live), default=now + 1)
            raise CapacityError(
                f"project {project!r} has {len(live)} batches that have not expired, with {used} bytes; at most"
                f" {MOST_LIVE} with {MOST_LIVE_BYTES} bytes are kept: state a smaller expires_seconds",
                retry_after_seconds=first - now,
            )
        summary = StoredBatch(
            id=manifest.id, created=created, expires=expires, stored_bytes=len(blob),
            summary=summary_of(manifest),
        )  # fmt: skip
        name, life = self._keys.batches(project), max(1, int(expires - now))
        gone: tuple[Word, ...] = tuple(_forgotten(former, now))
        try:
            await self._confirmed.call_all(
                ("SET", self._keys.batch(manifest.id), blob, "EX", life),
                ("HSET", name, manifest.id, msgspec.json.encode(summary)),
                *([("HDEL", name, *gone)] if gone else []),
                ("EXPIRE", name, life + KEEP_SECONDS, "NX"),
                ("EXPIRE", name, life + KEEP_SECONDS, "GT"),
                ("SADD", self._keys.batch_projects, project),
                ("HINCRBY", self._keys.batch_totals, BATCHES_MADE, 1),
            )
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def manifest(self, batch: str) -> BatchManifest | None:
        """Return the manifest of a batch; None for one that has expired, or never was."""
        try:
            blob = cast("bytes | None", await self._client.get(self._keys.batch(batch)))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return None if blob is None else _manifests.decode(zlib.decompress(blob))

    async def is_known(self, project: str, batch: str) -> bool:
        """Whether a project has had a batch, up to `KEEP_SECONDS` after its end."""
        try:
            return bool(await cast("Any", self._client.hexists(self._keys.batches(project), batch)))
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def listed(self, projects: Sequence[str] | None, limit: int) -> list[BatchSummary]:
        """Return the newest batches of some projects, None: of all, with what was pulled."""
        try:
            if projects is None:
                found = await cast("Any", self._client.smembers(self._keys.batch_projects))
                projects = [each.decode() for each in found]
            stored = [each for project in projects for each in await self._stored(project)]
            shown = newest(stored, limit)
            async with self._client.pipeline(transaction=False) as pipe:
                for each in shown:
                    pipe.hgetall(self._keys.batch_pulls(each.id))
                pulls = await pipe.execute()
        except redis.RedisError as error:
            raise unavailable(error) from None
        now = time()
        for each, pulled in zip(shown, pulls, strict=True):
            each.summary.pulls = pulls_of(pulled)
            each.summary.expired = each.expires <= now
        return [each.summary for each in shown]

    async def pulled(self, batch: str, worker: str, rank: int, count: int, expires: float) -> None:
        """Count bytes that were sent to a rank; ``worker`` empty: by the gateway."""
        name = self._keys.batch_pulls(batch)
        total = SENT_BY_WORKERS if worker else SENT_BY_GATEWAY
        try:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.hincrby(name, f"{rank}/{worker}", count)
                pipe.expire(name, max(1, int(expires - time())) + KEEP_SECONDS)
                pipe.hincrby(self._keys.batch_totals, total, count)
                await pipe.execute()
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def first_of(self, project: str, key: str, batch: str, digest: str, seconds: int) -> str:
        """Store ``batch`` under an idempotency key of a request; return the batch and digest of the first one, with a space between."""
        name, text = self._keys.idempotency(project, f"\0batch/{key}"), f"{batch} {digest}"
        try:
            if batch and await self._confirmed.call("SET", name, text, "NX", "EX", seconds):
                return text
            # The first request may not be confirmed yet.
            stored = cast("bytes | None", await self._confirmed.call("GET", name))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return "" if stored is None else stored.decode()

    async def _stored(self, project: str) -> list[StoredBatch]:
        try:
            texts = await cast("Any", self._client.hvals(self._keys.batches(project)))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return stored_batches(texts)


def summary_of(manifest: BatchManifest) -> BatchSummary:
    """Return a batch without its rows."""
    return BatchSummary(
        id=manifest.id,
        project=manifest.project,
        created_at=manifest.created_at,
        expires_at=manifest.expires_at,
        expired=False,
        ranks=manifest.ranks,
        rollouts=len({row.rollout for row in manifest.rows}),
        rows=len(manifest.rows),
        tokens=manifest.tokens,
        bytes=manifest.bytes,
        weights_versions=manifest.weights_versions,
        bytes_by_rank=[owner.bytes for owner in manifest.owners],
        left_out=len(manifest.left_out),
    )


def _forgotten(stored: Sequence[StoredBatch], now: float) -> list[str]:
    """Return the expired batches whose summaries are kept no longer."""
    expired = sorted((each.expires, each.id) for each in stored if each.expires <= now)
    surplus = expired[: max(0, len(expired) - MOST_EXPIRED)]
    return [
        batch for expires, batch in expired
        if expires + KEEP_SECONDS < now or (expires, batch) in surplus
    ]  # fmt: skip
