"""HTTP transport of webhooks: one POST and its typed result.

Connections are opened by the guard of API calls, which refuses private addresses (``open_connections``
comes from the caller). Redirects are not followed. The stored part of a response and the total time
are limited.

A user sees the result of an attempt, so it tells nothing of the network of this installation: a host
that does not resolve, one with a private address and one that refuses connections have one answer.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpcore

from domain.apis import Reach

log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 15.0
KEPT_BYTES: Final = 2048
NO_CONNECTION: Final = "no connection to a public address of this host (the log has the reason)"

#: Reach of addresses → a connection pool that connects only to those.
OpenConnections = Callable[[Reach], httpcore.AsyncConnectionPool]


@dataclass(frozen=True)
class PostResult:
    """The result of one attempt; ``status`` is None without a response."""

    status: int | None
    said: str
    body: str = ""
    seconds: float = 0.0
    #: The value of ``Retry-After``.
    retry_after_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the receiver accepted the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """Whether the receiver refuses all further messages."""
        return self.status == 410


async def post(
    pool: httpcore.AsyncConnectionPool,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> PostResult:
    """Make one attempt. Raises nothing but cancellation."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(timeout_seconds):
            result = await _post(pool, url, headers, body)
    except TimeoutError:
        result = PostResult(None, f"no complete response within {timeout_seconds:g} s")
    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
        log.info("no connection to %s: %s", url, error)
        result = PostResult(None, NO_CONNECTION)
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError,
            httpcore.UnsupportedProtocol, ssl.SSLError, OSError) as error:  # fmt: skip
        result = PostResult(None, f"{type(error).__name__}: {error}"[:300])
    seconds = loop.time() - began
    return PostResult(result.status, result.said, result.body, seconds, result.retry_after_seconds)


async def _post(
    pool: httpcore.AsyncConnectionPool, url: str, headers: Mapping[str, str], body: bytes
) -> PostResult:
    sent = {"User-Agent": "tangram", "Content-Type": "application/json", **headers,
            "Accept-Encoding": "identity", "Content-Length": str(len(body))}  # fmt: skip
    request = httpcore.Request("POST", url, headers=_with_host(url, sent), content=body)
    response = await pool.handle_async_request(request)
    kept = bytearray()
    try:
        async for chunk in response.aiter_stream():
            kept += chunk[: KEPT_BYTES - len(kept)]
            if len(kept) >= KEPT_BYTES:
                break
    finally:
        await response.aclose()
    wait = _header(response, b"retry-after")
    seconds = float(wait) if wait.isdigit() and len(wait) < 8 else 0.0
    text = bytes(kept).decode(errors="replace").replace("\0", "�")
    return PostResult(response.status, f"HTTP {response.status}", text, retry_after_seconds=seconds)


def _header(response: httpcore.Response, name: bytes) -> bytes:
    return next((value for key, value in response.headers if key.lower() == name), b"")


def _with_host(url: str, headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [("Host", urlsplit(url).netloc), *headers.items()]
