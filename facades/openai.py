"""The OpenAI-compatible door: a trainer changes its base URL, and each request is an action.

    base URL   http://HOST/v1   or, to name the trajectory,   http://HOST/trajectories/ID/v1
    api key    a token of Tangram

A thin translation onto calls to GPU services. The member ``model`` of the body names the service; the
path and the rest of the body reach it as they are. Who asks is told by the member ``tangram`` of the
body (any members of an action: task, trajectory, priority, replay_safe …, left out of what is
forwarded), by the headers ``X-Tangram-Task`` and ``X-Tangram-Trajectory``, or by the path; the body
wins, then the header.

Rules
1. The answer is the service's own, with its status. ``X-Tangram-Action`` names the action.
2. What is not the service's answer is an error in OpenAI's shape. 503 and 504 may be asked again; after
   an ``unknown`` end ``x-should-retry`` says not to: the request may have been worked on.
3. A client that goes away cancels its action, and so does the end of this process: whoever waits is
   told to ask again, which is another action.
4. With ``stream`` the service's events are passed on as they come. An answer that is an error comes
   whole.
"""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any, Final

import msgspec

from contract.requests import ActionRequest
from contract.responses import ActionResponse
from domain.action import Action, Outcome
from domain.codec import encode
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.events import ActionCancelRequested
from domain.manifest import read
from domain.principals import Principal
from domain.services import PREFIX
from scheduler.runtime.gateway.actions import message_of
from scheduler.runtime.gateway.admission import written
from scheduler.runtime.gateway.context import Context
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpError,
    Request,
    Response,
    Send,
    problem_of,
)
from scheduler.runtime.gateway.stream_endpoint import Streams

#: The trajectory, if the path names one; and the path as the service knows it.
ASK: Final = re.compile(
    r"(?:/trajectories/([^/]+))?(/v1/(?:chat/completions|completions|embeddings|score|rerank))"
)
MODELS: Final = re.compile(r"(?:/trajectories/[^/]+)?/v1/models")
DEFAULT_TASK: Final = "openai"
#: Longest wait for one answer; clients have limits of their own.
PATIENCE_SECONDS: Final = 86_400.0

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_STATUS: Final = {
    Outcome.TIMEOUT: 504,
    Outcome.EXPIRED: 503,
    Outcome.CANCELLED: 409,
    Outcome.INFRA_FAILED: 503,
    Outcome.UNKNOWN: 502,
}


def owns(path: str) -> bool:
    """Say whether the clients of this door ask at ``path``, and read its errors."""
    return path.startswith("/v1/") or bool(ASK.fullmatch(path) or MODELS.fullmatch(path))


