"""GET /actions/{id}/stream: the answer of a call, as it comes."""

from __future__ import annotations

import asyncio
import contextlib

import redis

from domain.access import Principal
from domain.action import ActionState
from domain.errors import CapacityError, Conflict
from domain.wire import ActionView
from scheduler.runtime.connection import going_on
from scheduler.runtime.gateway.context import Context
from scheduler.runtime.gateway.feeds import MAX_STREAMS
from scheduler.runtime.gateway.http import ClientGone, Request, Send
from scheduler.runtime.passages import Beginning, PassageReader

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
        answer somebody else reads; CapacityError; redis.RedisError. After the first byte nothing is
        raised: an answer that breaks off has no end.
        """
        view = await self._context.find(request, principal, action_id)
        if self._open >= MAX_STREAMS:
            raise CapacityError(f"{MAX_STREAMS} answers are being passed on here already")
        reader = PassageReader(self._context.client, self._context.keys, action_id)
        finish = self._context.tail.finish_of(action_id)
        gone = asyncio.ensure_future(request.disconnected())
        sent = _Sent(request, action_id, send)
        self._open += 1
        try:
            await reader.claim()
            await self._pass_on(reader, sent, finish, gone, view)
            if reader.whole:
                await sent.end()
        except (asyncio.CancelledError, redis.RedisError):
            if not sent.begun:
                raise
        finally:
            self._open -= 1
            gone.cancel()
            self._context.tail.discard(action_id, finish)
            await reader.close()

    async def _pass_on(
        self,
        reader: PassageReader,
        sent: _Sent,
        finish: asyncio.Future[ActionView | None],
        gone: asyncio.Future[None],
        view: ActionView,
    ) -> None:
        while going_on() and not reader.whole:
            ended = finish.done() or view.state is ActionState.FINISHED
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
