"""Backends for tests: the scripted server of the examples, in this process, with the faults that a test needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import uvicorn

from examples.rollouts.scripted_llm import Answered, Rule, ScriptedModel, Served, scripted
from rollout.ports import Seat
from scheduler.runtime.node.door.server import EmbeddedServer
from tests.chat_models import tokenizer
from tests.ports import free_port

#: Changes the JSON of an answer in place, returns another status, or waits for ever.
Fault = Callable[[dict[str, Any]], Any]
PROMPT = [1, 300, 301, 302, 303, 304, 305, 306, 307, 308]


def scripted_model(*answers: str, **options: Any) -> ScriptedModel:
    """Return a model that answers with ``answers``, turn by turn."""
    reply = scripted([Rule("", list(answers or ["It is 4, as two and two are four."]))])
    return ScriptedModel(reply, tokenizer=tokenizer(), **options)


class FaultyBackend:
    """A scripted server whose next answers have faults, one each; None: no fault."""

    def __init__(self, dialect: str = "vllm", *faults: Fault | None, **options: Any) -> None:
        self.served = Served(scripted_model(**options), dialect)
        self.faults = list(faults)
        self.asked: list[dict[str, Any]] = []
        self.health_answers = True

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["path"] == "/health" and not self.health_answers:
            await asyncio.Event().wait()
        if scope["method"] != "POST":
            await self.served(scope, receive, send)
            return
        body = json.loads((await receive())["body"])
        self.asked.append(body)
        status, answer = 200, cast(Any, {})
        try:
            status, answer = await self.served.answer(scope["path"], body)
        except ValueError as error:
            status, answer = 400, {"error": {"message": str(error)}}
        headers: list[tuple[bytes, bytes]] = []
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and status == 200:
            changed = fault(answer)
            if asyncio.iscoroutine(changed):
                changed = await changed
            if isinstance(changed, int):
                status, headers = changed, [(b"retry-after", b"0.25")]
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})


class Backends(httpx.AsyncBaseTransport):
    """Transport to backends in this process, by the host of their address; any other refuses connections."""

    def __init__(self, **by_host: FaultyBackend) -> None:
        self.by_host = by_host

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request to its backend."""
        backend = self.by_host.get(request.url.host)
        if backend is None:
            raise httpx.ConnectError("connection refused", request=request)
        return await httpx.ASGITransport(app=backend).handle_async_request(request)


def seat_of(backend: str, version: int = 1, dialect: str = "") -> Seat:
    """Return the seat of a backend in `Backends`."""
    return Seat("policy", backend, f"http://{backend}:8000", version, dialect)


class TestBinding:
    """Binding of a rollout whose seats a test states."""

    __test__ = False

    def __init__(self, *seats: Seat, registered: Sequence[Seat] | None = None) -> None:
        self._seats = list(seats)
        self.seat = self._seats.pop(0)
        self.now = list(seats if registered is None else registered)
        self.reasons: list[str] = []

    async def registered(self) -> Sequence[Seat]:
        """Return the backends that take calls."""
        return self.now

    async def rebind(self, reason: str) -> Seat:
        """Bind to the next seat, the last one for ever."""
        self.reasons.append(reason)
        if self._seats:
            self.seat = self._seats.pop(0)
        return self.seat


@dataclass
class ListeningModel(Served):
    """A server that keeps what it answered."""

    answered: list[Answered] = field(default_factory=list)

    async def respond(self, prompt_ids: list[int], most: int, seed: int | None) -> Answered:
        """Return a response."""
        found = await super().respond(prompt_ids, most, seed)
        self.answered.append(found)
        return found


@asynccontextmanager
async def serving(served: Callable[..., Any]) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port; yield the address."""
    port = free_port()
    server = EmbeddedServer(uvicorn.Config(served, port=port, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.end()
        await task
