"""Submitter: appends messages to the inbox; concurrent requests share one append (group commit).

A request's messages are on disk when its `append` returns. Idempotency keys are checked in the
same script that appends, so a repeated request never appends twice, in whichever process. Where replicas must confirm
(`Confirmation`), they have a request's messages when its `append` returns: one confirmation for all requests of an append.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import redis
import redis.asyncio

from domain.codec import pack_fields
from domain.confirmation import NONE_NEEDED, Confirmation
from domain.errors import CapacityError, Unavailable
from domain.project_limits import Load, ProjectBounds, ProjectLimits
from domain.redis_keys import Keys
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.confirmation import reason_of
from scheduler.runtime.redis.connection import Argument, AsyncRedisConnection
from scheduler.runtime.redis.lua_scripts import SUBMIT

log = logging.getLogger(__name__)

IDEMPOTENCY_SECONDS = 24 * 3600
#: Messages of one append; the stack of Lua bounds it.
MAX_MESSAGES = 1000
#: Lag of the loop, in inbox entries, above which new work is refused.
MAX_BACKLOG = 20_000
#: Appends between two checks of the backlog.
BACKLOG_EVERY_APPENDS = 32


@dataclass(eq=False, slots=True)
class _Pending:
    messages: Sequence[bytes]
    follows: str
    key: str
    remember: bytes
    loads: Sequence[Load]
    done: asyncio.Future[bytes | None]


class Submitter:
    """The only writer of this process to the inbox."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        limits: ProjectLimits | None = None,
        confirmation: Confirmation = NONE_NEEDED,
    ) -> None:
        self._confirmation = confirmation
        self._limits = limits or ProjectLimits()
        self._connection = AsyncRedisConnection(client)
        self._keys = keys
        self._script = client.register_script(SUBMIT)
        #: Project → its own limits, where it has any; the newest capacity has them.
        self.bounds: Mapping[str, ProjectBounds] = {}
        self._pending: list[_Pending] = []
        self._something = asyncio.Event()
        self._backlog = 0
        self._appends = 0

    async def append(
        self,
        messages: Sequence[bytes],
        *,
        follows: str = "",
        key: str = "",
        remember: bytes = b"",
        loads: Sequence[Load] = (),
        urgent: bool = False,
    ) -> bytes | None:
        """Append messages; return the ``remember`` of an earlier request with the same ``key``.

        ``loads``: what the messages, ordered by project, add to the queues of projects. ``follows``: the project whose
        earlier messages are handled before these. ``urgent``: they report on granted work, and
        are not refused while the loop lags. Returns None when the messages were
        appended. Raises HttpError 429 when a project would pass a limit, CapacityError when the loop
        lags too far behind, Unavailable when Redis fails (the messages may be appended all the same).
        """
        if self._backlog > MAX_BACKLOG and not urgent:
            await self._check_backlog()
            if self._backlog > MAX_BACKLOG:
                raise CapacityError(
                    "too many requests wait for the scheduler", retry_after_seconds=2
                )
        done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(messages, follows, key, remember, loads, done))
        self._something.set()
        return await done

    async def run(self) -> None:
        """Append pending messages until cancelled."""
        try:
            await self._serve()
        finally:
            self._connection.close()

    async def _serve(self) -> None:
        while keep_running():
            await self._something.wait()
            self._something.clear()
            while self._pending:
                # A refusal states the limits that it was checked against, though newer ones may be known by then.
                batch, limits_of = self._next_batch(), partial(self._limits_of, self.bounds)
                try:
                    seen = await self._append(batch, limits_of)
                except redis.RedisError as error:
                    log.warning("redis does not accept submissions: %s", error)
                    _fail(batch, Unavailable(f"no request can be accepted now: {reason_of(error)}"))
                else:
                    for pending, before in zip(batch, seen, strict=True):
                        _settle(pending.done, before, limits_of)

    def _limits_of(self, bounds: Mapping[str, ProjectBounds], project: str) -> ProjectLimits:
        own = bounds.get(project)
        return self._limits if own is None else own.over(self._limits)

    def _next_batch(self) -> list[_Pending]:
        """Return the pending requests that fit into one append, at least one."""
        count = taken = 0
        for pending in self._pending:
            count += len(pending.messages)
            if taken and count > MAX_MESSAGES:
                break
            taken += 1
        batch, self._pending = self._pending[:taken], self._pending[taken:]
        return batch

    async def _append(
        self, batch: list[_Pending], limits_of: Callable[[str], ProjectLimits]
    ) -> list[bytes | list[Any] | None]:
        self._appends += 1
        if self._appends % BACKLOG_EVERY_APPENDS == 0:
            await self._check_backlog()
        if not any(pending.key or pending.loads or pending.follows for pending in batch):
            messages = [message for pending in batch for message in pending.messages]
            if messages:  # empty when every item of a batch was refused
                await self._connection.call("XADD", self._keys.inbox, "*", *pack_fields(messages))
                await self._connection.confirm(self._confirmation)
            return [None] * len(batch)
        keys: list[str] = [self._keys.inbox, self._keys.project_loads, self._keys.arrivals]
        args: list[Argument] = [IDEMPOTENCY_SECONDS]
        for pending in batch:
            keys.append(pending.key)
            args += [pending.remember, pending.follows, len(pending.loads)]
            for load in pending.loads:
                args += [*load, *msgspec.structs.astuple(limits_of(load.project))]
            args += [len(pending.messages), *pending.messages]
        seen: list[bytes | list[Any] | None] = await self._connection.run(self._script, keys, args)
        found = [*seen, *[None] * (len(batch) - len(seen))]
        if not all(isinstance(before, list) for before in found):
            # Of a repeated request another process may have written the messages.
            repeated = any(isinstance(before, bytes) for before in found)
            await self._connection.confirm(
                self._confirmation, self._keys.barrier if repeated else ""
            )
        return found

    async def _check_backlog(self) -> None:
        with contextlib.suppress(redis.RedisError):
            self._backlog = int(await self._connection.call("XLEN", self._keys.inbox))


def _settle(
    done: asyncio.Future[bytes | None],
    before: bytes | list[Any] | None,
    limits_of: Callable[[str], ProjectLimits],
) -> None:
    if done.done():
        return
    if isinstance(before, list):
        done.set_exception(_limit_reached(before, limits_of(before[1].decode())))
    else:
        done.set_result(before)


def _limit_reached(refusal: list[Any], limits: ProjectLimits) -> HttpError:
    """Return the refusal of a submission beyond a limit of its project."""
    limit, project, present, milliseconds = refusal
    name, has = project.decode(), int(present)
    detail = {
        b"actions": f"project {name!r} has {has} actions waiting, at most"
        f" {limits.queued_actions} may wait; submit again when some have been granted, or cancel some",
        b"bytes": f"the waiting actions of project {name!r} have {has} bytes, at most"
        f" {limits.queued_bytes} may wait; submit again later, and put large inputs into files",
        b"arriving": f"{has} actions of project {name!r} were not read by the scheduler yet, at most"
        f" {limits.arriving_actions} may be; submit more slowly",
        b"rate": f"project {name!r} submits more than {limits.submissions_per_second:g} actions a"
        " second; submit more slowly",
    }[limit]
    seconds = max(1, -(-milliseconds // 1000))
    return HttpError(
        429, f"project_limit_{limit.decode()}", detail, **{"Retry-After": str(seconds)}
    )


def _fail(batch: list[_Pending], error: Unavailable) -> None:
    for pending in batch:
        if not pending.done.done():
            pending.done.set_exception(error)
