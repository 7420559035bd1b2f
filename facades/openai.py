"""OpenAI-compatible facade: a trainer changes its base URL, and each request is an action.

    base URL   http://HOST/v1   or, to name the trajectory,   http://HOST/trajectories/ID/v1
    api key    a token of Tangram

A translation onto calls to GPU services, and onto generations of fleets. The member ``model`` of the body names the service or the
fleet; the path and the rest of the body are forwarded unchanged, for fleets as `scheduler.runtime.fleet_router.forwarded_request` says. Task and trajectory of the action come from
the member ``tangram`` of the body (any members of an action: task, trajectory, priority,
replay_safe …; not forwarded), else from the headers ``X-Tangram-Task`` and
``X-Tangram-Trajectory``, else from the path.

Rules
1. The response is the service's own, with its status. ``X-Tangram-Action`` names the action.
2. ``/v1/responses`` is a chat completion of the service (`facades.openai_responses`), unless the service's ``paths``
   name it; nothing of it is stored. Embeddings are sent as base64 to a client that asks for it, whatever the service sends.
3. An error of Tangram has OpenAI's shape. After work has begun ``x-should-retry: false`` forbids the client to repeat
   the request, and no status is 504.
4. A client that disconnects cancels its action, and so does the end of the web process; a retry is
   another action.
5. With ``stream`` the service's events are forwarded while they arrive, each whole. A response that is an error is
   sent whole; one that breaks off or stalls after its beginning ends with an error event.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from time import time_ns
from typing import Any, Final

import msgspec

from contract.requests import ActionRequest
from contract.responses import ActionResponse
from contract.routes import Binary, Route
from domain.action import Outcome
from domain.errors import InvalidRequest, NotFound
from domain.manifest import read
from domain.principals import Principal, Scope
from domain.services import PREFIX
from facades.openai_generations import OpenAiGeneration, TranslatedAnswer, generation_of
from facades.openai_responses import (
    ResponseBuilder,
    ResponseEvents,
    ServiceEvents,
    chat_of,
    response_of,
)
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleet_router.router import GenerationEnd
from scheduler.runtime.gateway.chat_completions import (
    NO_RETRY,
    openai_error,
    openai_problem,
    openai_refusal,
)
from scheduler.runtime.gateway.facade import Facade, FacadePort
from scheduler.runtime.gateway.http import (
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    encode_json,
)
from scheduler.runtime.gateway.request_parsing import check_names, json_text
from scheduler.runtime.gateway.route_table import Handler

DEFAULT_TASK: Final = "openai"

_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_REQUEST: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "model": {"type": "string", "description": "Name of a GPU service, or of a fleet."},
        "stream": {"type": ["boolean", "null"]},
        "tangram": {
            "type": ["object", "null"],
            "description": "Members of the action, as task, trajectory or priority; for fleets batch and batch_size, too.",
        },
    },
    "required": ["model"],
    "additionalProperties": True,
}


def _post(path: str) -> Route:
    return Route(
        method="POST",
        path=f"/v1/{path}",
        operation="openai_" + path.replace("/", "_"),
        summary=f"Request to `{path}` of a GPU service or a fleet, as an action",
        scope=Scope.SUBMIT,
        body=_REQUEST,
        responses={200: Binary("*/*", "Status, headers and body are those of the service.")},
        errors=(404, 409, 413, 422, 502, 504),
        streams=True,
    )


ASK: Final = tuple(map(_post, ("chat/completions", "completions", "embeddings", "score", "rerank")))
RESPONSES: Final = _post("responses")
MODELS: Final = Route(
    method="GET",
    path="/v1/models",
    operation="openai_models",
    summary="The declared GPU services and fleets, as models",
    scope=Scope.READ,
    responses={200: _OBJECT},
)
MODEL: Final = replace(
    MODELS,
    path="/v1/models/{model}",
    operation="openai_model",
    summary="One declared GPU service or fleet, as a model",
    errors=(404,),
)

_decode = msgspec.json.Decoder(dict[str, Any]).decode
#: Outcome → status. 503 may be repeated: the service has not seen the request.
_STATUS: Final = {
    Outcome.EXPIRED: 503,
    Outcome.INFRA_FAILED: 503,
    Outcome.CANCELLED: 409,
    Outcome.TIMEOUT: 502,
    Outcome.UNKNOWN: 502,
    Outcome.OOM_KILLED: 502,
}
_EVENTS: Final = b"text/event-stream"
_EVENT_END: Final = re.compile(rb"\r?\n\r?\n")
#: A longer event is forwarded in parts.
_MAX_EVENT_BYTES: Final = 4 * 1024 * 1024


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the facade's routes."""
    endpoints = OpenAiEndpoints(port)
    asks = {route.operation: endpoints.ask for route in ASK}
    return {
        **asks,
        RESPONSES.operation: endpoints.respond,
        MODELS.operation: endpoints.models,
        MODEL.operation: endpoints.model,
    }


