"""The few facts about httpx that both shells share."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from tangram_client._core import ApiCall, ApiResponse, default_headers
from tangram_client._pools import SpreadTransport
from tangram_client._sse import SILENCE_SECONDS
from tangram_client.context import ClientContext, is_loopback

CONNECT_SECONDS = 5.0
#: No limit on connections, each may be a wait.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256)


def sync_client(
    context: ClientContext, transport: httpx.BaseTransport | None, agent: str | None = None
) -> httpx.Client:
    """Return a client for one Tangram; ``transport`` replaces the network."""
    return httpx.Client(
        base_url=context.url,
        headers=default_headers(context.token, agent),
        transport=transport or httpx.HTTPTransport(**_transport_options(context.url)),
    )


def async_client(
    context: ClientContext, transport: httpx.AsyncBaseTransport | None, agent: str | None = None
) -> httpx.AsyncClient:
    """Return a client for one Tangram; ``transport`` replaces the network."""
    options = _transport_options(context.url)
    return httpx.AsyncClient(
        base_url=context.url,
        headers=default_headers(context.token, agent),
        transport=transport or SpreadTransport(lambda: httpx.AsyncHTTPTransport(**options)),
    )


def _transport_options(url: str) -> dict[str, Any]:
    # Certificates are read once, and only where they are needed: it takes 20 ms.
    secure = url.startswith("https:")
    verify: ssl.SSLContext | bool = httpx.create_ssl_context() if secure else False
    return {"verify": verify, "limits": LIMITS, "proxy": proxy_for(url)}


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for ``url``; loopback never has one."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def request_of(call: ApiCall[Any]) -> dict[str, Any]:
    """Return a call as arguments of ``httpx.Client.request``."""
    return {
        "method": call.method,
        "url": call.path,
        "params": dict(call.params),
        "headers": dict(call.headers),
        "content": call.content,
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
