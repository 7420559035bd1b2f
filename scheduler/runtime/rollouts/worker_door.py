"""Door of a rollout worker: web processes ask the handlers of its rollouts, without Redis and the scheduler loop.

Prompts and answers of models stay out of Redis, as files and output of environments do: the door is the one of a node worker
(`scheduler.runtime.node.door`), with routes of its own and an address in a hash of its own.

    POST /rollouts/{rollout}/{method}      the question as JSON → the answer as JSON

Rules
1. A worker that does not have the rollout answers ``not_here``: its place is looked up once more.
2. A web process that closes its connection drops its question; what the handler was about to store is stored.
3. A question has at most `MAX_QUESTION_BYTES`, and so have all open ones of one rollout: others wait, unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
import redis.asyncio

from domain.errors import InvalidRequest
from domain.redis_keys import Keys
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes
from scheduler.runtime.node.door.server import DoorOptions, NodeDoor
from scheduler.runtime.open_bytes import OpenBytes
from scheduler.runtime.redis.door_addresses import DoorAddresses

MAX_QUESTION_BYTES: Final = 32 * 1024 * 1024
_questions: Final = msgspec.json.Decoder(dict[str, Any])


@runtime_checkable
class Asked(Protocol):
    """A worker whose handlers answer questions (`rollout.worker.worker.RolloutWorker`)."""

    async def ask(self, rollout: str, method: str, body: Mapping[str, Any]) -> Any:
        """Return the answer of a rollout's handler. Raises NotFound ``not_here``, Conflict, Unavailable, InvalidRequest."""


class RolloutQuestions:
    """Handlers of the door."""

    def __init__(self, worker: Asked) -> None:
        self._worker = worker
        self._open = OpenBytes(MAX_QUESTION_BYTES)

    async def ask(self, request: DoorRequest) -> DoorResponse:
        """POST /rollouts/{rollout}/{method}."""
        named = request.parameters
        declared = request.headers.get(b"content-length", b"")
        size = int(declared) if declared.isdigit() else MAX_QUESTION_BYTES
        async with self._open.room(named["rollout"], size):
            try:
                question = _questions.decode(await request.body(MAX_QUESTION_BYTES))
            except msgspec.DecodeError as error:
                raise InvalidRequest(f"the question is no JSON object: {error}") from None
            answer = await self._worker.ask(named["rollout"], named["method"], question)
        return DoorResponse(200, msgspec.json.encode(answer), {"content-type": "application/json"})


def rollout_door(
    client: redis.asyncio.Redis, keys: Keys, name: str, options: DoorOptions, worker: Asked
) -> NodeDoor:
    """Return the door of a rollout worker, which is not open yet."""
    routes = DoorRoutes()
    routes.add("POST", "/rollouts/{rollout}/{method}", RolloutQuestions(worker).ask)
    return NodeDoor(DoorAddresses(client, keys, rollouts=True), name, options, routes)