class OpenAiEndpoints:
    """Handlers of ``/v1``."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port

    async def models(
        self, request: HttpRequest, principal: Principal, trajectory: str | None
    ) -> HttpResponse:
        """GET /v1/models: the services and fleets that are declared."""
        found = [_model(name) for name in self._models()]
        return HttpResponse(200, {"object": "list", "data": found})

    async def model(
        self, request: HttpRequest, principal: Principal, trajectory: str | None, name: str
    ) -> HttpResponse:
        """GET /v1/models/{model}: one service or fleet that is declared."""
        if await self._port.fleet(name) is None:
            self._check_model(name)
        return HttpResponse(200, _model(name))

    async def ask(
        self, request: HttpRequest, principal: Principal, trajectory: str | None, send: Send
    ) -> HttpResponse | None:
        """POST /v1/…: submit a call and return the service's response; None: it was streamed."""
        body = await request.body()
        path = request.path[request.path.rindex("/v1/") :]
        asked = _read(body)
        fleet = await self._port.fleet(asked.get("model"))
        if fleet is not None:
            generation = generation_of(fleet, asked, body, path, _named(request, trajectory))
            events = _EventForwarder(send, ServiceEvents())
            end = await self._generate(request, principal, generation, events)
            return await _ended(end, events)
        action = await self._port.admit(
            principal, lambda: self._payload(request, _read(body), body, path, trajectory)
        )
        sending = _EventForwarder(send, ServiceEvents())
        view = await self._port.complete(request, principal, action, sending)
        if view is None:
            return None
        if sending.begun:
            await sending.fail(view.outcome, view.detail)
            return None
        answer = _response(view)
        if path == "/v1/embeddings" and answer.status == 200:
            answer.content = _embeddings(answer.content, _read(body))
        return answer

    async def respond(
        self, request: HttpRequest, principal: Principal, trajectory: str | None, send: Send
    ) -> HttpResponse | None:
        """POST /v1/responses: as `ask`, by a chat completion."""
        body = await request.body()
        asked = _read(body)
        fleet = await self._port.fleet(asked.get("model"))
        if fleet is not None:
            return await self._respond_by_fleet(request, principal, trajectory, send, asked, fleet)
        service = self._port.services().get(str(asked.get("model")))
        if service is not None and RESPONSES.path in service.paths:
            return await self.ask(request.again(body), principal, trajectory, send)

        def payload() -> ActionRequest:
            self._check_model(asked.get("model"))
            chat = chat_of(asked)
            return self._payload(request, chat, None, "/v1/chat/completions", trajectory)

        action = await self._port.admit(principal, payload)
        created = time_ns() // 1_000_000_000
        events = ResponseEvents(ResponseBuilder(asked, action.id, created))
        sending = _EventForwarder(send, events, translates=True)
        view = await self._port.complete(request, principal, action, sending)
        if view is None:
            return None
        if sending.begun:
            await sending.fail(view.outcome, view.detail)
            return None
        return _as_response(asked, action.id, created, _response(view))

    async def _respond_by_fleet(
        self,
        request: HttpRequest,
        principal: Principal,
        trajectory: str | None,
        send: Send,
        asked: dict[str, Any],
        fleet: FleetCapacity,
    ) -> HttpResponse | None:
        """Answer by a chat completion of a fleet."""
        chat = chat_of(asked)
        path = "/v1/chat/completions"
        generation = generation_of(fleet, chat, None, path, _named(request, trajectory))
        name, created = f"resp_{request.id}", time_ns() // 1_000_000_000
        events = ResponseEvents(ResponseBuilder(asked, name, created))
        forwarder = _EventForwarder(send, events, translates=True)
        answer = TranslatedAnswer(forwarder)
        end = await self._generate(request, principal, generation, answer)
        if answer.streamed or end.outcome is not Outcome.COMPLETED:
            return await _ended(end, forwarder)
        kind = answer.headers.get(b"content-type", b"application/json")
        headers: dict[str, str] = {"X-Tangram-Action": end.action_id}
        whole = HttpResponse(answer.status, raw=answer.content, content_type=kind, headers=headers)
        return _as_response(asked, name, created, whole)

    async def _generate(
        self, request: HttpRequest, principal: Principal, found: OpenAiGeneration, send: Send
    ) -> GenerationEnd:
        return await self._port.generate(
            request, principal, found.payload, found.generation, found.asked, send
        )

    def _models(self) -> list[str]:
        return sorted({*self._port.services(), *self._port.fleets()})

    def _check_model(self, name: Any) -> None:
        if not isinstance(name, str):
            raise InvalidRequest("name the service", pointer="/model")
        if name not in self._port.services():
            known = ", ".join(self._models()) or "none yet"
            raise NotFound(f"there is no model {name!r}; there are: {known}")

    def _payload(
        self,
        request: HttpRequest,
        asked: dict[str, Any],
        body: bytes | None,
        path: str,
        trajectory: str | None,
    ) -> ActionRequest:
        """Return the call; ``body`` is what the client sent, None where ``asked`` is a translation."""
        model, own = asked.get("model"), asked.pop("tangram", None)
        self._check_model(model)
        if not isinstance(asked.get("stream"), (bool, type(None))):
            raise InvalidRequest("give true or false", pointer="/stream")
        if not isinstance(own, (dict, type(None))):
            raise InvalidRequest("give members of an action", pointer="/tangram")
        unchanged = body is not None and own is None
        call = {
            "target": f"{PREFIX}{model}",
            "path": path,
            "headers": {"Content-Type": "application/json"},
            "body": body.decode() if body and unchanged else json_text(asked, ""),
            "stream": bool(asked.get("stream")),
        }
        named = _named(request, trajectory)
        return read(ActionRequest, {**named, **(own or {}), "kind": "call", "call": call})


