"""Chat completions in OpenAI's shape: the calls of a rollout's agent that is not ours, and errors as its SDK reads them.

    base URL   http://HOST/api/v1/trajectories/TRAJECTORY/v1
    api key    a token of the project with the scope `submit`, or the token of the trajectory (`scheduler.runtime.rollouts.chat_tokens`)

The rollout's handler answers: its worker is asked at its door (`scheduler.runtime.rollouts.worker_door`), and tokens are sampled there
under RUN's seat, and recorded. Nothing of a call enters Redis or the journal.

Rules
1. A call has a name, its ``Idempotency-Key`` or one that is made here, under which it is answered once. When worker or
   handler process end meanwhile, the call waits up to `PATIENCE_SECONDS` for the ones that continue, and is asked again under its
   name; then it is 503. A client that repeats says so (``x-stainless-retry-count``), and gets an answer that was lost on its way.
2. A client that disconnects ends its call.
3. A stream begins with the whole answer: nothing of a response is used before all of it is checked. It has two chunks.
4. The bodies of open calls of one project have at most `MOST_BYTES` in one process: others wait, unread, up to `PATIENCE_SECONDS`.
5. Errors have OpenAI's shape. What no repetition can change has ``x-should-retry: false``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any, Final

import msgspec

from contract.requests import MAX_BODY_BYTES
from contract.rollout_status import RolloutStatus
from domain.errors import (
    CapacityError,
    Conflict,
    InvalidRequest,
    NotFound,
    TangramError,
    Unavailable,
)
from domain.principals import Principal, Scope
from scheduler.core.state.rollouts import owner_of
from scheduler.runtime.fleet_router.forwarded_request import ENGINE_PRIORITY
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    encode_json,
    problem_of,
    until_gone,
)
from scheduler.runtime.open_bytes import OpenBytes
from scheduler.runtime.redis.facade_records import FacadeRecords
from scheduler.runtime.rollouts.chat_tokens import SECRET_OF, ChatTokens

log = logging.getLogger(__name__)

#: Longest wait for the worker or the handler process that continues a rollout.
PATIENCE_SECONDS: Final = 300.0
#: Of the open calls of one project in this process.
MOST_BYTES: Final = 256 * 1024 * 1024
FIRST_PAUSE_SECONDS: Final = 0.05
MOST_PAUSE_SECONDS: Final = 1.0
#: Longest silence of a model.
IDLE_SECONDS: Final = 3600.0
_MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
NO_RETRY: Final = {"x-should-retry": "false"}
#: Codes that engines answer with 400.
_BAD_REQUESTS: Final = frozenset({"context_length_exceeded", ENGINE_PRIORITY})
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class AgentChats:
    """Handlers of ``/trajectories/{id}/v1``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._records = FacadeRecords(context.client, context.keys, SECRET_OF, context.confirmed)
        self._open = OpenBytes(MOST_BYTES)

    async def principal(self, token: str, trajectory: str) -> Principal:
        """Return the caller with the token of a trajectory. Raises HttpError 401, Unavailable."""
        holder = ChatTokens(await self._records.secret()).holder(token)
        if holder is None or holder.trajectory != trajectory:
            raise HttpError(401, "unauthorized", "this is not the token of this trajectory")
        return Principal(f"agent of {trajectory}", holder.project, frozenset({Scope.SUBMIT}))

    async def models(
        self, request: HttpRequest, principal: Principal, trajectory: str
    ) -> HttpResponse:
        """GET /trajectories/{id}/v1/models: the rollout's model, by the name of its pool."""
        try:
            found = await self._rollout(principal, trajectory)
        except TangramError as error:
            return openai_refusal(error, request)
        model = {"id": found.llm, "object": "model", "created": 0, "owned_by": "tangram"}
        return HttpResponse(200, {"object": "list", "data": [model]})

    async def complete(
        self, request: HttpRequest, principal: Principal, trajectory: str, send: Send
    ) -> HttpResponse | None:
        """POST /trajectories/{id}/v1/chat/completions."""
        try:
            async with AsyncExitStack() as open_call:
                await self._take_room(open_call, request, principal)
                question = {
                    "body": _read(await request.body()),
                    "request": request.header(b"idempotency-key") or secrets.token_hex(12),
                    "repeated": _is_repeated(request),
                }
                answer = await until_gone(request, self._answer(principal, trajectory, question))
        except ClientGone:
            raise
        except TangramError as error:
            return openai_refusal(error, request)
        if "chunks" not in answer:
            return HttpResponse(200, answer["completion"])
        await _send_events(send, request, answer["chunks"])
        return None

    async def _take_room(
        self, open_call: AsyncExitStack, request: HttpRequest, principal: Principal
    ) -> None:
        """Take room for the body while a call is open. Raises CapacityError."""
        declared = request.header(b"content-length")
        size = min(int(declared), MAX_BODY_BYTES) if declared.isdigit() else MAX_BODY_BYTES
        owner = principal.project or ""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await open_call.enter_async_context(self._open.room(owner, size))
        except TimeoutError:
            raise CapacityError(
                f"calls of agents of project {owner!r} with {MOST_BYTES} bytes are open: ask again later"
            ) from None

    async def _answer(
        self, principal: Principal, trajectory: str, question: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the answer of the rollout's handler, whichever worker has it meanwhile."""
        until, pause = monotonic() + PATIENCE_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                found = await self._rollout(principal, trajectory)
                return await self._ask(found, question)
            except CapacityError as error:
                if monotonic() >= until:
                    raise Unavailable(
                        f"the model of {trajectory} does not answer: {error}"
                    ) from None
                log.info("a call of %s waits: %s", trajectory, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    async def _rollout(self, principal: Principal, trajectory: str) -> RolloutStatus:
        """Return the live rollout of a trajectory. Raises NotFound, Conflict once it is finished."""
        owner = owner_of(trajectory)
        if owner is None:
            raise NotFound(f"trajectory {trajectory[:64]!r} belongs to no rollout: it has no model")
        found = await self._context.queries.rollouts(rollout_id=owner)
        if found.rollouts and principal.sees(found.rollouts[0].project):
            return found.rollouts[0]
        end = self._context.rollout_ends.recent(owner)
        if end is not None and principal.sees(end.finish.project):
            raise Conflict(f"{owner} is finished: {end.finish.result.outcome}")
        raise NotFound(f"there is no rollout {owner!r}")

    async def _ask(self, rollout: RolloutStatus, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the worker of a rollout. Raises what its handler raises; Unavailable without a worker."""
        if not rollout.worker:
            raise Unavailable(f"{rollout.id} waits: {rollout.waiting or rollout.state.value}")
        try:
            async with self._context.rollout_door.on_node(
                rollout.project, rollout.worker, "POST", f"/rollouts/{rollout.id}/chat",
                body=encode_json(question), idle_seconds=IDLE_SECONDS,
            ) as answer:  # fmt: skip
                return _decode(await answer.body(_MOST_ANSWER_BYTES))
        except NotFound as error:
            if error.code != "not_here":
                raise
            raise Unavailable(f"{rollout.id} is about to be continued") from None


def _read(body: bytes) -> dict[str, Any]:
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        raise HttpError(400, "invalid_json", f"the body is no JSON object: {error}") from None


def _is_repeated(request: HttpRequest) -> bool:
    """Whether a client says that it asked this before."""
    return request.header(b"x-stainless-retry-count").strip("0 ") != ""


async def _send_events(
    send: Send, request: HttpRequest, chunks: Iterable[Mapping[str, Any]]
) -> None:
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-request-id", request.id.encode("latin-1")),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    events = [*map(encode_json, chunks), b"[DONE]"]
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    await send({"type": "http.response.body", "body": body})


def openai_refusal(error: TangramError, request: HttpRequest) -> HttpResponse:
    """Return an error of Tangram in OpenAI's shape."""
    problem = problem_of(error, request)
    code = error.code if isinstance(error, HttpError | InvalidRequest) else "unavailable"
    code = "model_not_found" if isinstance(error, NotFound) else code
    param = error.pointer.strip("/").replace("/", ".") if isinstance(error, InvalidRequest) else ""
    status = 400 if code in _BAD_REQUESTS else problem.status
    # Clients repeat a 409, which stays one.
    headers = problem.headers | (NO_RETRY if status in (409, 504) else {})
    return openai_error(status, code, str(error), param=param, headers=headers)


def openai_error(
    status: int, code: str, message: str, *, param: str = "", headers: dict[str, str] | None = None
) -> HttpResponse:
    """Return an error in OpenAI's shape."""
    return HttpResponse(
        status, {"error": openai_problem(status, code, message, param)}, headers=headers
    )


def openai_problem(status: int, code: str, message: str, param: str = "") -> dict[str, Any]:
    """Return the member ``error`` of an answer or an event."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": param or None, "code": code}
