"""EngineServer: vLLM's and SGLang's HTTP around a modelled engine, as an ASGI application. For tests and benchmarks without a GPU.

| page | vLLM | SGLang |
|---|---|---|
| ``/health``, ``/v1/models``, ``/metrics`` | yes | yes, ``/health_generate`` as well |
| what it is | ``/version`` | ``/get_model_info``, ``/get_server_info`` |
| drop caches | ``/reset_prefix_cache`` | ``/flush_cache`` |
| sleep | ``/sleep``, ``/wake_up``, ``/is_sleeping`` | ``/release_memory_occupation``, ``/resume_memory_occupation`` |

Rules
1. A client that closes its connection ends its generation.
2. Priorities as `Behaviour.priorities` says: ``lower`` or ``greater`` first; ``ignored``, which is what vLLM does without
   ``--scheduling-policy priority`` and SGLang without ``--enable-priority-scheduling``; ``refused``: 400 of earlier vLLM, 503 of SGLang with
   ``--abort-on-priority-when-disabled``.
3. A prompt that is too long gets 400 with the words of its engine; an engine that is asleep gets 503.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from managers.llm.fake.engine_model import PromptTooLong
from managers.llm.fake.paced_engine import EngineAsleep, PacedEngine
from managers.llm.fake.prefix_cache import BLOCK
from managers.llm.fake.wire import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    WireRequest,
    WrongRequest,
    piece,
    read_request,
    usage_piece,
    whole,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DIALECTS: Final = ("vllm", "sglang")
#: What a request without a priority gets where priorities count; the last place, as `--default-priority-value` sets it.
_SGLANG_DEFAULT: Final = 2**31 - 1


@dataclass
class Behaviour:
    """Settings and faults; they may be changed while it serves."""

    dialect: str = "vllm"
    model: str = "modelled"
    context: int = 65_536
    priorities: str = "lower"
    #: The next so many requests for tokens get this status instead of an answer.
    failing: int = 0
    failing_status: int = 500
    #: Connections of streams are closed after so many tokens; 0: never.
    cuts_after: int = 0
    #: ``/health`` waits for ever.
    hangs: bool = False
    #: Storage backend of SGLang's HiCache; empty: there is none.
    store: str = ""
    #: As SGLang's ``/get_model_info`` says.
    weight_version: str = "default"


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineServer:
    """One engine that speaks HTTP."""

    def __init__(self, engine: PacedEngine, behaviour: Behaviour | None = None) -> None:
        self.engine = engine
        self.behaviour = behaviour or Behaviour()
        #: Bodies of requests for tokens, in the order in which they came.
        self.received: list[dict[str, Any]] = []

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request, or the start and the end of the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        if scope["type"] != "http":
            return
        data = await _body(receive)
        try:
            if scope["path"] in self._paths():
                await self._tokens(scope["path"], _parsed(data), receive, send)
            else:
                await self._page(scope["path"], send)
        except _Refused as refused:
            error = {"message": str(refused), "type": "BadRequestError", "code": refused.status}
            await _respond(send, refused.status, {"object": "error", **error, "error": error})

    def _paths(self) -> tuple[str, ...]:
        shared = COMPLETIONS, CHAT
        return (*shared, GENERATE) if self.behaviour.dialect == "sglang" else shared

    async def _tokens(self, path: str, body: dict[str, Any], receive: Receive, send: Send) -> None:
        self.received.append(body)
        request = self._admitted(path, body)
        gone = asyncio.ensure_future(_disconnected(receive))
        answer = asyncio.ensure_future(
            self._stream(request, send) if request.streams else self._answer(request, send)
        )
        try:
            await asyncio.wait((gone, answer), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        except PromptTooLong as error:
            raise _Refused(
                400, f"This model's maximum context length is exceeded: {error}."
            ) from error
        except EngineAsleep as error:
            raise _Refused(503, str(error)) from error
        finally:
            for task in (gone, answer):
                task.cancel()
            await asyncio.gather(gone, answer, return_exceptions=True)

    def _admitted(self, path: str, body: dict[str, Any]) -> WireRequest:
        """Return the request. Raises _Refused."""
        now = self.behaviour
        if now.failing > 0:
            now.failing -= 1
            raise _Refused(now.failing_status, "the engine fails, as it was set to")
        try:
            request = read_request(path, body)
        except WrongRequest as error:
            raise _Refused(400, str(error)) from error
        if request.priority and now.priorities == "refused":
            if now.dialect == "sglang":
                raise _Refused(
                    503,
                    "Using priority is disabled for this server. Please send a new request"
                    " without a priority.",
                )
            raise _Refused(
                400, f"Got priority {request.priority} but Priority scheduling is not enabled."
            )
        length = len(request.prompt_ids)
        if length >= now.context:
            raise _Refused(
                400,
                f"This model's maximum context length is {now.context} tokens. However, your"
                f" prompt has {length} tokens.",
            )
        return request

    def _order(self, request: WireRequest) -> float:
        """Return the priority as the model orders: smaller first."""
        kind = self.behaviour.priorities
        if kind not in ("lower", "greater"):
            return 0.0
        default = _SGLANG_DEFAULT if self.behaviour.dialect == "sglang" else 0
        if request.priority is None:
            return float(default)
        return float(request.priority if kind == "lower" else -request.priority)

    async def _answer(self, request: WireRequest, send: Send) -> None:
        answer = await self.engine.answer(
            request.prompt_ids, request.tokens, priority=self._order(request), seed=request.seed
        )
        await _respond(send, 200, whole(request, answer, self.behaviour.model))

    async def _stream(self, request: WireRequest, send: Send) -> None:
        events = self._events(request)
        first = await anext(events)  # an error until now is an answer of its own
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_event(send, first)
        async for event in events:
            await _send_event(send, event)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _events(self, request: WireRequest) -> AsyncIterator[dict[str, Any]]:
        said, last = 0, None
        async for answer in self.engine.stream(
            request.prompt_ids, request.tokens, priority=self._order(request), seed=request.seed
        ):
            yield piece(request, answer, said, self.behaviour.model)
            said, last = answer.sampled, answer
            if 0 < self.behaviour.cuts_after <= said:
                raise ConnectionResetError("cut, as it was set to")
        if last is not None and (event := usage_piece(request, last, self.behaviour.model)):
            yield event

    async def _page(self, path: str, send: Send) -> None:
        if self.behaviour.hangs and path.startswith("/health"):
            await asyncio.Event().wait()
        action = self._actions().get(path)
        if action is not None:
            action()
            await _respond(send, 200, {})
            return
        page = self._pages().get(path)
        if page is None:
            await _respond(send, 404, {"detail": "Not Found"})
        else:
            await _respond(send, 200, page)

    def _actions(self) -> dict[str, Callable[[], None]]:
        engine = self.engine
        if self.behaviour.dialect == "vllm":
            return {
                "/reset_prefix_cache": engine.forget_caches,
                "/sleep": engine.sleep,
                "/wake_up": engine.wake,
            }
        return {
            "/flush_cache": engine.forget_caches,
            "/release_memory_occupation": engine.sleep,
            "/resume_memory_occupation": engine.wake,
        }

    def _pages(self) -> dict[str, Any]:
        now, model = self.behaviour, self.engine.model
        listed = {"id": now.model, "object": "model", "owned_by": now.dialect}
        shared = {"/health": {}, "/v1/models": {"object": "list", "data": [listed]}}
        if now.dialect == "vllm":
            listed["max_model_len"] = now.context  # type: ignore[assignment]
            return shared | {
                "/version": {"version": "0.11.0"},
                "/is_sleeping": {"is_sleeping": self.engine.asleep},
                "/metrics": _metrics("vllm", model.running, model.generations)
                + _cache_config(model.capacity),
            }
        return shared | {
            "/health_generate": {},
            "/get_model_info": {
                "model_path": now.model,
                "is_generation": True,
                "weight_version": now.weight_version,
            },
            "/get_server_info": {
                "context_length": now.context,
                "enable_priority_scheduling": now.priorities in ("lower", "greater"),
                "schedule_low_priority_values_first": now.priorities == "lower",
                "abort_on_priority_when_disabled": now.priorities == "refused",
                "enable_hierarchical_cache": bool(now.store),
                "hicache_storage_backend": now.store or None,
                "max_total_num_tokens": int(model.capacity),
            },
            "/metrics": _metrics("sglang", model.running, model.generations),
        }

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.engine.close()
        await send({"type": "lifespan.shutdown.complete"})


def _metrics(engine: str, running: int, generations: int) -> str:
    names = {
        "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    }[engine]
    return f"{names[0]} {running}\n{names[1]} {generations - running}\n"


def _cache_config(tokens: float) -> str:
    """Return the line of vLLM's metrics that says how much cache it has."""
    blocks = int(tokens) // BLOCK
    return f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="{blocks}"}} 1.0\n'


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except ValueError as error:
        raise _Refused(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise _Refused(400, "the body must be a JSON object")
    return body


async def _body(receive: Receive) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        data += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(data)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_event(send: Send, event: dict[str, Any]) -> None:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _respond(send: Send, status: int, body: Any) -> None:
    text = isinstance(body, str)
    data = body.encode() if text else json.dumps(body).encode()
    headers = [
        (b"content-type", b"text/plain" if text else b"application/json"),
        (b"content-length", str(len(data)).encode()),
    ]
    with suppress(ConnectionError):
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})