class _EventForwarder:
    """Sends a streamed response on, in whole events, so that an error can follow one that breaks off."""

    def __init__(self, send: Send, events: ServiceEvents, *, translates: bool = False) -> None:
        self._send = send
        self._events = events
        self._translates = translates
        self._framed = False
        self._rest = b""
        self.begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            headers = dict(message["headers"])
            self._framed = headers.get(b"content-type", b"").startswith(_EVENTS)
            if self._translates:
                headers[b"content-type"] = _EVENTS
            await self._send({**message, "headers": list(headers.items())})
            if begin := self._events.begin():
                await self._pass_on(begin, more=True)
            return
        self._rest += message.get("body", b"")
        more = message.get("more_body", False)
        cut = self._cut() if more else len(self._rest)
        ready, self._rest = self._rest[:cut], self._rest[cut:]
        content = self._events.feed(ready) if ready else b""
        if not more:
            content += self._events.end()
        if content or not more:
            await self._pass_on(content, more=more)

    async def fail(self, outcome: Outcome | None, detail: str | None) -> None:
        """End a response that broke off. What has no events ends without the end of its body."""
        outcome = outcome or Outcome.UNKNOWN
        if outcome is Outcome.COMPLETED:  # the stream broke off on its way, not the answer
            outcome = Outcome.UNKNOWN
        if self._framed or self._translates:
            error = openai_problem(_STATUS.get(outcome, 502), str(outcome), detail or str(outcome))
            await self._pass_on(self._events.fail(error), more=False)

    def _cut(self) -> int:
        """Return the end of the last whole event; a response of no events is translated as a whole."""
        size = len(self._rest)
        if not self._framed:
            return 0 if self._translates and size <= _MAX_EVENT_BYTES else size
        ends = [found.end() for found in _EVENT_END.finditer(self._rest)]
        return ends[-1] if ends else size if size > _MAX_EVENT_BYTES else 0

    async def _pass_on(self, content: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": more})


def _read(body: bytes) -> dict[str, Any]:
    try:
        asked: dict[str, Any] = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "malformed_json", f"the body is no JSON object: {error}") from None
    check_names(body)
    return asked


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tangram"}


