"""Endpoint of live output: follows a command from before its start to its end, on whichever node it runs.

While the action runs, its node writes the events (`scheduler.runtime.output_events`), and this process passes complete
ones on. What a follower has not read when the action ends is sent from the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from contract.responses import ActionResponse
from domain.action import ActionState, Kind
from domain.errors import CapacityError, Conflict, InvalidRequest
from domain.ids import ActionId
from domain.principals import Principal
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.response_streaming import ResponseStreaming
from scheduler.runtime.gateway.http import HttpError, HttpRequest, Send, until_gone
from scheduler.runtime.output_events import KEEP_ALIVE, OutputPosition, rest_of

KEEP_ALIVE_SECONDS: Final = 15.0
#: A node is silent for no longer than this; its keep-alives are more frequent.
SILENCE_SECONDS: Final = 45.0
#: Time for a node to send the last output of an action that has finished.
LAST_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.5

_NO_QUERY: Final[Mapping[str, str]] = {}
_Finish = asyncio.Future[ActionResponse | None]


class OutputStreaming:
    """Followers of commands in this process, and streamed responses of calls behind the same route."""

    def __init__(self, context: GatewayContext, responses: ResponseStreaming) -> None:
        self._context = context
        self._responses = responses

    async def stream(
        self, request: HttpRequest, principal: Principal, action_id: str, send: Send
    ) -> None:
        """GET /actions/{id}/stream: the output of a command, or the response of a call.

        Raises NotFound, Conflict, InvalidRequest, CapacityError.
        """
        view = await self._context.find(request, principal, action_id)
        if view.kind is Kind.CALL:
            await self._responses.stream(request, principal, action_id, send)
            return
        if view.kind is not Kind.EXEC:
            raise Conflict("an action of this kind has no output", code="nothing_to_stream")
        after = request.header(b"last-event-id") or request.query().get("after", "")
        position = OutputPosition.parse(after)
        follower = _Follower(self._context, request, principal, view, send, position)
        follows = request.query().get("follow", "true") not in ("false", "0")
        with self._context.node_door.counted(view.project):
            await send(_head(request))
            await until_gone(request, follower.follow() if follows else follower.once())


class _Follower:
    """One client that follows one action."""

    def __init__(
        self,
        context: GatewayContext,
        request: HttpRequest,
        principal: Principal,
        view: ActionResponse,
        send: Send,
        position: OutputPosition,
    ) -> None:
        self._context = context
        self._asking = request, principal
        self._view = view
        self._send = send
        self._position = position
        self._id = ActionId(view.id)

    async def follow(self) -> None:
        """Send all events."""
        view: ActionResponse | None = self._view
        while view is None or view.state is not ActionState.FINISHED:
            finish = self._context.tail.finish_of(self._id)
            try:
                view = await self._live(finish)
            except CapacityError:  # of the loop, which a leader is taking over
                view = None
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._context.tail.discard(self._id, finish)
        await self._write(rest_of(view, self._position))
        await self._send({"type": "http.response.body", "body": b""})

    async def once(self) -> None:
        """Send what there is now; the end only if the action has ended."""
        if self._view.state is ActionState.FINISHED:
            await self._write(rest_of(self._view, self._position))
        elif self._view.placement is not None and self._view.placement.node:
            await self._from_node(self._view.placement.node, {"once": "1"})
        await self._send({"type": "http.response.body", "body": b""})

    async def _live(self, finish: _Finish) -> ActionResponse | None:
        """Follow one attempt; return the finished action, or None to look again."""
        view = await self._context.find(*self._asking, self._id)
        if view.state is ActionState.FINISHED:
            return view
        node = view.placement.node if view.placement is not None else await self._granted(finish)
        if node:
            following = asyncio.ensure_future(self._from_node(node))
            try:
                either: set[asyncio.Future[Any]] = {finish, following}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({following}, timeout=LAST_SECONDS)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        await asyncio.wait({finish}, timeout=RETRY_SECONDS)
        return finish.result() if finish.done() else None

    async def _granted(self, finish: _Finish) -> str | None:
        """Wait until the action is granted; return its node, None when it has finished."""
        places = self._context.tail.places
        granted = places.grant_of(self._id)
        try:
            while not (finish.done() or granted.done()):
                either: set[asyncio.Future[Any]] = {finish, granted}
                done, _ = await asyncio.wait(
                    either, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await self._write(KEEP_ALIVE)
        finally:
            places.discard(self._id, granted)
        return granted.result() if granted.done() else None

    async def _from_node(self, node: str, query: Mapping[str, str] = _NO_QUERY) -> None:
        """Pass on the events of a node until they end; what it lacks is sent from the result."""
        unread = b""
        door = self._context.node_door
        try:
            async with door.on_node(
                None, node, "GET", f"/outputs/{self._id}",
                query={"after": str(self._position), **query}, idle_seconds=SILENCE_SECONDS,
            ) as answer:  # fmt: skip
                async for piece in answer.chunks():
                    complete, end, unread = (unread + piece).rpartition(b"\n\n")
                    if end:
                        await self._write(complete + end)
        except (HttpError, InvalidRequest, CapacityError):
            return

    async def _write(self, events: bytes) -> None:
        self._position = OutputPosition.last_in(events) or self._position
        await self._send({"type": "http.response.body", "body": events, "more_body": True})


def _head(request: HttpRequest) -> dict[str, object]:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", request.id.encode("latin-1")),
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}
