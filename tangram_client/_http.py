"""The few facts about httpx that both shells share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from tangram_client._core import Call, Response, default_headers
from tangram_client._sse import SILENCE_SECONDS
from tangram_client.context import Context, is_loopback

CONNECT_SECONDS = 5.0


def options(context: Context) -> dict[str, Any]:
    """Return how to construct an httpx client: no limit on connections, each may be a wait."""
    return {
        "base_url": context.url,
        "headers": default_headers(context.token),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=256),
        "trust_env": not is_loopback(context.url),
    }


def request_of(call: Call[Any]) -> dict[str, Any]:
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


def response_of(response: httpx.Response) -> Response:
    """Return an answer in the core's words."""
    return Response(response.status_code, response.headers, response.content)


def reason_of(error: httpx.TransportError, url: str) -> str:
    """Say in one line why no answer came."""
    return f"{url}: {error or type(error).__name__} ({type(error).__name__})"
