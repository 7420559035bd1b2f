"""Bodies of agents' calls that are open at once are bounded in the web process and in the worker: others are not read."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from domain.principals import Principal, Scope
from domain.redis_keys import Keys
from scheduler.runtime.gateway import chat_completions
from scheduler.runtime.gateway.chat_completions import AgentChats
from scheduler.runtime.gateway.http import HttpRequest
from scheduler.runtime.open_bytes import OpenBytes
from scheduler.runtime.rollouts.worker_door import MAX_QUESTION_BYTES, RolloutQuestions

AGENT = Principal("agent", "nightly", frozenset({Scope.SUBMIT}))


class Calls(AgentChats):
    """Calls that the model does not answer."""

    def __init__(self) -> None:
        context: Any = SimpleNamespace(
            client=SimpleNamespace(), keys=Keys("t"), confirmed=SimpleNamespace()
        )
        super().__init__(context)
        self._open = OpenBytes(100)
        self.asked = 0

    async def _answer(self, *_: Any) -> dict[str, Any]:
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Body:
    """A request whose body has 60 bytes."""

    def __init__(self) -> None:
        self.read = 0
        headers = [(b"content-length", b"60")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}  # fmt: skip
        self.request = HttpRequest(scope, self.receive)

    async def receive(self) -> dict[str, Any]:
        """Return the body once."""
        self.read += 1
        if self.read > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"{}".ljust(60), "more_body": False}


async def send(_: Any) -> None:
    """Send nothing."""


async def test_a_call_of_a_project_without_room_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, bodies = Calls(), [Body(), Body()]
    open_call = asyncio.create_task(calls.complete(bodies[0].request, AGENT, "t", send))
    while not calls.asked:
        await asyncio.sleep(0)
    monkeypatch.setattr(chat_completions, "PATIENCE_SECONDS", 0.01)
    refused = await calls.complete(bodies[1].request, AGENT, "t", send)
    open_call.cancel()
    await asyncio.wait({open_call})

    assert refused is not None
    assert (refused.status, bodies[1].read, calls.asked) == (429, 0, 1)
    assert "retry-after" in {name.lower() for name in refused.headers}
    assert not calls._open._open


async def test_a_question_of_a_rollout_without_room_waits_in_the_worker() -> None:
    begun: list[str] = []

    class Worker:
        async def ask(self, rollout: str, method: str, body: Any) -> Any:
            begun.append(rollout)
            await asyncio.Event().wait()

    async def body(_: int) -> bytes:
        return json.dumps({}).encode()

    door = RolloutQuestions(Worker())
    asked: Any = [
        SimpleNamespace(
            parameters={"rollout": rollout, "method": "chat"},
            headers={b"content-length": str(MAX_QUESTION_BYTES // 2 + 1).encode()},
            body=body,
        )
        for rollout in ("r1", "r1", "r2")
    ]
    tasks = [asyncio.create_task(door.ask(each)) for each in asked]
    for _ in range(20):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert begun == ["r1", "r2"]
