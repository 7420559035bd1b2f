"""Streams of rows for one rank: checks its token and its rows, and yields their frames. For rollout workers and the gateway.

Rules
1. The token is that of the batch, and its rank is the one asked for (401, 403). It is refused once it has expired (410).
2. A rank gets the rows that the manifest gives it, and no other (403).
3. Rows are read one after the other, in a thread, `READERS` at once. The rows in memory of all streams of a project have at most
   `OPEN_BYTES` together: a stream waits before it reads the next one, and a row that is larger is alone.
4. A row that cannot be had ends the stream with a refusal that names the rollout; the rows before it are whole.
5. What was sent is counted before the end of the stream, or where it breaks off; a count that Redis does not take is lost.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from time import time
from typing import Final, NamedTuple

from contract.batch_requests import MAX_BATCH_ROWS
from contract.batch_views import BatchManifest, BatchRow
from domain.errors import CapacityError, Gone, InvalidRequest
from rollout.tokens.row_frames import end_frame, refusal_frame
from scheduler.runtime.batches.batch_store import BatchStore
from scheduler.runtime.batches.row_reader import RowGone, RowReader
from scheduler.runtime.batches.row_tokens import RankToken, RowTokens
from scheduler.runtime.node.door.routes import DoorError
from scheduler.runtime.open_bytes import OpenBytes
from scheduler.runtime.rollouts.log_store import RolloutLogs

READERS: Final = 4
OPEN_BYTES: Final = 128 * 1024**2
#: Manifests in memory.
RECENT: Final = 16
#: Longest time for a count.
COUNT_SECONDS: Final = 2.0
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


class ExpiredBatch(Gone):
    """A batch is not kept any more."""

    def __init__(self, batch: str) -> None:
        super().__init__(
            f"batch {batch} has expired: create it again from the same rollouts (POST /batches), perhaps with a larger"
            " expires_seconds"
        )
        self.code = "batch_expired"


class RowsRequest(NamedTuple):
    """What a rank asks for."""

    batch: str
    rank: str
    #: Numbers and ranges; empty: all of the rank.
    rows: str
    token: str


class RankRows(NamedTuple):
    """Checked rows of a rank."""

    token: RankToken
    rows: Sequence[BatchRow]


class RowStreams:
    """The streams of one process."""

    def __init__(
        self, store: BatchStore, tokens: RowTokens, logs: RolloutLogs, worker: str = ""
    ) -> None:
        """``worker``: name of this rollout worker; empty: a web process."""
        self._store, self._tokens, self._logs, self._worker = store, tokens, logs, worker
        self._recent: OrderedDict[str, BatchManifest] = OrderedDict()
        self._reading = asyncio.Semaphore(READERS)
        self._open = OpenBytes(OPEN_BYTES)

    async def checked(self, asked: RowsRequest) -> RankRows:
        """Return the rows of a request. Raises DoorError 401 and 403, ExpiredBatch, InvalidRequest, Unavailable."""
        token = self._tokens.read(asked.token)
        if token is None:
            raise DoorError(
                401, "unauthorized",
                "rows are pulled with the token of a rank: that of owners in the manifest (GET /batches/{id})",
            )  # fmt: skip
        if token.batch != asked.batch or str(token.rank) != asked.rank:
            raise DoorError(
                403, "other_rank",
                f"the token is that of rank {token.rank} of {token.batch}: each rank shows its own",
            )  # fmt: skip
        if token.expires_at <= time():
            raise ExpiredBatch(token.batch)
        manifest = await self._manifest(token.batch)
        return RankRows(token, _owned(manifest, token.rank, asked.rows))

    async def frames(self, found: RankRows) -> AsyncIterator[bytes]:
        """Yield the frames of rows, and the end."""
        reader, sent = RowReader(self._logs), 0
        try:
            for row in found.rows:
                async with self._open.room(found.token.project, row.bytes):
                    try:
                        async with self._reading:
                            pieces = await asyncio.to_thread(reader.frame, row)
                    except (RowGone, CapacityError) as error:
                        code = error.code if isinstance(error, RowGone) else "unavailable"
                        yield refusal_frame(code, str(error), row.rollout)
                        return
                    yield b"".join(pieces)
                    sent += row.bytes
            counted, sent = sent, 0
            await self._count(found.token, counted)
            yield end_frame(len(found.rows))
        finally:
            await asyncio.shield(self._count(found.token, sent))

    async def _count(self, token: RankToken, sent: int) -> None:
        if not sent:
            return
        with suppress(CapacityError, TimeoutError):
            async with asyncio.timeout(COUNT_SECONDS):
                await self._store.pulled(
                    token.batch, self._worker, token.rank, sent, token.expires_at
                )

    async def _manifest(self, batch: str) -> BatchManifest:
        known = self._recent.get(batch)
        if known is None:
            known = await self._store.manifest(batch)
            if known is None:
                raise ExpiredBatch(batch)
            self._recent[batch] = known
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return known


def _owned(manifest: BatchManifest, rank: int, asked: str) -> list[BatchRow]:
    """Return the rows that a rank asks for. Raises DoorError 403, InvalidRequest."""
    owner = next(each for each in manifest.owners if each.rank == rank)
    numbers = _numbers(asked) if asked else owner.rows
    theirs = set(owner.rows)
    for number in numbers:
        if number not in theirs:
            raise DoorError(
                403, "other_rank", f"row {number} of {manifest.id} is not rank {rank}'s"
            )
    return [manifest.rows[number] for number in numbers]


def _numbers(text: str) -> list[int]:
    """Return the rows of a query, as ``0-63,70``. Raises InvalidRequest."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or len(found) + last - first >= MAX_BATCH_ROWS:
            raise InvalidRequest(
                f"rows={text[:64]!r} has no numbers and ranges, as 0-63,70", pointer="?rows"
            )
        found += range(first, last + 1)
    return found
