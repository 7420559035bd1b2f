"""Environments for pages: what runs in one, read from its node on demand, behind the session of a browser.

The page of a trajectory asks every few seconds. A node that does not answer within `NODE_SECONDS` is a problem
503; a trajectory of a project that the user may not see is 404, as is one that the loop does not know any more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TypeVar

import msgspec

from contract.requests import ROUTE
from domain.errors import Conflict, NotFound, TangramError, Unavailable
from domain.ids import trajectory_key
from domain.ports.processes import EnvironmentFacts, ProgramFacts
from domain.ports.sessions import SessionFacts
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import (
    Application,
    HttpError,
    HttpRequest,
    HttpResponse,
    Receive,
    Send,
    problem_of,
)
from tangram_web.serving.console_output import SeesOf

NODE_SECONDS: Final = 4.0
_PATH: Final = re.compile(r"/live/environment/([^/]+)/(.+)")
#: The node has no environment of the trajectory, or serves none of what is asked.
_NOTHING: Final = frozenset({"no_environment", "not_here", "no_route"})

T = TypeVar("T")
_states = msgspec.json.Decoder(EnvironmentFacts)
_sessions = msgspec.json.Decoder(list[SessionFacts])
_programs = msgspec.json.Decoder(list[ProgramFacts])


class ShownEnvironment(msgspec.Struct):
    """What the page shows of an environment."""

    #: Empty: it has none.
    node: str
    #: ``running``, ``parked``, ``none``; ``unknown`` on a node of an earlier version.
    state: str
    disk_bytes: int | None
    sessions: list[SessionFacts]
    programs: list[ProgramFacts]


class ConsoleEnvironment:
    """Serves ``/live/environment/{project}/{trajectory}``, in front of another application."""

    def __init__(
        self,
        context: GatewayContext,
        sees_of: SeesOf,
        with_user: Callable[[Application], Application],
        behind: Application,
    ) -> None:
        self._context = context
        self._sees_of = sees_of
        self._serving = with_user(self._serve)
        self._behind = behind

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["method"] == "GET" and _PATH.fullmatch(scope["path"]):
            scope[ROUTE] = "/live/environment/{id}"
            await self._serving(scope, receive, send)
        else:
            await self._behind(scope, receive, send)

    async def _serve(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        request = HttpRequest(scope, receive)
        try:
            sees = await self._sees_of(scope.get("user"))
            shown = await self._find(request.path, sees)
            response = HttpResponse(200, shown, headers={"Cache-Control": "no-store"})
        except TangramError as error:
            response = problem_of(error, request)
        await response.send(send, request.id)

    async def _find(self, path: str, sees: Callable[[str], bool] | None) -> ShownEnvironment:
        """Return what a page shows. Raises HttpError, NotFound, Unavailable."""
        if sees is None:
            raise HttpError(401, "unauthorized", "sign in first")
        match = _PATH.fullmatch(path)
        assert match is not None
        project, name = match.groups()
        if not sees(project):
            raise NotFound(f"there is no trajectory {name!r}")
        if not self._context.started:
            await self._context.start()
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return await self._read(project, name)
        except TimeoutError:
            raise Unavailable(f"the node does not answer within {NODE_SECONDS:g} s") from None

    async def _read(self, project: str, name: str) -> ShownEnvironment:
        try:
            node = await self._context.node_door.node_of(trajectory_key(project, name))
        except Conflict as error:
            if error.code not in _NOTHING:
                raise
            return ShownEnvironment("", "none", None, [], [])
        unknown = EnvironmentFacts("unknown")
        facts = await self._ask(project, name, "/environment", _states, unknown)
        return ShownEnvironment(
            node,
            facts.state,
            facts.disk_bytes,
            await self._ask(project, name, "/sessions", _sessions, []),
            await self._ask(project, name, "/processes", _programs, []),
        )

    async def _ask(
        self, project: str, name: str, path: str, decoder: msgspec.json.Decoder[T], nothing: T
    ) -> T:
        """Return the node's answer; ``nothing`` where it has none."""
        try:
            async with self._context.node_door.request(
                project, name, "GET", path, idle_seconds=NODE_SECONDS
            ) as answer:
                return decoder.decode(await answer.body())
        except (Conflict, NotFound) as error:
            if error.code not in _NOTHING:
                raise
            return nothing
