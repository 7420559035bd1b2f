"""WebLimits of requests that hold behind every web server: the size of bodies, and unambiguous paths.

`tangram_web.serving.protocol` counts what arrives on a connection. Where another protocol serves, as
with a start command of an earlier version, bodies are counted here, and a warning says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from tangram_web.serving.limits import AMBIGUOUS_PATH, COUNTED, WebLimits, is_ambiguous, too_large

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PROTOCOL: Final = "--http tangram_web.serving.protocol:LimitedHttp"


class LimitedRequests:
    """ASGI middleware in front of all routes."""

    def __init__(self, inner: Application, limits: WebLimits) -> None:
        self._inner = inner
        self._limits = limits
        self._warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.serve(scope, receive, send)

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the work of serving a request: without a coroutine around it, which each action would pay."""
        path = scope.get("raw_path")
        if path and COUNTED in scope and not is_ambiguous(path):
            return self._inner(scope, receive, send)
        return self._checked(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
        elif is_ambiguous(scope.get("raw_path") or scope["path"].encode("utf-8", "replace")):
            # Of a websocket this is no valid answer, and the server ends the handshake.
            await AMBIGUOUS_PATH.send(send)
        elif scope["type"] == "websocket" or COUNTED in scope:
            await self._inner(scope, receive, send)
        else:
            self._warn()
            await self._counted(scope, receive, send)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning("headers and slow clients are not limited: start uvicorn with %s", PROTOCOL)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
        limit = self._limits.body_limit(scope["method"], path)
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            await too_large(limit).send(send)
            return
        size, begun, refused = 0, False, False

        async def counting() -> MutableMapping[str, Any]:
            nonlocal size, refused
            message = await receive()
            size += len(message.get("body", b""))
            if size <= limit:
                return message
            if not (begun or refused):
                await too_large(limit).send(send)
            refused = True
            return {"type": "http.disconnect"}

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            begun = True
            if not refused:
                await send(message)

        await self._inner(scope, counting, sending)
