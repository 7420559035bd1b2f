"""Polar door: the rollout server of ProRL Agent's second version, for its trainers.

rollout URL   http://HOST/polar, or through ``tangram door polar``

    POST   /rollout/task/submit    a task → its id; its sessions run on
    GET    /rollout/task/{id}      a task with the sessions that have ended
    DELETE /rollout/task/{id}      cancel a task; ``register_if_missing=true``: also one that has not come yet
    GET    /health

A task is a group of rollouts, a session is one of them, and its traces are the segments of tokens (`facades.polar.results`). The
handler is the ``harness`` of the agent, else what the door names; so is the pool of the language model.

Rules
1. 409: the id is that of a task that runs, or that was cancelled before it came. 503: no node has the image of the runtime, so that
   the task is refused as a whole.
2. ``callback_url`` gets the result once, at a public address by HTTPS (`scheduler.runtime.gateway.callbacks`); a client polls for what did
   not arrive.
3. The answer to a DELETE has no sessions: it comes at once, whatever the number of tokens. The answer to a GET is streamed.
4. A reward is finite or null. A session that ended in an error has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from contract.routes import TEXT, Parameter, Route
from domain.errors import InvalidRequest, NotFound, TangramError, Unavailable
from domain.principals import Principal, Scope
from facades.door_settings import DoorSettings
from facades.node_images import image_of
from facades.polar.messages import DEFAULT_TASK, PolarTask, submission
from facades.polar.records import PolarRecords
from facades.polar.tasks import PolarTasks
from facades.polar.watches import PolarWatches, detached
from scheduler.runtime.gateway.authentication import bearer_token
from scheduler.runtime.gateway.facade import Facade, FacadePort
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpRequest,
    HttpResponse,
    Send,
    problem_of,
)
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.request_parsing import decode
from scheduler.runtime.gateway.route_table import Handler

#: Header of Polar's own token; ours is sent there.
CONTROL_TOKEN: Final = b"x-polar-control-token"
#: An instance has at most 1 MiB.
MOST_BODY_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024
_UNPROCESSABLE: Final = 422
_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_TASK: Final = "/polar/rollout/task/{id}"

SUBMIT: Final = Route(
    method="POST",
    path="/polar/rollout/task/submit",
    operation="polar_submit",
    summary="Submit a task",
    scope=Scope.SUBMIT,
    body=PolarTask,
    responses={200: _OBJECT},
    errors=(409, 413, 422, 503),
)
SHOW: Final = Route(
    method="GET",
    path=_TASK,
    operation="polar_task",
    summary="A task with the sessions that have ended",
    scope=Scope.READ,
    responses={200: _OBJECT},
    errors=(404,),
    streams=True,
)
CANCEL: Final = Route(
    method="DELETE",
    path=_TASK,
    operation="polar_cancel",
    summary="Cancel a task",
    scope=Scope.SUBMIT,
    parameters=(Parameter("register_if_missing", "Also one that has not come yet.", TEXT),),
    responses={200: _OBJECT},
    errors=(404,),
)
HEALTH: Final = Route(
    method="GET",
    path="/polar/health",
    operation="polar_health",
    summary="Whether the door is open",
    scope=None,
    responses={200: _OBJECT},
)
_decoder = msgspec.json.Decoder(PolarTask)


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the door's routes."""
    endpoints = PolarEndpoints(port)
    return {
        SUBMIT.operation: endpoints.submit,
        SHOW.operation: endpoints.show,
        CANCEL.operation: endpoints.cancel,
        HEALTH.operation: endpoints.health,
    }


