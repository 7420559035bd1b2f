"""HTTP transport of both clients: httpx clients, and many small connection pools instead of one.

The pool of httpx looks at all of its connections for each request: with 300 waits under way that is
twenty times the work of the requests themselves. `SpreadTransport` sends a request through the first
pool with fewer than `POOL_SIZE` requests under way and adds a pool when all are full.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from tangram_client._core import ApiCall, ApiResponse, default_headers
from tangram_client._gateways import (
    AsyncGatewayShortCalls,
    AsyncGatewayTransport,
    Gateways,
    GatewayShortCalls,
    GatewayTransport,
)
from tangram_client._short_calls import AsyncShortCalls, ShortCalls
from tangram_client._sse import SILENCE_SECONDS
from tangram_client.context import ClientContext, is_loopback

CONNECT_SECONDS = 5.0
#: No limit on connections, each may be a wait.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256)
POOL_SIZE = 16


@dataclass
class _Pool:
    transport: httpx.AsyncBaseTransport
    under_way: int = 0


class SpreadTransport(httpx.AsyncBaseTransport):
    """Sends each request through a pool that is not full."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pool = self._free()
        pool.under_way += 1
        try:
            return await pool.transport.handle_async_request(request)
        finally:
            # From here on only the body is read: quick, or a stream with a connection of its own.
            pool.under_way -= 1

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()

    def _free(self) -> _Pool:
        for pool in self._pools:
            if pool.under_way < POOL_SIZE:
                return pool
        self._pools.append(_Pool(self._make()))
        return self._pools[-1]


def sync_client(
    context: ClientContext, transport: httpx.BaseTransport | None, agent: str | None = None
) -> httpx.Client:
    """Return a client for one Tangram; ``transport`` replaces the network."""
    return httpx.Client(
        base_url=context.url,
        headers=default_headers(context.token, agent),
        transport=_sync_transport(context, transport),
    )


def async_client(
    context: ClientContext, transport: httpx.AsyncBaseTransport | None, agent: str | None = None
) -> httpx.AsyncClient:
    """Return a client for one Tangram; ``transport`` replaces the network."""
    return httpx.AsyncClient(
        base_url=context.url,
        headers=default_headers(context.token, agent),
        transport=_async_transport(context, transport),
    )


def _sync_transport(
    context: ClientContext, given: httpx.BaseTransport | None
) -> httpx.BaseTransport:
    made = {url: given or httpx.HTTPTransport(**_transport_options(url)) for url in context.urls}
    return GatewayTransport(Gateways(context.urls), made) if context.others else made[context.url]


def _async_transport(
    context: ClientContext, given: httpx.AsyncBaseTransport | None
) -> httpx.AsyncBaseTransport:
    def transport(url: str) -> httpx.AsyncBaseTransport:
        options = _transport_options(url)
        return given or SpreadTransport(lambda: httpx.AsyncHTTPTransport(**options))

    made = {url: transport(url) for url in context.urls}
    if not context.others:
        return made[context.url]
    return AsyncGatewayTransport(Gateways(context.urls), made)


#: A store may pause while a server behind it reads.
_OBJECT_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS)


def object_sync_client() -> httpx.Client:
    """Return a client for signed URLs, which shows no token."""
    return httpx.Client(timeout=_OBJECT_TIMEOUT, verify=_tls())


def object_async_client() -> httpx.AsyncClient:
    """Return an asyncio client for signed URLs, which shows no token."""
    return httpx.AsyncClient(timeout=_OBJECT_TIMEOUT, verify=_tls())


def _transport_options(url: str) -> dict[str, Any]:
    return {"verify": _tls_of(url) or False, "limits": LIMITS, "proxy": proxy_for(url)}


@dataclass(frozen=True)
class CallSender:
    """Sends a call of the core once: a short one without httpx where that is possible."""

    http: httpx.Client
    short: ShortCalls | GatewayShortCalls | None

    def answer(self, call: ApiCall[Any]) -> ApiResponse:
        """Return the whole answer. Raises httpx.TransportError."""
        if self.short is not None and not callable(call.content):
            return self.short.answer(call)
        return response_of(self.http.request(**request_of(call)))

    def close(self) -> None:
        """Close all connections."""
        self.http.close()
        if self.short is not None:
            self.short.close()


@dataclass(frozen=True)
class AsyncCallSender:
    """`CallSender` for asyncio."""

    http: httpx.AsyncClient
    short: AsyncShortCalls | AsyncGatewayShortCalls | None

    async def answer(self, call: ApiCall[Any]) -> ApiResponse:
        """Return the whole answer. Raises httpx.TransportError."""
        if self.short is not None and not callable(call.content):
            return await self.short.answer(call)
        return response_of(await self.http.request(**request_of(call)))

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()
        if self.short is not None:
            await self.short.aclose()


def sync_sender(
    http: httpx.Client, context: ClientContext, transport: object, agent: str | None
) -> CallSender:
    """Return the sender of a client; ``transport`` and proxies leave every call to httpx."""
    if transport is not None or any(map(proxy_for, context.urls)):
        return CallSender(http, None)
    headers = default_headers(context.token, agent)
    made = {url: ShortCalls(url, headers, _tls_of(url)) for url in context.urls}
    if not context.others:
        return CallSender(http, made[context.url])
    return CallSender(http, GatewayShortCalls(Gateways(context.urls), made))


def async_sender(
    http: httpx.AsyncClient, context: ClientContext, transport: object, agent: str | None
) -> AsyncCallSender:
    """Return the sender of an asyncio client; ``transport`` and proxies leave every call to httpx."""
    if transport is not None or any(map(proxy_for, context.urls)):
        return AsyncCallSender(http, None)
    headers = default_headers(context.token, agent)
    made = {url: AsyncShortCalls(url, headers, _tls_of(url)) for url in context.urls}
    if not context.others:
        return AsyncCallSender(http, made[context.url])
    return AsyncCallSender(http, AsyncGatewayShortCalls(Gateways(context.urls), made))


def _tls_of(url: str) -> ssl.SSLContext | None:
    return _tls() if url.startswith("https:") else None


@lru_cache(1)
def _tls() -> ssl.SSLContext:
    """Read the certificates of this machine, which takes 20 ms."""
    return httpx.create_ssl_context()


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for ``url``; loopback never has one."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


#: A file or archive may pause while the server reads it.
STREAM_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS)


def request_of(call: ApiCall[Any]) -> dict[str, Any]:
    """Return a call as arguments of ``httpx.Client.request``."""
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params),
        "headers": dict(call.headers),
        "content": call.content() if callable(call.content) else call.content,
        "timeout": httpx.Timeout(call.timeout_seconds, connect=CONNECT_SECONDS),
    }


def stream_of(path: str, headers: Mapping[str, str], filters: Mapping[str, str]) -> dict[str, Any]:
    """Return a stream of events as arguments of ``httpx.Client.stream``."""
    return {
        "method": "GET",
        "url": path,
        "params": dict(filters),
        "headers": dict(headers),
        "timeout": httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
    }


def response_of(response: httpx.Response) -> ApiResponse:
    """Return an answer in the core's words."""
    return ApiResponse(response.status_code, response.headers, response.content)


def reason_of(error: httpx.TransportError, url: str) -> str:
    """Say in one line why no answer came."""
    return f"{url}: {str(error) or 'no details'} ({type(error).__name__})"