def _named(request: HttpRequest, trajectory: str | None) -> dict[str, Any]:
    """Return task and trajectory as headers and path name them."""
    return {
        "task": request.header(b"x-tangram-task") or DEFAULT_TASK,
        "trajectory": request.header(b"x-tangram-trajectory") or trajectory,
    }


async def _ended(end: GenerationEnd, sent: _EventForwarder) -> HttpResponse | None:
    """Return the response of a generation without an answer; None: the client has got one, or its beginning."""
    if end.outcome is Outcome.COMPLETED:
        return None
    if sent.begun:
        await sent.fail(end.outcome, end.detail)
        return None
    return _failure(end.outcome, end.detail, end.action_id)


def _as_response(
    asked: Mapping[str, Any], name: str, created: int, answer: HttpResponse
) -> HttpResponse:
    """Return the answer to a chat completion as a response; an error stays as it is."""
    if answer.status != 200:
        return answer
    try:
        found = response_of(dict(asked), name, created, answer.content)
    except ValueError as error:
        text = f"service {asked['model']} answered with no chat completion: {error}"
        return openai_error(502, "malformed", text, headers={**answer.headers, **NO_RETRY})
    return HttpResponse(200, found, headers=answer.headers)


def _failure(outcome: Outcome, detail: str | None, action_id: str) -> HttpResponse:
    """Return the error for an action without an answer."""
    status = _STATUS.get(outcome, 502)
    named = {"X-Tangram-Action": action_id} | ({} if status == 503 else NO_RETRY)
    return openai_error(status, str(outcome), detail or str(outcome), headers=named)


def _response(view: ActionResponse) -> HttpResponse:
    named = {"X-Tangram-Action": view.id}
    result = view.result if isinstance(view.result, dict) else {}
    if view.outcome is not Outcome.COMPLETED or "status" not in result:
        return _failure(view.outcome or Outcome.UNKNOWN, view.detail, view.id)
    if result["truncated"]:
        text = "the response is longer than the limit"
        return openai_error(502, "truncated", text, headers=named | NO_RETRY)
    text = result["body"]
    raw = base64.b64decode(text) if result["encoding"] == "base64" else text.encode()
    kind = result["headers"].get("content-type", "application/json")
    return HttpResponse(
        result["status"], raw=raw, content_type=kind.encode("latin-1"), headers=named
    )


def _embeddings(content: bytes, asked: Mapping[str, Any]) -> bytes:
    """Return embeddings in OpenAI's shape; vectors as base64 of little-endian float32 when it was asked for."""
    try:
        found = _decode(content)
        for item in found["data"]:
            item.setdefault("object", "embedding")
            vector = item["embedding"]
            if isinstance(vector, list) and asked.get("encoding_format") == "base64":
                raw = struct.pack(f"<{len(vector)}f", *vector)
                item["embedding"] = base64.b64encode(raw).decode()
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, struct.error):
        return content  # another shape, which is the service's own
    return encode_json({"object": "list", "model": asked["model"], **found})


FACADE: Final = Facade("/v1", (*ASK, RESPONSES, MODELS, MODEL), handlers, openai_refusal, _ERROR)
