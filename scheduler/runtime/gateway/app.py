"""The ASGI application: finds the handler, turns errors into problems, passes the rest on."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import redis

from contract.requests import ROUTE
from domain.errors import TangramError, Unavailable
from domain.principals import Principal
from domain.principals import Scope as TokenScope
from facades import openai
from facades.openai import OpenAi
from scheduler.runtime.gateway.actions import Actions
from scheduler.runtime.gateway.context import Context
from scheduler.runtime.gateway.event_feeds import Feeds
from scheduler.runtime.gateway.health import Health
from scheduler.runtime.gateway.http import (
    Application,
    ClientGone,
    HttpError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    Sending,
    last_words,
    problem_of,
)
from scheduler.runtime.gateway.idempotency import Replays
from scheduler.runtime.gateway.leases import Leases
from scheduler.runtime.gateway.stream_endpoint import Streams
from scheduler.runtime.gateway.task_control import Steering
from scheduler.runtime.gateway.trajectories import Trajectories

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
Handler = Callable[..., Awaitable[Response | None]]


_STREAM = re.compile(PREFIX + r"/actions/([^/]+)/stream/?")

#: Submissions check their keys where they are appended.
_OWN_KEYS = frozenset({PREFIX + "/actions", PREFIX + "/actions/batch"})


def _may_repeat(request: Request) -> bool:
    """Say whether a key on this request is for `Replays`."""
    return (
        request.method == "POST"
        and request.path.startswith(PREFIX + "/")
        and request.path not in _OWN_KEYS
    )


class Route(NamedTuple):
    """One hot endpoint; groups of ``pattern`` become arguments."""

    method: str
    template: str
    pattern: re.Pattern[str]
    scope: TokenScope
    handler: Handler


def _compiled(template: str) -> re.Pattern[str]:
    """Return what matches ``template``: an id is one segment, a path the rest."""
    return re.compile(template.replace("{id}", "([^/]+)").replace("{path}", "(.+)") + "/?")


def _named(request: Request, route: str) -> Request:
    """Say which route answers, for whoever counts."""
    request.scope[ROUTE] = route
    return request


def _refusal(error: TangramError, request: Request) -> Response:
    """Return an error of ours as the clients of this address read it."""
    shaped = openai.refusal if openai.owns(request.path) else problem_of
    return shaped(error, request)


def _problem_with(error: Exception, request: Request) -> Response:
    """Return what is told of an error; one that is our fault is logged."""
    if isinstance(error, TangramError):
        return _refusal(error, request)
    if isinstance(error, redis.RedisError):
        return _refusal(Unavailable(f"redis does not answer: {error}"), request)
    log.error("request %s failed", request.id, exc_info=error)
    return _refusal(HttpError(500, "internal", "this is our fault"), request)


class Gateway:
    """The hot endpoints in front of another ASGI application."""

    def __init__(
        self, context: Context, behind: Application, needed_roles: tuple[str, ...] = ()
    ) -> None:
        self._context = context
        self._behind = behind
        self._feeds = Feeds(context)
        self._streams = Streams(context)
        self._door = OpenAi(context, self._streams)
        self._health = Health(context, needed_roles)
        self._actions = Actions(context)
        self._replays = Replays(context.client, context.keys)
        self._routes = self._table()

    def _table(self) -> list[Route]:
        leases, trajectories = Leases(self._context), Trajectories(self._context)
        read, submit, operate = TokenScope.READ, TokenScope.SUBMIT, TokenScope.OPERATE
        steering = Steering(self._context)
        rows: list[tuple[str, str, TokenScope, Handler]] = [
            ("GET", "/actions/{id}", read, self._actions.show),
            ("POST", "/actions/{id}/cancel", submit, self._actions.cancel),
            ("POST", "/leases/{id}/renew", submit, leases.renew),
            ("POST", "/leases/{id}/release", submit, leases.release),
            ("GET", "/completions", read, self._feeds.completions),
            ("GET", "/status", read, self._health.status),
            ("GET", "/queues", read, self._health.queues),
            ("GET", "/decisions", read, self._health.decisions),
            ("POST", "/tasks", submit, trajectories.open_task),
            ("POST", "/tasks/{id}/pause", operate, steering.pause),
            ("POST", "/tasks/{id}/resume", operate, steering.resume),
            ("POST", "/tasks/{id}/priority", operate, steering.prioritise),
            ("POST", "/tasks/{id}/cancel", submit, steering.cancel),
            ("POST", "/services/{id}/evict", operate, steering.evict),
            ("POST", "/trajectories", submit, trajectories.open),
            ("POST", "/trajectories/{id}/finish", submit, trajectories.finish),
            ("PUT", "/trajectories/{id}/files/{path}", submit, trajectories.put_file),
            ("GET", "/trajectories/{id}/files/{path}", read, trajectories.get_file),
        ]
        door = self._door
        return [
            *(Route(m, PREFIX + t, _compiled(PREFIX + t), s, h) for m, t, s, h in rows),
            Route("GET", "/v1/models", openai.MODELS, read, door.models),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._behind(scope, receive, send)
            return
        request = Request(scope, receive)
        if b"idempotency-key" not in request.headers or not _may_repeat(request):
            await self._serve(request, send)
            return
        sending = Sending(send)
        await self._settle(request, sending, self._once(request, sending))

    async def _once(self, request: Request, send: Send) -> None:
        if not self._context.started:
            await self._context.start()
        await self._replays.once(request, send, self._serve)

    async def _serve(self, request: Request, send: Send) -> None:
        sending = Sending(send)
        answering = self._answer(request, sending)
        if answering is None:
            await self._behind(request.scope, request.receive, send)
        else:
            await self._settle(request, sending, answering)

    async def _settle(
        self, request: Request, send: Sending, answering: Awaitable[Response | None]
    ) -> None:
        """Send what comes of ``answering``: a response, a problem, or nothing any more.

        An answer that has begun cannot become another one: it breaks off, without its end.
        """
        try:
            response = await answering
        except ClientGone:
            return
        except asyncio.CancelledError:
            # The server ends and gives up what takes longer than its patience. Whoever waits here
            # is told to come again: another process, or the next one, has the answer.
            if not send.begun:
                ending = _refusal(Unavailable("this web process is ending"), request)
                await last_words(ending.send(send, request.id))
            return
        except Exception as error:
            response = _problem_with(error, request)
        if response is not None and not send.begun:
            await response.send(send, request.id)

    def _answer(self, request: Request, send: Send) -> Awaitable[Response | None] | None:
        """Return the work of answering, or None when this request is not for us."""
        path, method = request.path, request.method
        if path == PREFIX + "/actions" and method == "POST":
            return self._guarded(_named(request, path), TokenScope.SUBMIT, self._actions.submit)
        if path == PREFIX + "/actions/batch" and method == "POST":
            return self._guarded(_named(request, path), TokenScope.SUBMIT, self._actions.batch)
        if path == "/livez" and method == "GET":
            _named(request, path)
            return self._health.live()
        if path == "/readyz" and method == "GET":
            return self._health.ready(_named(request, path))
        passing = self._passing(request, send)
        if passing is not None:
            return passing
        if path.startswith((PREFIX + "/", "/v1/", "/trajectories/")):
            for route in self._routes:
                match = route.pattern.fullmatch(path)
                if match is not None and route.method == method:
                    named = _named(request, route.template)
                    return self._guarded(named, route.scope, route.handler, *match.groups())
        return self._door.nowhere(request) if path.startswith("/v1/") else None

    def _passing(self, request: Request, send: Send) -> Awaitable[Response | None] | None:
        """Return the work of answering piece by piece, or None when this is no request for it."""
        path, method = request.path, request.method
        if path == PREFIX + "/events" and method == "GET":
            return self._stream(_named(request, path), send)
        if method == "GET" and (answer := _STREAM.fullmatch(path)):
            named = _named(request, PREFIX + "/actions/{id}/stream")
            return self._answer_stream(named, answer[1], send)
        if method == "POST" and (asked := openai.ASK.fullmatch(path)):
            named = _named(request, "/v1/{path}")
            return self._guarded(named, TokenScope.SUBMIT, self._door.ask, *asked.groups(), send)
        return None

    async def _guarded(
        self, request: Request, scope: TokenScope, handler: Handler, *args: Any
    ) -> Response | None:
        if not self._context.started:
            await self._context.start()
        principal: Principal = await self._context.identity.principal(request, scope)
        return await handler(request, principal, *args)

    async def _answer_stream(self, request: Request, action_id: str, send: Send) -> None:
        if not self._context.started:
            await self._context.start()
        principal = await self._context.identity.principal(request, TokenScope.READ)
        await self._streams.stream(request, principal, action_id, send)

    async def _stream(self, request: Request, send: Send) -> None:
        if not self._context.started:
            await self._context.start()
        principal = await self._context.identity.principal(request, TokenScope.READ)
        await self._feeds.events(request, principal, send)
