"""Several web processes of one Tangram: a call that one does not answer goes to the next.

Any web process answers any call: an action has one state behind all of them, and a repeated submission with its
Idempotency-Key is answered with the first answer, whichever process has it. So a call may be sent again to another one.

Rules
1. Calls go to the present gateway. It changes when one is refused, ends without an answer, or answers 502, 503 or 504.
2. A call tries each gateway at most once, at once; pauses between rounds are those of the `RetryPolicy`. When none answers, the
   last failure counts.
3. A body that can be read only once, such as the upload of a file, tries one gateway; the next attempt goes to the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import httpx

from tangram_client._core import ApiCall, ApiResponse
from tangram_client._short_calls import AsyncShortCalls, ShortCalls

#: The gateway, or a proxy before it, cannot answer now; another one may.
AWAY: Final = frozenset({502, 503, 504})
R = TypeVar("R", ApiResponse, httpx.Response)


class Gateways:
    """Addresses of one Tangram, and the one that is used."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self._present = 0

    def order(self) -> tuple[str, ...]:
        """Return all addresses, the present one first."""
        return self.urls[self._present :] + self.urls[: self._present]

    def leave(self, url: str) -> None:
        """Use the next one, unless another call has left ``url`` before."""
        if self.urls[self._present] == url:
            self._present = (self._present + 1) % len(self.urls)

    def addressed(self, request: httpx.Request, url: str) -> httpx.Request:
        """Return a request to the first gateway as one to ``url``."""
        first, target = httpx.URL(self.urls[0]), httpx.URL(url)
        path = request.url.raw_path[len(first.raw_path.rstrip(b"/")) :]
        whole = target.copy_with(raw_path=target.raw_path.rstrip(b"/") + path)
        others = [(k, v) for k, v in request.headers.raw if k.lower() != b"host"]
        return httpx.Request(
            request.method,
            whole,
            headers=[(b"Host", whole.netloc), *others],
            stream=request.stream,
            extensions=request.extensions,
        )

    def tries(self, request: httpx.Request) -> tuple[str, ...]:
        """Return the addresses that a request may try."""
        return self.order() if isinstance(request.stream, httpx.ByteStream) else self.order()[:1]

    def is_away(self, url: str, answer: ApiResponse | httpx.Response) -> bool:
        """Whether ``url`` cannot answer now; it is left then."""
        status = answer.status if isinstance(answer, ApiResponse) else answer.status_code
        if status in AWAY:
            self.leave(url)
        return status in AWAY


class GatewayShortCalls:
    """`ShortCalls` of several gateways."""

    def __init__(self, gateways: Gateways, senders: Mapping[str, ShortCalls]) -> None:
        self._gateways, self._senders = gateways, senders

    def answer(self, call: ApiCall[object]) -> ApiResponse:
        """Send a call whose content is bytes or None. Raises httpx.TransportError, ValueError."""
        order = self._gateways.order()
        return _first(self._gateways, order, lambda url: self._senders[url].answer(call))

    def close(self) -> None:
        """Close all connections."""
        for each in self._senders.values():
            each.close()


class GatewayTransport(httpx.BaseTransport):
    """The transport of a client of several gateways; its requests name the first one."""

    def __init__(self, gateways: Gateways, transports: Mapping[str, httpx.BaseTransport]) -> None:
        self._gateways, self._transports = gateways, transports

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        def ask(url: str) -> httpx.Response:
            return self._transports[url].handle_request(self._gateways.addressed(request, url))

        return _first(self._gateways, self._gateways.tries(request), ask)

    def close(self) -> None:
        for each in self._transports.values():
            each.close()


class AsyncGatewayShortCalls:
    """`AsyncShortCalls` of several gateways."""

    def __init__(self, gateways: Gateways, senders: Mapping[str, AsyncShortCalls]) -> None:
        self._gateways, self._senders = gateways, senders

    async def answer(self, call: ApiCall[object]) -> ApiResponse:
        """Send a call whose content is bytes or None. Raises httpx.TransportError, ValueError."""
        order = self._gateways.order()
        return await _afirst(self._gateways, order, lambda url: self._senders[url].answer(call))

    async def aclose(self) -> None:
        """Close all connections."""
        for each in self._senders.values():
            await each.aclose()


class AsyncGatewayTransport(httpx.AsyncBaseTransport):
    """`GatewayTransport` for asyncio."""

    def __init__(
        self, gateways: Gateways, transports: Mapping[str, httpx.AsyncBaseTransport]
    ) -> None:
        self._gateways, self._transports = gateways, transports

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        def ask(url: str) -> Awaitable[httpx.Response]:
            sent = self._gateways.addressed(request, url)
            return self._transports[url].handle_async_request(sent)

        return await _afirst(self._gateways, self._gateways.tries(request), ask)

    async def aclose(self) -> None:
        for each in self._transports.values():
            await each.aclose()


def _first(gateways: Gateways, order: Sequence[str], ask: Callable[[str], R]) -> R:
    for url in order[:-1]:
        try:
            answer = ask(url)
        except httpx.TransportError:
            gateways.leave(url)
            continue
        if not gateways.is_away(url, answer):
            return answer
        if isinstance(answer, httpx.Response):
            answer.close()
    try:
        answer = ask(order[-1])
    except httpx.TransportError:
        gateways.leave(order[-1])
        raise
    gateways.is_away(order[-1], answer)
    return answer


async def _afirst(
    gateways: Gateways, order: Sequence[str], ask: Callable[[str], Awaitable[R]]
) -> R:
    for url in order[:-1]:
        try:
            answer = await ask(url)
        except httpx.TransportError:
            gateways.leave(url)
            continue
        if not gateways.is_away(url, answer):
            return answer
        if isinstance(answer, httpx.Response):
            await answer.aclose()
    try:
        answer = await ask(order[-1])
    except httpx.TransportError:
        gateways.leave(order[-1])
        raise
    gateways.is_away(order[-1], answer)
    return answer
