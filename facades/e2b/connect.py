"""Connect protocol: unary calls and streams of JSON messages, as the SDKs of E2B send and read them.

A unary call is a POST with a JSON object. A stream consists of frames: a flag byte (0 message, 2 end), the length
as 4 bytes, most significant first, and a JSON object. Names of members are in lower camel case, bytes are base64.

Rules
1. A unary error has an HTTP status and ``{"code", "message"}`` (`facades.e2b.errors`). A stream answers 200, and its last frame is
   ``{}`` or ``{"error": …}``; only a sandbox that does not answer is an HTTP error there too.
2. A stream that breaks off has no last frame. The client then asks whether its sandbox still runs.
3. Binary messages (``application/proto``) and compression are refused: the SDKs use neither.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec

from domain.errors import InvalidRequest, TangramError
from facades.e2b.errors import connect_code
from scheduler.runtime.gateway.facade import note_refusal
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    encode_json,
    until_gone,
)
from scheduler.runtime.gateway.route_table import Handler

#: Largest message of a client; input is sent in pieces of 64 KiB.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_HEAD: Final = struct.Struct(">BI")
_END: Final = 2
#: Silence after which a stream sends a keep-alive, unless the client names another time.
_KEEP_ALIVE_SECONDS: Final = 50.0
#: Errors that are an HTTP status on a stream too: no token, or a sandbox that does not answer.
_OF_THE_SANDBOX: Final = (401, 403, 502)

T = TypeVar("T")
Message = dict[str, Any]
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class BrokenStream(TangramError):
    """Ends a stream without a last frame."""


def read(message: Message, kind: type[T]) -> T:
    """Return a message as ``kind``; members that it does not name are ignored. Raises InvalidRequest."""
    try:
        return msgspec.convert(message, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the message is not as declared: {error}") from None


def unary(handle: Callable[[HttpRequest, Message], Awaitable[Message]]) -> Handler:
    """Return the handler of a route for a function of the message."""

    async def handler(request: HttpRequest, _: str | None) -> HttpResponse:
        _check_kind(request, "application/json")
        body = await request.body(MAX_MESSAGE_BYTES)
        return HttpResponse(200, await handle(request, _object(body)))

    return handler


def serving(
    events: Callable[[HttpRequest, Message], Awaitable[AsyncIterator[Message]]],
    keep_alive: Message,
) -> Handler:
    """Return the handler of a route that answers one message with a stream of them.

    An error before the first message is in the last frame too, unless the sandbox does not answer.
    """

    async def answer(request: HttpRequest, stream: _FrameStream) -> None:
        asked = [message async for message in frames(request)]
        if len(asked) != 1:
            raise InvalidRequest(f"one message is expected, {len(asked)} came")
        async with aclosing(await events(request, asked[0])) as given:  # type: ignore[type-var]
            await until_gone(request, stream.pass_on(given, keep_alive))

    return _streaming(answer)


def collecting(
    take: Callable[[HttpRequest, AsyncIterator[Message]], Awaitable[Message]],
) -> Handler:
    """Return the handler of a route that takes a stream of messages and answers with one."""

    async def answer(request: HttpRequest, stream: _FrameStream) -> None:
        await stream.message(await take(request, frames(request)))

    return _streaming(answer)


def _streaming(answer: Callable[[HttpRequest, _FrameStream], Awaitable[None]]) -> Handler:
    """Return the handler of a route whose response is a stream, with its last frame."""

    async def handler(request: HttpRequest, _: str | None, send: Send) -> None:
        stream = _FrameStream(request, send)
        try:
            _check_kind(request, "application/connect+json")
            await answer(request, stream)
        except (BrokenStream, ClientGone):
            raise
        except TangramError as error:
            if (
                not stream.begun
                and isinstance(error, HttpError)
                and error.status in _OF_THE_SANDBOX
            ):
                raise
            await stream.end(error)
        else:
            await stream.end(None)

    return handler


class _FrameStream:
    """The frames of one response."""

    def __init__(self, request: HttpRequest, send: Send) -> None:
        self._request = request
        self._send = send
        self.begun = False

    async def message(self, message: Message) -> None:
        """Send a message."""
        await self._write(frame(message), more=True)

    async def end(self, error: TangramError | None) -> None:
        """Send the last frame."""
        last: Message = {}
        if error is not None:
            note_refusal("e2b", self._request, error)
            code = connect_code(error, self._request)
            last = {"error": {"code": code, "message": str(error)}}
        await self._write(frame(last, _END), more=False)

    async def pass_on(self, events: AsyncIterator[Message], keep_alive: Message) -> None:
        """Send messages as they come, and keep-alives between them."""
        asked = self._request.header(b"keepalive-ping-interval")
        pause = float(asked) if asked.isdigit() and int(asked) else _KEEP_ALIVE_SECONDS
        waiting = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=pause)
                if not done:
                    await self.message(keep_alive)
                    continue
                event = waiting.result()
                if event is None:
                    return
                await self.message(event)
                waiting = asyncio.ensure_future(anext(events, None))
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _write(self, content: bytes, *, more: bool) -> None:
        if not self.begun:
            self.begun = True
            headers = [
                (b"content-type", b"application/connect+json"),
                (b"x-request-id", self._request.id.encode("latin-1")),
            ]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": content, "more_body": more})


def frame(message: Mapping[str, Any], flag: int = 0) -> bytes:
    """Return the frame of a message."""
    content = encode_json(message)
    return _HEAD.pack(flag, len(content)) + content


async def frames(request: HttpRequest) -> AsyncIterator[Message]:
    """Yield the messages of a request as they arrive. Raises InvalidRequest, HttpError 413, ClientGone."""
    unread = bytearray()
    async for piece in request.chunks(2**62):
        unread += piece
        while len(unread) >= _HEAD.size:
            flag, length = _HEAD.unpack_from(unread)
            if length > MAX_MESSAGE_BYTES:
                raise HttpError(
                    413, "too_large", f"a message is larger than {MAX_MESSAGE_BYTES} bytes"
                )
            if len(unread) < _HEAD.size + length:
                break
            content = bytes(unread[_HEAD.size : _HEAD.size + length])
            del unread[: _HEAD.size + length]
            if flag == 1:
                raise InvalidRequest("send messages without compression")
            if flag != _END:
                yield _object(content)
    if unread:
        raise InvalidRequest("the last frame is not complete")


def timeout_of(request: HttpRequest) -> float | None:
    """Return the seconds after which the client wants a call to end; None: no limit."""
    text = request.header(b"connect-timeout-ms")
    return int(text) / 1000 if text.isdigit() and int(text) else None


def _check_kind(request: HttpRequest, expected: str) -> None:
    kind = request.header(b"content-type").partition(";")[0].strip().lower()
    if kind != expected:
        raise HttpError(415, "content_type", f"{kind or 'no type'}: send {expected}")


def _object(content: bytes) -> Message:
    try:
        return _decode(content or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the message is no JSON object: {error}") from None
