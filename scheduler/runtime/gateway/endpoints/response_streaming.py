"""Endpoint of streamed responses: forwards the response of a call while it arrives."""

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
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import ClientGone, HttpRequest, Send
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.response_streams import ResponseHead, ResponseStreamReader

#: Headers of one hop only, or set by this server.
_HOP_BY_HOP = frozenset({"transfer-encoding", "content-length", "trailer", "upgrade", "te"})


class ResponseStreaming:
    """Responses that this process streams to its clients."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._open = 0

    async def stream(
        self, request: HttpRequest, principal: Principal, action_id: str, send: Send
    ) -> None:
        """Send the response of a call with ``stream``, piece by piece.

        Raises NotFound; Conflict for an action that ended without a response to stream, or whose
        response has another reader; CapacityError; redis.RedisError. After the first byte none of them
        is raised: a response that breaks off has no end. A cancellation is always propagated, so that
        the caller can cancel the action.
        """
        with self.place():
            await self.pass_on(request, principal, action_id, send)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserve one of the concurrent streams. Raises CapacityError when all are taken."""
        if self._open >= (most := self._context.streams):
            raise CapacityError(
                f"{most} responses are being streamed here already: TANGRAM_WEB_STREAMS is the limit"
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    async def pass_on(
        self, request: HttpRequest, principal: Principal, action_id: str, send: Send
    ) -> bool:
        """Do what `stream` does, within a `place` that the caller holds; False: the response broke off."""
        view = await self._context.find(request, principal, action_id)
        reader = ResponseStreamReader(self._context.client, self._context.keys, action_id)
        finish = _ActionEnd(self._context, request, principal, view)
        gone = asyncio.ensure_future(request.disconnected())
        sent = _ClientResponse(request, action_id, send)
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
        return reader.whole

    async def _pass_on(
        self,
        reader: ResponseStreamReader,
        sent: _ClientResponse,
        finish: _ActionEnd,
        gone: asyncio.Future[None],
    ) -> None:
        while keep_running() and not reader.whole:
            ended = await finish.reached()
            quiet = True
            async with contextlib.aclosing(reader.read()) as pieces:
                async for piece in pieces:
                    quiet = False
                    await sent.pass_on(piece)
            if gone.done() or sent.broken:
                raise ClientGone
            # Read once more after the end: pieces may have arrived in between.
            if ended and quiet and not reader.whole:
                if sent.begun:
                    return
                raise Conflict(
                    "this action ended without a response to stream: its result has the reason, or it "
                    'was not submitted with "stream": true',
                    code="nothing_to_stream",
                )


class _ActionEnd:
    """End of an action, from its view and from the tail of the journal."""

    def __init__(
        self,
        context: GatewayContext,
        request: HttpRequest,
        principal: Principal,
        view: ActionResponse,
    ) -> None:
        self._context = context
        self._asking = request, principal
        self._id = view.id
        self._ended = view.state is ActionState.FINISHED
        self._future = context.tail.finish_of(view.id)

    async def reached(self) -> bool:
        """Whether the action has ended. Queries the scheduler when the tail skipped an entry."""
        if self._future.done() and not self._ended:
            view = self._future.result()
            if view is None:
                self._future = self._context.tail.finish_of(self._id)
                view = await self._context.find(*self._asking, self._id)
            self._ended = view.state is ActionState.FINISHED
        return self._ended

    def forget(self) -> None:
        """Stop waiting."""
        self._context.tail.discard(self._id, self._future)


class _ClientResponse:
    """The response to the client, as far as it is sent."""

    def __init__(self, request: HttpRequest, action_id: str, send: Send) -> None:
        self._about = {"x-request-id": request.id, "x-tangram-action": action_id}
        self._send = send
        self.begun = False
        #: Another attempt began a response of its own: this one has no end.
        self.broken = False

    async def pass_on(self, piece: ResponseHead | bytes) -> None:
        if isinstance(piece, bytes):
            if not self.begun:
                raise Conflict("the beginning of this response was read before", code="being_read")
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
