"""Calls that the relay in an environment takes (`rollout.handlers.model_relay`), answered from outside.

Lifetimes: one `RelayedCalls` for each RUN in a handler process. The relay outlives it: its successor gets the calls that have no answer.

Rules
1. What runs in the environment may send anything: what no relay sends ends the connection, and the next one begins.
2. Every call is answered, with a 500 where its answer fails in an unexpected way: its agent would wait until RUN's time-out.
3. At most `CALLS_AT_ONCE` calls of a rollout, and `MAX_FRAME_BYTES` of calls, are open here: no further one is read, and the relay
   keeps them. Handler processes are shared by the rollouts of all projects.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from domain.errors import CapacityError, InvalidRequest, TangramError
from rollout.job import Answering, CallRefused, Job
from rollout.ports import Channel

log = logging.getLogger(__name__)

#: Ports of the relay in the environment, where they are not taken.
PORT: Final = 3131
CONTROL_PORT: Final = 3132
RELAY: Final = "/tmp/tangram-model-relay.py"
#: Written by the relay once it serves.
MARK: Final = f"{RELAY}.json"
#: Between two attempts to reach the relay.
CONNECT_SECONDS: Final = 0.2
CALLS_AT_ONCE: Final = 64
MAX_FRAME_BYTES: Final = 32 * 1024 * 1024
_LENGTH: Final = struct.Struct(">I")


class RelayedCalls:
    """The calls of one rollout's relay."""

    def __init__(self, job: Job, answer: Answering) -> None:
        self._job = job
        self._answer = answer
        #: Call that is open → its bytes.
        self._open: dict[asyncio.Task[None], int] = {}

    async def run(self) -> None:
        """Answer calls until cancelled."""
        while True:
            try:
                channel = await self._job.connect(await self._control_port())
            except CallRefused:  # it has not begun to listen
                await asyncio.sleep(CONNECT_SECONDS)
                continue
            try:
                await self.take(channel)
            except (CallRefused, OSError, ValueError, RecursionError):
                await asyncio.sleep(CONNECT_SECONDS)
            finally:
                for call in self._open:
                    call.cancel()
                with suppress(CallRefused, OSError):
                    await channel.close()

    async def has_served(self) -> bool:
        """Whether the relay has served and started its command."""
        return bool(await self._mark())

    async def take(self, channel: Channel) -> None:
        """Take the calls of a connection until its end. Raises ValueError, RecursionError for what no relay sends."""
        unread = bytearray()
        while data := await channel.receive():
            unread += data
            while len(unread) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(unread)[0]
                if end > MAX_FRAME_BYTES:
                    raise ValueError("no relay sends so much")
                if len(unread) < end:
                    break
                await self._room(end)
                call = json.loads(unread[_LENGTH.size : end])
                del unread[:end]
                if not isinstance(call, dict) or not isinstance(call.get("id"), int):
                    raise ValueError("no relay sends this")
                task = asyncio.ensure_future(_answer_call(channel, self._answer, call))
                self._open[task] = end
                task.add_done_callback(self._open.pop)

    async def _room(self, size: int) -> None:
        """Wait until a call of so many bytes may be open."""
        while self._open and (
            len(self._open) >= CALLS_AT_ONCE or sum(self._open.values()) + size > MAX_FRAME_BYTES
        ):
            await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)

    async def _control_port(self) -> int:
        port = (await self._mark()).get("control_port")
        return port if isinstance(port, int) else CONTROL_PORT

    async def _mark(self) -> dict[str, Any]:
        """Return what the relay has written; empty without it, as of one of an earlier version."""
        try:
            found = json.loads(await self._job.get(MARK))
        except (CallRefused, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


async def _answer_call(channel: Channel, answer: Answering, call: Mapping[str, Any]) -> None:
    status, kind, body = await answer_of(answer, call)
    sent = json.dumps({"id": call["id"], "status": status, "type": kind, "body": body}).encode()
    with suppress(CallRefused, OSError):  # the relay asks again on its next connection
        await channel.send(_LENGTH.pack(len(sent)) + sent)


async def answer_of(answer: Answering, call: Mapping[str, Any]) -> tuple[int, str, str]:
    """Return status, media type and body of the answer to a request of OpenAI's API."""
    path = str(call.get("path", ""))
    if path.endswith("/v1/models"):
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "tangram"}
        return _json(200, {"object": "list", "data": [model]})
    if not path.endswith("/v1/chat/completions"):
        return _json(404, _error(f"{path} is not served: chat completions are", "unknown_url"))
    if not isinstance(call.get("body"), dict):
        return _json(400, _error("the body is a JSON object", "invalid"))
    asked = {
        "body": call["body"],
        "request": str(call.get("name", "")),
        "repeated": call.get("repeated"),
    }
    try:
        found = await answer("chat", asked)
    except InvalidRequest as error:
        param = error.pointer.strip("/").replace("/", ".")
        return _json(400, _error(str(error), error.code, param))
    except CapacityError as error:
        return _json(503, _error(str(error), "unavailable"))
    except (TangramError, CallRefused) as error:
        return _json(500, _error(str(error), "internal"))
    except Exception as error:  # the agent waits for its answer, whatever failed
        log.exception("a call of an agent failed")
        return _json(500, _error(f"{type(error).__name__}: {error}", "internal"))
    if "completion" in found:
        return _json(200, found["completion"])
    events = [*map(json.dumps, found["chunks"]), "[DONE]"]
    return 200, "text/event-stream", "".join(f"data: {event}\n\n" for event in events)


def _json(status: int, body: Mapping[str, Any]) -> tuple[int, str, str]:
    return status, "application/json", json.dumps(body)


def _error(message: str, code: str, param: str = "") -> dict[str, Any]:
    kind = "server_error" if code in ("unavailable", "internal") else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}