class PolarEndpoints:
    """Handlers of ``/polar``."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port
        self._records = PolarRecords(port)
        self._tasks = PolarTasks(self._records)
        self._watches = PolarWatches(port, self._records, self._tasks)
        self._watches.start()

    async def health(self, request: HttpRequest, _: str | None) -> HttpResponse:
        """GET /health."""
        return HttpResponse(200, {"status": "ok"})

    async def submit(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """POST /rollout/task/submit."""
        task = decode(_decoder, await request.body(MOST_BODY_BYTES))
        members = submission(task, DoorSettings.of(request, DEFAULT_TASK))
        if task.callback_url is not None:
            self._port.callbacks.check(task.callback_url, "/callback_url")
        native = self._native(request, principal)
        await _check_image(native, members)
        await self._tasks.submit(native, task, members)
        await self._watches.watch(native, task.task_id, principal.name)
        return HttpResponse(200, {"task_id": task.task_id, "status": "running"})

    async def show(
        self, request: HttpRequest, principal: Principal, _: str | None, task_id: str, send: Send
    ) -> HttpResponse | None:
        """GET /rollout/task/{id}."""
        await request.body()
        native = self._native(request, principal)
        record = await self._records.get(await native.project(), task_id)
        if record is None or record.state == "tombstone":
            raise NotFound("Task not found")
        if principal.may(Scope.SUBMIT):
            await self._watches.watch(native, task_id, principal.name)
        return await _answered(request, self._tasks.pieces(native, task_id, record), send)

    async def cancel(
        self, request: HttpRequest, principal: Principal, _: str | None, task_id: str
    ) -> HttpResponse:
        """DELETE /rollout/task/{id}."""
        register = request.query().get("register_if_missing", "").lower() in ("1", "true", "yes")
        native = self._native(request, principal)
        found = await self._tasks.cancel(native, task_id, register=register)
        if found is None:
            raise NotFound("Task not found")
        return HttpResponse(200, found)

    def _native(self, request: HttpRequest, principal: Principal) -> NativeCalls:
        """Return the native calls of a request; a watch goes on with them."""
        return self._port.native(detached(request), principal)


async def _answered(
    request: HttpRequest, pieces: AsyncIterator[bytes], send: Send
) -> HttpResponse | None:
    """Return a short answer; send a long one piece by piece. Raises ClientGone when the client left before its end."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request.id.encode())]
    unsent, begun = bytearray(), False
    gone = asyncio.ensure_future(request.disconnected())
    try:
        async for piece in pieces:
            unsent += piece
            if len(unsent) < _PIECE_BYTES:
                continue
            if gone.done():
                raise ClientGone
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                begun = True
            await send({"type": "http.response.body", "body": bytes(unsent), "more_body": True})
            unsent.clear()
        if not begun:
            return HttpResponse(200, raw=bytes(unsent))
        await send({"type": "http.response.body", "body": bytes(unsent)})
        return None
    finally:
        gone.cancel()


async def _check_image(native: NativeCalls, members: dict[str, Any]) -> None:
    """Write the image's name as the nodes have it. Raises Unavailable when no node has it."""
    environment = members.get("environment") or {}
    if (image := environment.get("image")) is None:
        return
    found = await image_of(native, image)
    if found is None:
        raise Unavailable(f"no node has the image {image!r}: import it with `tangram image import`")
    environment["image"] = found


def token(request: HttpRequest) -> str:
    """Return the token of a request: that of Polar's header, else the bearer."""
    return request.header(CONTROL_TOKEN) or bearer_token(request)


def refusal(error: TangramError, request: HttpRequest) -> HttpResponse:
    """Return an error in the shape that FastAPI gives it."""
    problem = problem_of(error, request)
    detail: Any = str(error)
    if isinstance(error, InvalidRequest) and problem.status == _UNPROCESSABLE:
        place = ["body", *(error.pointer or "").strip("/").split("/")]
        detail = [{"loc": [each for each in place if each], "msg": str(error), "type": error.code}]
    return HttpResponse(problem.status, {"detail": detail}, headers=problem.headers)


FACADE: Final = Facade("/polar", (SUBMIT, SHOW, CANCEL, HEALTH), handlers, refusal, _OBJECT, token)