class OpenAi:
    """Handlers of ``/v1``."""

    def __init__(self, context: Context, streams: Streams) -> None:
        self._context = context
        self._streams = streams

    async def models(self, request: Request, principal: Principal) -> Response:
        """GET /v1/models: the services that are declared."""
        names = sorted(self._context.admission.view.services)
        found = [{"id": n, "object": "model", "created": 0, "owned_by": "tangram"} for n in names]
        return Response(200, {"object": "list", "data": found})

    async def nowhere(self, request: Request) -> Response:
        """Answer a request to an address that no service has."""
        known = (
            "GET /v1/models, and POST to chat/completions, completions, embeddings, score, rerank"
        )
        detail = f"{request.method} {request.path} is not served here; there are {known}"
        raise HttpError(404, "unknown_url", detail)

    async def ask(
        self, request: Request, principal: Principal, trajectory: str | None, path: str, send: Send
    ) -> Response | None:
        """POST /v1/…: submit a call, and answer as the service does; None: it was passed on."""
        body = await request.body()
        action = await self._context.admitted(
            lambda: self._action(request, principal, body, path, trajectory)
        )
        return await self._answer(request, principal, action, send)

    def _action(
        self, request: Request, principal: Principal, body: bytes, path: str, trajectory: str | None
    ) -> Action:
        asked = _read(body)
        model, own = asked.get("model"), asked.pop("tangram", None)
        if not isinstance(model, str):
            raise InvalidRequest("name the service", pointer="/model")
        if model not in self._context.admission.view.services:
            known = ", ".join(sorted(self._context.admission.view.services)) or "none yet"
            raise NotFound(f"there is no model {model!r}; there are: {known}")
        if not isinstance(asked.get("stream"), (bool, type(None))):
            raise InvalidRequest("give true or false", pointer="/stream")
        if not isinstance(own, (dict, type(None))):
            raise InvalidRequest("give members of an action", pointer="/tangram")
        forwarded = body.decode() if own is None else written(asked, "")
        call = {
            "target": PREFIX + model,
            "path": path,
            "headers": {"Content-Type": "application/json"},
            "body": forwarded,
            "stream": bool(asked.get("stream")),
        }
        named = {
            "task": request.header(b"x-tangram-task") or DEFAULT_TASK,
            "trajectory": request.header(b"x-tangram-trajectory") or trajectory,
        }
        payload = read(ActionRequest, {**named, **(own or {}), "kind": "call", "call": call})
        return self._context.admission.action(payload, principal)

    async def _answer(
        self, request: Request, principal: Principal, action: Action, send: Send
    ) -> Response | None:
        if action.call is not None and action.call.stream:
            # Before it costs anything: once it is submitted it will run.
            with self._streams.place():
                return await self._answered(request, principal, action, send)
        return await self._answered(request, principal, action, send)

    async def _answered(
        self, request: Request, principal: Principal, action: Action, send: Send
    ) -> Response | None:
        context = self._context
        future = context.tail.finish_of(action.id)
        try:
            await context.submitter.append([message_of(action)])
            if await self._passed_on(request, principal, action, send):
                return None
            view = await context.settled(request, principal, action.id, future, PATIENCE_SECONDS)
        except (ClientGone, asyncio.CancelledError) as error:
            left = isinstance(error, ClientGone)
            reason = "its client went away" if left else "the web process of its client ended"
            gone = ActionCancelRequested(action_id=action.id, project=action.project, reason=reason)
            await context.submitter.append([encode(gone)])
            raise
        finally:
            context.tail.discard(action.id, future)
        if view is None:
            raise HttpError(504, "timeout", f"{action.id} is not done yet")
        return _response(view)

    async def _passed_on(
        self, request: Request, principal: Principal, action: Action, send: Send
    ) -> bool:
        """Pass the answer on while it comes; False when that is not wanted, or when none comes."""
        if action.call is None or not action.call.stream:
            return False
        try:
            await self._streams.pass_on(request, principal, action.id, send)
        except Conflict:
            return False
        return True


def _read(body: bytes) -> dict[str, Any]:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "malformed_json", f"the body is no JSON object: {error}") from None


def _response(view: ActionResponse) -> Response:
    named = {"X-Tangram-Action": view.id}
    result = view.result if isinstance(view.result, dict) else {}
    if view.outcome is not Outcome.COMPLETED or "status" not in result:
        outcome = view.outcome or Outcome.UNKNOWN
        status = _STATUS.get(outcome, 502)
        if outcome is Outcome.UNKNOWN:
            named["x-should-retry"] = "false"
        return _error(status, str(outcome), view.detail or str(outcome), headers=named)
    if result["truncated"]:
        return _error(502, "truncated", "the answer is longer than is kept", headers=named)
    text = result["body"]
    raw = base64.b64decode(text) if result["encoding"] == "base64" else text.encode()
    kind = result["headers"].get("content-type", "application/json")
    return Response(result["status"], raw=raw, content_type=kind.encode("latin-1"), headers=named)


def refusal(error: TangramError, request: Request) -> Response:
    """Return an error of ours as OpenAI's clients read it."""
    problem = problem_of(error, request)
    code = error.code if isinstance(error, (HttpError, InvalidRequest)) else "unavailable"
    code = "model_not_found" if isinstance(error, NotFound) else code
    param = error.pointer.strip("/").replace("/", ".") if isinstance(error, InvalidRequest) else ""
    return _error(problem.status, code, str(error), param=param, headers=problem.headers)


def _error(
    status: int, code: str, message: str, *, param: str = "", headers: dict[str, str] | None = None
) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"message": message, "type": kind, "param": param or None, "code": code}
    return Response(status, {"error": body}, headers=headers)
