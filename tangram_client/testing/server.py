"""The in-memory server: requests in, answers out, faults on demand."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx

from tangram_client.testing.clock import VirtualClock
from tangram_client.testing.routes import FakeAnswer, FakeRefusal, Routes
from tangram_client.testing.state import Ran, Run, World

TOKEN = "tgm_test"


@dataclass(frozen=True)
class Sent:
    """A request that reached the server."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class FakeServer:
    """A Tangram in one object; see the package's docstring."""

    url = "http://tangram.test"

    def __init__(
        self,
        run: Run | None = None,
        *,
        token: str = TOKEN,
        cpu: float = 8,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.token = token
        self.world = World(self.clock, run or (lambda payload: Ran()))
        #: Everything that arrived, faults included.
        self.sent: list[Sent] = []
        self.transport = httpx.MockTransport(self.handle)
        self._routes = Routes(self.world, cpu=cpu)
        self._answered: dict[str, tuple[str, FakeAnswer]] = {}
        self._faults: deque[Callable[[httpx.Request], httpx.Response]] = deque()
        self._break_after: deque[int] = deque()

    @property
    def executed(self) -> list[str]:
        """Ids of actions whose work was done, once per time that it was done."""
        return self.world.executed

    def finish(self, action_id: str, ran: Ran | None = None) -> None:
        """End an action that is held."""
        if self.world.actions[action_id]["state"] == "queued":
            self.world.grant(action_id)
        self.world.finish(action_id, ran or Ran())

    def lose_answers(self, times: int = 1) -> None:
        """Do what the next requests ask, and lose the connection before the answer."""
        self._faults.extend([self._lost_answer] * times)

    def lose_requests(self, times: int = 1) -> None:
        """Refuse the next connections."""
        self._faults.extend([self._lost_request] * times)

    def be_busy(self, times: int = 1, *, retry_after: str | None = "1", status: int = 503) -> None:
        """Answer the next requests with 503 (or another status) and ``Retry-After``."""
        problem = {"title": "Busy", "status": status, "code": "busy", "detail": "try later"}
        headers = {"Content-Type": "application/problem+json"}
        if retry_after is not None:
            headers["Retry-After"] = retry_after

        def busy(request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, headers=headers, content=json.dumps(problem))

        self._faults.extend([busy] * times)

    def break_streams(self, *after_bytes: int) -> None:
        """Cut the next event streams after so many bytes."""
        self._break_after.extend(after_bytes)

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; the handler of `transport`."""
        request.read()
        self.sent.append(
            Sent(
                request.method,
                request.url.path,
                dict(request.url.params),
                request.headers,
                request.content,
            )
        )
        return self._faults.popleft()(request) if self._faults else self._perform(request)

    def _lost_answer(self, request: httpx.Request) -> httpx.Response:
        self._perform(request)
        raise httpx.ReadError("connection reset by peer", request=request)

    def _lost_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    def _perform(self, request: httpx.Request) -> httpx.Response:
        self.world.tick()
        try:
            if request.url.path in {"/livez", "/readyz"}:
                return httpx.Response(200, json={"status": "ok"})
            self._authenticate(request)
            if request.url.path == "/api/v1/events":
                return self._stream(request)
            answer = self._once(request)
        except FakeRefusal as refusal:
            answer = refusal.answer()
        return httpx.Response(answer.status, headers=answer.headers, content=answer.content)

    def _authenticate(self, request: httpx.Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise FakeRefusal(401, "unauthorized", "give a token: Authorization: Bearer tgm_…")

    def _once(self, request: httpx.Request) -> FakeAnswer:
        key = request.headers.get("idempotency-key")
        if request.method != "POST" or key is None:
            return self._routes.answer(request)
        body = request.method.encode() + request.url.path.encode() + request.content
        digest = hashlib.sha256(body).hexdigest()
        known = self._answered.get(key)
        if known is None:
            self._answered[key] = known = (digest, self._routes.answer(request))
        if known[0] != digest:
            raise FakeRefusal(409, "key_reused", "this Idempotency-Key came with another body")
        return known[1]

    def _stream(self, request: httpx.Request) -> httpx.Response:
        events = self.world.events
        cursor = int(request.headers.get("last-event-id") or len(events))
        text = f"id: {cursor}\n\n: heartbeat\n\n"
        for number, (kind, action_id) in enumerate(events[cursor:], start=cursor + 1):
            view = json.dumps(self.world.actions[action_id])
            text += f"event: {kind}\nid: {number}\ndata: {view}\n\n"
        cut = self._break_after.popleft() if self._break_after else None
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=_Stream(text.encode(), cut))


class _Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Bytes in small pieces, with a broken connection where asked."""

    PIECE = 37

    def __init__(self, content: bytes, cut: int | None) -> None:
        self._content = content if cut is None else content[:cut]
        self._broken = cut is not None

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), self.PIECE):
            yield self._content[start : start + self.PIECE]
        if self._broken:
            raise httpx.ReadError("connection reset by peer")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece
