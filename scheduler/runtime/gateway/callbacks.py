"""Callbacks: messages of a facade to a URL that its client named, to public addresses alone.

The URL comes from a client, so the rules of webhooks hold (`domain.receiver_urls`): HTTPS, no redirects, and a connection to the address that
was checked, whatever the name resolves to later. What a receiver answers is not passed on.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

import httpcore

from domain.receiver_urls import check_url, reach_of
from managers.common.api_calls.egress import open_connections

TIMEOUT_SECONDS: Final = 10.0


class Callbacks:
    """Sends messages to receivers. ``loopback``: they may be on this machine, for trials."""

    def __init__(self, *, loopback: bool = False) -> None:
        self._loopback = loopback

    def check(self, url: str, pointer: str) -> None:
        """Raise InvalidRequest for a URL that nothing may be sent to; ``pointer``: the member that has it."""
        check_url(url, loopback=self._loopback, pointer=pointer)

    async def post(self, url: str, body: bytes) -> str:
        """Send a JSON body; return why the receiver does not have it, empty when it accepted it."""
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                open_connections(reach_of(url, loopback=self._loopback)) as pool,
            ):
                headers = [
                    ("Host", urlsplit(url).netloc), ("User-Agent", "tangram"),
                    ("Content-Type", "application/json"), ("Content-Length", str(len(body))),
                ]  # fmt: skip
                answer = await pool.handle_async_request(
                    httpcore.Request("POST", url, headers=headers, content=body)
                )
                await answer.aclose()
        except TimeoutError:
            return f"no answer within {TIMEOUT_SECONDS:g} s"
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError,
                httpcore.UnsupportedProtocol, ssl.SSLError, OSError) as error:  # fmt: skip
            return f"{type(error).__name__}: {error}"[:300]
        return "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
