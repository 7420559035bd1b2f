"""WorkerExchange: one request to one worker, whose answer passes to the client.

A stream is passed on event by event, another answer as a whole. Nothing is sent to the client before the first piece of the
body is there, so that a worker which fails before it can be replaced.
"""

from __future__ import annotations

from typing import Final

from domain.fleets import FleetWorker, TokenUsage
from scheduler.runtime.fleet_router.answer_usage import StreamUsage, usage_of
from scheduler.runtime.fleet_router.forwarded_request import ForwardedRequest
from scheduler.runtime.fleet_router.wire_priorities import refuses_priority
from scheduler.runtime.fleet_router.worker_http import WorkerAnswer, WorkerClient
from scheduler.runtime.gateway.http import Send

_EVENTS: Final = b"text/event-stream"
#: A longer answer is passed on while it arrives, and its usage is not read.
MOST_WHOLE_BYTES: Final = 64 * 1024 * 1024


class PriorityRefused(Exception):
    """The engine takes no priorities; the request was not executed."""


class ClientAnswer:
    """The answer to the client, as far as it is sent."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        self._headers = [(n.lower().encode(), v.encode("latin-1")) for n, v in headers.items()]
        self.begun = False
        self._last = b""

    async def pass_on(self, answer: WorkerAnswer, worker: FleetWorker, content: bytes) -> None:
        """Send a piece of the body, after the head of the worker's answer."""
        await self._begin(answer, worker)
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def keep_last(self, answer: WorkerAnswer, worker: FleetWorker, content: bytes) -> None:
        """Take the last piece of the body, which `end` sends."""
        whole = None if self.begun else len(content)
        await self._begin(answer, worker, whole)
        self._last = content

    async def end(self) -> None:
        """Send the last piece."""
        await self._send({"type": "http.response.body", "body": self._last, "more_body": False})

    async def _begin(
        self, answer: WorkerAnswer, worker: FleetWorker, size: int | None = None
    ) -> None:
        """Send the head once; ``size``: of a body that is whole."""
        if self.begun:
            return
        self.begun = True
        kind = answer.headers.get(b"content-type", b"application/json")
        headers = [
            (b"content-type", kind),
            *self._headers,
            (b"x-tangram-worker", worker.name.encode()),
            (b"x-accel-buffering", b"no"),
        ]
        if worker.weights_version:
            headers.append((b"x-tangram-weights-version", b"%d" % worker.weights_version))
        if size is not None:
            headers.append((b"content-length", b"%d" % size))
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await self._send(start)


class WorkerExchange:
    """The exchange of one generation with its worker."""

    def __init__(self, client: WorkerClient, asked: ForwardedRequest, shown: ClientAnswer) -> None:
        self._client = client
        self._asked = asked
        self._shown = shown
        #: Status of the answer; 0: there is none yet.
        self.status = 0
        #: Name of the cache that its worker keeps for the trajectory; empty: none by name.
        self.cache = ""

    async def run(self, worker: FleetWorker, priority: int | None) -> TokenUsage | None:
        """Ask the worker and pass on its answer but for its end; return the tokens, None after an error.

        Raises NotReached, BrokenOff, PriorityRefused, and what the client's channel raises.
        """
        body = self._asked.body(priority)
        answer = await self._client.post(worker.url, self._asked.path, body, self.cache)
        try:
            self.status = answer.status
            if answer.headers.get(b"content-type", b"").startswith(_EVENTS):
                return await self._stream(answer, worker)
            return await self._whole(answer, worker, priority)
        finally:
            answer.close()

    async def _stream(self, answer: WorkerAnswer, worker: FleetWorker) -> TokenUsage | None:
        usage = StreamUsage(hides=self._asked.hides_usage)
        async for piece in answer.pieces():
            if ready := usage.feed(piece):
                await self._shown.pass_on(answer, worker, ready)
        await self._shown.keep_last(answer, worker, usage.end())
        return usage.usage(self._asked.prompt_tokens) if answer.status == 200 else None

    async def _whole(
        self, answer: WorkerAnswer, worker: FleetWorker, priority: int | None
    ) -> TokenUsage | None:
        content = bytearray()
        async for piece in answer.pieces():
            content += piece
            if len(content) > MOST_WHOLE_BYTES:
                await self._shown.pass_on(answer, worker, bytes(content))
                content.clear()
        whole = bytes(content)
        if priority is not None and refuses_priority(answer.status, whole):
            raise PriorityRefused
        await self._shown.keep_last(answer, worker, whole)
        if answer.status != 200:
            return None
        return usage_of(whole) or TokenUsage(self._asked.prompt_tokens)
