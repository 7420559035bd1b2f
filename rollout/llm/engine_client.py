"""HTTP to engines: one request and its answer, or an error whose type says what to do next.

Lifetimes: one client for a worker process; connections to an engine are kept and reused. A call that is cancelled closes
its connection, at which engines end the generation.

Rules
1. `BackendFailed`: another backend may answer. `BackendBusy`: this one will, later. `RequestRefused`: no backend will.
   `ContextOverflow`: the prompt is too long for the model.
2. An answer is read up to a limit, and a call lasts up to a limit, whatever the engine sends.
3. While a call waits for its answer, the engine's health is asked for at intervals. An engine that fails to answer that, too,
   is given up at once, and not at the limit of the call.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import httpx
import msgspec

from domain.errors import TangramError
from rollout.llm.sampling_options import ContextOverflow

CONNECT_SECONDS: Final = 10.0
#: Bytes of an answer without tokens, and of each token: id, log-probability and name, with room.
BASE_BYTES: Final = 1024 * 1024
TOKEN_BYTES: Final = 512
_SHOWN_CHARACTERS: Final = 300
#: Idle connections are closed before engines do so: uvicorn's, which most of them use, after 5 s.
_KEEP_ALIVE_SECONDS: Final = 4.0
_IDLE_CONNECTIONS: Final = 256
_BUSY: Final = frozenset({429, 503})
_DEFAULT_BUSY_SECONDS: Final = 1.0
_MOST_BUSY_SECONDS: Final = 60.0
#: Words of engines that refuse a prompt for its length.
_OVERFLOW: Final = ("maximum context length", "context length", "is longer than the model")


class BackendFailed(TangramError):
    """The backend gave no answer, or a wrong one."""

    permanent = False


class BackendBusy(BackendFailed):
    """The backend takes no request now."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class RequestRefused(TangramError):
    """The backend refuses the request itself."""


class ExchangeLimits(msgspec.Struct, frozen=True):
    """Limits on one call; in seconds."""

    call_seconds: float = 1800.0
    #: Between two questions for the health of an engine that has not answered yet.
    watch_seconds: float = 30.0
    health_seconds: float = 5.0
    #: Health checks that fail one after the other before a call is given up.
    failed_checks: int = 2


@lru_cache(1)
def _certificates() -> ssl.SSLContext:
    """Read the certificates of this machine, which takes 20 ms."""
    return httpx.create_ssl_context(trust_env=False)


class EngineClient:
    """Connections to engines."""

    def __init__(
        self,
        limits: ExchangeLimits | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.limits = limits or ExchangeLimits()
        self._headers = {"accept-encoding": "identity", **(headers or {})}
        self._transport = transport or httpx.AsyncHTTPTransport(
            trust_env=False,
            verify=_certificates(),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=_IDLE_CONNECTIONS,
                keepalive_expiry=_KEEP_ALIVE_SECONDS,
            ),
        )

    async def generate(
        self, address: str, path: str, body: Mapping[str, Any], most_tokens: int
    ) -> bytes:
        """Return the answer to a request for tokens. Raises as the module says."""
        limit = BASE_BYTES + TOKEN_BYTES * most_tokens
        call = asyncio.ensure_future(self._post(address + path, msgspec.json.encode(body), limit))
        watch = asyncio.ensure_future(self._watch(address))
        try:
            async with asyncio.timeout(self.limits.call_seconds):
                await asyncio.wait((call, watch), return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else watch.result()
        except TimeoutError as error:
            raise BackendFailed(f"no answer within {self.limits.call_seconds:g} s") from error
        finally:
            for task in (call, watch):
                task.cancel()
            await asyncio.gather(call, watch, return_exceptions=True)

    async def get_json(self, url: str, seconds: float = CONNECT_SECONDS) -> Any:
        """Return the JSON of a page, None where there is none of it. Raises BackendFailed without any answer."""
        try:
            async with asyncio.timeout(seconds):
                status, data, _ = await self._receive("GET", url, None, BASE_BYTES)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
            path = "/" + url.partition("://")[2].partition("/")[2]
            raise BackendFailed(f"{path}: {_said(error)}") from error
        if status != 200:
            return None
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    async def healthy(self, address: str) -> bool:
        """Return whether an engine answers. One that has no page for its health answers with 404, which is enough."""
        try:
            async with asyncio.timeout(self.limits.health_seconds):
                status, _, _ = await self._receive("GET", f"{address}/health", None, BASE_BYTES)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, BackendFailed):
            return False
        return status < 500

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    async def _watch(self, address: str) -> bytes:
        """Return never; raises BackendFailed once the engine fails enough checks."""
        failed = 0
        while failed < self.limits.failed_checks:
            await asyncio.sleep(self.limits.watch_seconds)
            failed = 0 if await self.healthy(address) else failed + 1
        raise BackendFailed("no answer, and none to its health checks")

    async def _post(self, url: str, body: bytes, limit: int) -> bytes:
        try:
            status, data, headers = await self._receive("POST", url, body, limit)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BackendFailed(_said(error)) from error
        if status == 200:
            return data
        raise refusal_of(status, data, headers)

    async def _receive(
        self, method: str, url: str, body: bytes | None, limit: int
    ) -> tuple[int, bytes, httpx.Headers]:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        request = httpx.Request(
            method,
            url,
            content=body,
            headers=headers,
            extensions={"timeout": {"connect": CONNECT_SECONDS}},
        )
        response = await self._transport.handle_async_request(request)
        try:
            kept = bytearray()
            async for piece in response.aiter_raw():
                kept += piece
                if len(kept) > limit:
                    raise BackendFailed(f"an answer of more than {limit} bytes")
            return response.status_code, bytes(kept), response.headers
        finally:
            await response.aclose()


def refusal_of(status: int, data: bytes, headers: Mapping[str, str]) -> Exception:
    """Return the error for an answer that is no completion, by its status."""
    said = f"HTTP {status}: {data[:_SHOWN_CHARACTERS].decode(errors='replace')}"
    if status in _BUSY:
        return BackendBusy(said, _retry_after(headers.get("retry-after")))
    if status in {400, 413, 422}:
        text = data[: 64 * _SHOWN_CHARACTERS].decode(errors="replace").lower()
        if any(words in text for words in _OVERFLOW):
            return ContextOverflow(said)
        return RequestRefused(said)
    return BackendFailed(said)


def _retry_after(stated: str | None) -> float:
    try:
        seconds = float(stated) if stated is not None else _DEFAULT_BUSY_SECONDS
    except ValueError:
        seconds = _DEFAULT_BUSY_SECONDS
    return min(max(seconds, 0.0), _MOST_BUSY_SECONDS) if seconds == seconds else 0.0


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
