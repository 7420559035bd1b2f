"""Membership of a rollout worker: it joins, shows life while its event loop answers, and leaves.

Rules
1. The incarnation counts the starts of workers, in Redis: one count for all names, so it does not grow with names that
   are never used again. A key that expires after `ALIVE_SECONDS` has the present one; the loop's housekeeping counts a
   worker without it as lost.
2. The event loop that runs the rollouts sends the signs of life: a worker that hangs is lost.
3. A worker that was lost and is alive joins again; one that stops in order says so, and its rollouts are assigned again at
   once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final, Protocol

import redis
import redis.asyncio

from domain.errors import TangramError
from domain.redis_keys import Keys
from domain.rollout_events import RolloutWorkerJoined, RolloutWorkerLost
from domain.version import VERSION
from scheduler.runtime.liveness import LIFE_SECONDS, life_of
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.rollouts.assignments import Assignments
from scheduler.runtime.rollouts.worker_calls import WorkerCalls

log = logging.getLogger(__name__)

ROLE: Final = "rollout"
HEARTBEAT_SECONDS: Final = 1.5
#: A worker without a sign of life for this time is lost.
ALIVE_SECONDS: Final = 5.0
#: The addresses of doors are stored again this often.
DOOR_SECONDS: Final = 12.0
#: Longest time in which a worker that stops reports its end.
LEAVE_SECONDS: Final = 2.0
#: The hash has one field. Earlier it had one for each name: the count continues behind the largest.
_COUNT: Final = """
local most = 0
for _, starts in ipairs(redis.call('HVALS', KEYS[1])) do most = math.max(most, tonumber(starts)) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'starts', most + 1)
return most + 1
"""

Pause = Callable[[float], Awaitable[object]]


class PublishedDoor(Protocol):
    """A server of this worker whose address is stored."""

    async def publish(self) -> None:
        """Store the address. Raises redis.RedisError."""


async def next_incarnation(client: redis.asyncio.Redis, keys: Keys) -> int:
    """Count a start of a worker. Raises redis.RedisError."""
    return int(await client.register_script(_COUNT)(keys=[keys.rollout_incarnations]))


class WorkerMembership:
    """One incarnation of a rollout worker among the live ones."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        calls: WorkerCalls,
        assignments: Assignments,
        *,
        slots: int,
        handlers: Sequence[str] = (),
        doors: Sequence[PublishedDoor] = (),
        pause: Pause = asyncio.sleep,
    ) -> None:
        """``doors``: are published every `DOOR_SECONDS`."""
        self._doors = tuple(doors)
        self._client = client
        self._keys = keys
        self._calls = calls
        self._assignments = assignments
        self._slots = slots
        self._handlers = tuple(handlers)
        self._pause = pause
        self._shown_at = self._published_at = float("-inf")

    async def run(self) -> None:
        """Join, and stay a member until cancelled; then leave."""
        try:
            await self._show_life()
            await self._join()
            await asyncio.gather(self._beat(), self._join_again())
        finally:
            await self._leave()

    async def _join(self) -> None:
        assignments = self._assignments
        await self._calls.send(
            RolloutWorkerJoined(
                worker=assignments.worker,
                incarnation=assignments.incarnation,
                slots=self._slots,
                hostname=socket.gethostname(),
                version=VERSION,
                handlers=self._handlers,
            )
        )

    async def _join_again(self) -> None:
        while keep_running():
            await self._assignments.lost.wait()
            self._assignments.lost.clear()
            log.warning(
                "rollout worker %s was counted as lost: it joins again", self._assignments.worker
            )
            await self._show_life()
            await self._join()

    async def _beat(self) -> None:
        while keep_running():
            await self._pause(HEARTBEAT_SECONDS)
            await self._show_life()

    async def _show_life(self) -> None:
        """Store a sign of life. An error of Redis is logged: the next one is soon."""
        assignments = self._assignments
        key = self._keys.rollout_worker_alive(assignments.worker)
        try:
            await self._client.set(key, assignments.incarnation, px=int(ALIVE_SECONDS * 1000))
            if monotonic() - self._shown_at >= LIFE_SECONDS:
                self._shown_at = monotonic()
                life = life_of(
                    ROLE, slots=self._slots, held=len(assignments.held), handlers=self._handlers
                )
                await self._client.hset(self._keys.workers, f"{ROLE}@{assignments.worker}", life)
            if monotonic() - self._published_at >= DOOR_SECONDS:
                for door in self._doors:
                    await door.publish()
                self._published_at = monotonic()
        except redis.RedisError as error:
            log.warning("rollout worker %s shows no life: %s", assignments.worker, error)

    async def _leave(self) -> None:
        """Have the rollouts assigned again at once; without an answer the silence does it."""
        assignments = self._assignments
        if assignments.failed.done():
            return
        event = RolloutWorkerLost(
            worker=assignments.worker,
            incarnation=assignments.incarnation,
            reason="its worker was stopped",
        )
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._calls.send(event)
                await self._client.delete(self._keys.rollout_worker_alive(assignments.worker))
        except (TimeoutError, redis.RedisError, TangramError) as error:
            log.warning(
                "the end of rollout worker %s is not reported: %s", assignments.worker, error
            )
