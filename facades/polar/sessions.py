"""Rollouts of one task, as native calls: which of them live, their ends, and their documents piece by piece.

Rules
1. Tokens are JSON text from the native answer to the client: they are decoded and encoded in threads, and never become lists.
2. `AT_ONCE` rollouts are read at a time, so the memory of an answer does not grow with the number of its sessions.
3. A result never changes once its rollout has ended. A client polls every few seconds, so results are kept for the next polls, up to
   `KEPT_BYTES` in a web process; those beyond are read again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from contract.rollout_routes import MAX_LISTED
from contract.rollout_views import RolloutList
from domain.errors import NotFound
from facades.polar.messages import group_of
from facades.polar.results import PolarSession, is_usable, session_result
from scheduler.runtime.gateway.http import encode_json
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.native_rollouts import NativeRollouts

AT_ONCE: Final = 4
KEPT_BYTES: Final = 64 * 1024**2
#: A result that no poll has asked for since is forgotten.
KEPT_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 10.0

_decoder = msgspec.json.Decoder(PolarSession)


#: Rollout, task with its nonce, and the number of its early stop.
ResultKey = tuple[str, str, int | None]


class KeptResults:
    """Results as JSON, for the polls that follow: at most so many bytes, each until no poll asked for it for a while."""

    def __init__(
        self,
        most_bytes: int = KEPT_BYTES,
        seconds: float = KEPT_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._now = now
        #: By last use: the time of it, and the result.
        self._kept: OrderedDict[ResultKey, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    def get(self, key: ResultKey) -> bytes | None:
        """Return a result; None: it is not kept."""
        self._forget()
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._kept[key] = self._now(), found[1]
        return found[1]

    def put(self, key: ResultKey, result: bytes) -> None:
        """Keep a result, where there is room: those that are polled already stay."""
        self._forget()
        if key not in self._kept and self._bytes + len(result) <= self._most_bytes:
            self._kept[key] = self._now(), result
            self._bytes += len(result)

    def _forget(self) -> None:
        over = self._now() - self._seconds
        while self._kept and next(iter(self._kept.values()))[0] < over:
            _, (_, result) = self._kept.popitem(last=False)
            self._bytes -= len(result)


async def live_of(native: NativeCalls, task_id: str, rollouts: Sequence[str]) -> set[str]:
    """Return those of the rollouts of a task that have not ended. Raises Unavailable."""
    if not rollouts:
        return set()
    query = {"group": group_of(task_id), "door": native.door, "limit": str(MAX_LISTED)}
    answer = await native.call("rollouts_list", query=query)
    page = msgspec.json.decode(answer.content, type=RolloutList)
    if page.more:  # earlier tasks of this id have rollouts that are being cancelled
        return {each for each in rollouts if await _lives(native, each)}
    return {view.id for view in page.items} & set(rollouts)


async def _lives(native: NativeCalls, rollout: str) -> bool:
    try:
        return (await NativeRollouts(native).get(rollout)).outcome is None
    except NotFound:
        return False


async def end_of(native: NativeCalls, rollout: str, *, tokens: bool) -> bool:
    """Wait for the end of a rollout; return whether it has tokens to train on (False without ``tokens``)."""
    query = {"wait": f"{_LOOK_SECONDS:g}", "segments": "true" if tokens else "false"}
    while True:
        try:
            answer = await native.call("rollouts_retrieve", rollout, query=query)
        except NotFound:  # its row is deleted
            return False
        session = await asyncio.to_thread(_decoder.decode, answer.content)
        if session.outcome is not None:
            return is_usable(session)


async def results(
    native: NativeCalls,
    task_id: str,
    rollouts: Sequence[str],
    metadata: Mapping[str, Any],
    stopped: int | None,
    kept: KeptResults,
    nonce: str,
) -> AsyncIterator[bytes]:
    """Yield each ended rollout as JSON of Polar's ``SessionResult``, in order; without those that are deleted.

    ``nonce``: of the task's record; the metadata are those of this record.
    """

    async def result(rollout: str) -> bytes:
        key = rollout, f"{task_id}/{nonce}", stopped
        if (known := kept.get(key)) is not None:
            return known
        try:
            answer = await native.call("rollouts_retrieve", rollout)
        except NotFound:
            return b""
        found, is_whole = await asyncio.to_thread(
            _result, answer.content, task_id, metadata, stopped
        )
        if is_whole:
            kept.put(key, found)
        return found

    reading: deque[asyncio.Task[bytes]] = deque()
    try:
        for rollout in rollouts:
            reading.append(asyncio.ensure_future(result(rollout)))
            if len(reading) >= AT_ONCE and (found := await reading.popleft()):
                yield found
        while reading:
            if found := await reading.popleft():
                yield found
    finally:
        for each in reading:
            each.cancel()


def _result(
    document: bytes, task_id: str, metadata: Mapping[str, Any], stopped: int | None
) -> tuple[bytes, bool]:
    """Return a result, and whether it has its tokens: a log that cannot be read now may be readable at the next poll."""
    session = _decoder.decode(document)
    is_whole = session.outcome is not None and session.segments is not None
    return encode_json(session_result(task_id, session, metadata, stopped)), is_whole
