"""One request to an API and its answer, typed however it ends. Nothing is repeated here.

Whether bytes were sent decides who may ask again: it is noted before the first one goes out. A
redirect is an answer like any other, and is not followed. Bodies come as they are (no compression),
so an answer costs no more than what is kept of it, and one that is longer ends with its connection.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from domain.action import Outcome
from domain.apis import ApiConfig, CallSpec, Feedback, Verdict, address_of
from domain.ports import Passage, RunReport
from managers.common.api_calls.answer import feedback_of, kept_headers, result_of
from managers.common.api_calls.guard import EgressRefused
from managers.common.api_calls.secrets import Mask, masked

CONNECT_SECONDS: Final = 10.0


@dataclass
class Attempt:
    """A request on its way."""

    call: CallSpec
    api: ApiConfig
    secret: str
    limit_seconds: float
    #: Awaited before the first byte goes out.
    sending: Callable[[], Awaitable[None]]
    #: Where a good answer goes while it comes.
    passage: Passage | None = None
    #: When that was, on the clock of the event loop.
    began_at: float | None = None

    @property
    def sent(self) -> bool:
        return self.began_at is not None

    def seconds(self) -> float:
        """Return how long the request has been with the API."""
        now = asyncio.get_running_loop().time()
        return 0.0 if self.began_at is None else now - self.began_at

    def failing(self, outcome: Outcome, detail: str) -> RunReport:
        """Return the report of an attempt that got no answer."""
        return RunReport(
            outcome,
            self.seconds(),
            detail=masked(detail, self.secret),
            never_started=not self.sent,
            feedback=Feedback(self.call.target, Verdict.FAILING, self.sent),
        )


async def exchange(pool: httpcore.AsyncConnectionPool, attempt: Attempt) -> RunReport:
    """Make one attempt. Raises nothing but cancellation."""
    try:
        async with asyncio.timeout(None) as deadline:
            return await _ask(pool, attempt, deadline)
    except TimeoutError:
        limit = f"no whole answer within {attempt.limit_seconds:g} s"
        return attempt.failing(Outcome.TIMEOUT, limit)
    except EgressRefused as refused:
        return RunReport(Outcome.INFRA_FAILED, 0.0, detail=f"refused: {refused}")
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        reason = str(error) or type(error).__name__
        if not attempt.sent:
            return attempt.failing(Outcome.INFRA_FAILED, f"no connection: {reason}")
        return attempt.failing(Outcome.UNKNOWN, f"the answer broke off: {reason}")
    except (ssl.SSLError, OSError) as error:
        outcome = Outcome.UNKNOWN if attempt.sent else Outcome.INFRA_FAILED
        return attempt.failing(outcome, f"{type(error).__name__}: {error}")


async def _ask(
    pool: httpcore.AsyncConnectionPool, attempt: Attempt, deadline: asyncio.Timeout
) -> RunReport:
    async def watch(event: str, _: dict[str, Any]) -> None:
        if event == "http11.send_request_headers.started" and not attempt.sent:
            await attempt.sending()
            attempt.began_at = asyncio.get_running_loop().time()
            deadline.reschedule(attempt.began_at + attempt.limit_seconds)

    response = await pool.handle_async_request(_request(attempt, watch))
    headers = kept_headers(response.headers, attempt.secret)
    try:
        body, truncated = await _receive(response, headers, attempt)
    finally:
        await response.aclose()
    result = result_of(response.status, headers, body, truncated=truncated, secret=attempt.secret)
    good = 200 <= response.status < 300 and not truncated
    feedback = feedback_of(attempt.call.target, response.status, headers, time.time(), good=good)
    return RunReport(Outcome.COMPLETED, attempt.seconds(), answer=result, feedback=feedback)


async def _receive(
    response: httpcore.Response, headers: dict[str, str], attempt: Attempt
) -> tuple[bytes, bool]:
    """Return what is kept of the body. One that is passed on is read to its end, however long."""
    limit, passage = attempt.api.response_limit_bytes, attempt.passage
    if passage is None or not 200 <= response.status < 300:
        return await _read(response, limit)
    kept, mask = bytearray(), Mask(attempt.secret)
    await passage.begin(response.status, headers)
    async for chunk in response.aiter_stream():
        kept += chunk[: limit + 1 - len(kept)]
        if shown := mask.feed(chunk):
            await passage.write(shown)
    if rest := mask.rest():
        await passage.write(rest)
    await passage.end()
    return bytes(kept[:limit]), len(kept) > limit


async def _read(response: httpcore.Response, limit: int) -> tuple[bytes, bool]:
    kept = bytearray()
    async for chunk in response.aiter_stream():
        kept += chunk[: limit + 1 - len(kept)]
        if len(kept) > limit:
            return bytes(kept[:limit]), True
    return bytes(kept), False


def _request(attempt: Attempt, watch: Any) -> httpcore.Request:
    call, api = attempt.call, attempt.api
    address = address_of(api.base_url)
    default = 443 if address.scheme == "https" else 80
    host = f"[{address.host}]" if ":" in address.host else address.host
    headers = {
        "Host": host if address.port == default else f"{host}:{address.port}",
        "User-Agent": "tangram",
        "Accept": "*/*",
        **api.headers,
        **call.headers,
        "Accept-Encoding": "identity",
    }
    if attempt.secret:
        headers[api.secret_header] = api.secret_prefix + attempt.secret
    body = call.body.encode()
    if body or call.method in ("POST", "PUT", "PATCH"):
        headers["Content-Length"] = str(len(body))
    return httpcore.Request(
        call.method,
        httpcore.URL(
            scheme=address.scheme,
            host=address.host,
            port=address.port,
            target=address.prefix + call.path,
        ),
        headers=list(headers.items()),
        content=body,
        extensions={
            "trace": watch,
            "timeout": {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS},
        },
    )
