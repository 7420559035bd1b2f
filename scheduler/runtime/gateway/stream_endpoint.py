"""GET /actions/{id}/stream: the answer of a call, as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from contract.responses import ActionResponse
from domain.action import ActionState
from domain.errors import CapacityError, Conflict
from domain.principals import Principal
from scheduler.runtime.gateway.context import Context
from scheduler.runtime.gateway.event_feeds import MAX_STREAMS
from scheduler.runtime.gateway.http import ClientGone, Request, Send
from scheduler.runtime.redis.clients import going_on
from scheduler.runtime.redis.response_streams import Beginning, PassageReader

#: Of one hop only, or computed anew.
_HOP_BY_HOP = frozenset({"transfer-encoding", "content-length", "trailer", "upgrade", "te"})


class Streams:
    """Answers that are passed on, of all clients of this process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = 0

    async def stream(
        self, request: Request, principal: Principal, action_id: str, send: Send
    ) -> None:
        """Send the answer of a call with ``stream``, piece by piece.

        Raises NotFound; Conflict for an action that ended without an answer to pass on, or whose
        answer somebody else reads; CapacityError; redis.RedisError. After the first byte none of them
        is raised: an answer that breaks off has no end. A cancellation is never swallowed: whoever
        submitted the call has to know that nobody reads it any more.
        """
        with self.place():
            await self.pass_on(request, principal, action_id, send)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take one of the places there are. Raises CapacityError when there is none."""
        if self._open >= MAX_STREAMS:
            raise CapacityError(f"{MAX_STREAMS} answers are being passed on here already")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def pass_on(
        self, request: Request, principal: Principal, action_id: str, send: Send
    ) -> None:
        """Do what `stream` does, for somebody who has a `place`."""
        view = await self._context.find(request, principal, action_id)
        reader = PassageReader(self._context.client, self._context.keys, action_id)
        finish = _End(self._context, request, principal, view)
        gone = asyncio.ensure_future(request.disconnected())
        sent = _Sent(request, action_id, send)
        try:
            await reader.claim()
            await self._pass_on(reader, sent, finish, gone)
            if reader.whole:
                await sent.end()
        except (Conflict, redis.RedisError):
            if not sent.begun:
                raise
        finally:
            gone.cancel()
            finish.forget()
            await reader.close()

    async def _pass_on(
        self,
        reader: PassageReader,
        sent: _Sent,
        finish: _End,
        gone: asyncio.Future[None],
    ) -> None:
        while going_on() and not reader.whole:
            ended = await finish.has_come()
            quiet = True
            async with contextlib.aclosing(reader.read()) as pieces:
                async for piece in pieces:
                    quiet = False
                    await sent.pass_on(piece)
            if gone.done() or sent.broken:
                raise ClientGone
            # Looked at before: what came between the last look and the end is read once more.
            if ended and quiet and not reader.whole:
                if sent.begun:
                    return
                raise Conflict(
                    "this action ended without an answer to pass on: its result says why, or it was "
                    'not submitted with "stream": true',
                    code="nothing_to_stream",
                )


class _End:
    """Whether an action has ended, by its view and by the tail of the journal."""

    def __init__(
        self, context: Context, request: Request, principal: Principal, view: ActionResponse
    ) -> None:
        self._context = context
        self._asking = request, principal
        self._id = view.id
        self._ended = view.state is ActionState.FINISHED
        self._future = context.tail.finish_of(view.id)

    async def has_come(self) -> bool:
        """Say whether it has ended. Where the tail has missed something, ask."""
        if self._future.done() and not self._ended:
            view = self._future.result()
            if view is None:
                self._future = self._context.tail.finish_of(self._id)
                view = await self._context.find(*self._asking, self._id)
            self._ended = view.state is ActionState.FINISHED
        return self._ended

    def forget(self) -> None:
        """Wait no longer."""
        self._context.tail.discard(self._id, self._future)


class _Sent:
    """What the client got so far."""

    def __init__(self, request: Request, action_id: str, send: Send) -> None:
        self._about = {"x-request-id": request.id, "x-tangram-action": action_id}
        self._send = send
        self.begun = False
        #: Another attempt began an answer anew: this one has no end.
        self.broken = False

    async def pass_on(self, piece: Beginning | bytes) -> None:
        if isinstance(piece, bytes):
            if not self.begun:
                raise Conflict("the beginning of this answer was read before", code="being_read")
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            return
        if self.begun:
            self.broken = True
            return
        self.begun = True
        shown = {n: v for n, v in piece.headers.items() if n not in _HOP_BY_HOP}
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in {**shown, **self._about, "x-accel-buffering": "no"}.items()
        ]
        start = {"type": "http.response.start", "status": piece.status, "headers": headers}
        await self._send(start)

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})
