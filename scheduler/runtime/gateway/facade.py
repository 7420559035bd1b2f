"""Facades: other protocols in front of the calls of the gateway.

A facade is data that the composition root passes to the gateway: the prefix of its paths, its
routes, their handlers, and the shape in which its clients read errors. Its handlers reach the
gateway through a `FacadePort` and nothing else.

    async def ask(self, request, principal, trajectory, send) -> HttpResponse | None:
        action = await self._port.admit(principal, lambda: payload_of(request))
        view = await self._port.complete(request, principal, action, send)
        return None if view is None else HttpResponse(200, view.result)

Rules
1. A client that names its trajectory in the path puts ``/trajectories/ID`` in front of the prefix; the
   first parameter of each handler is that ID, or None.
2. A request below the prefix that no route serves is answered 404, in the facade's shape.
3. A client that disconnects cancels its action, and so does the end of the web process. A facade that cancels the
   asyncio task of a call cancels its action, with the message of the cancellation as reason.
4. The calls of ``/api/v1`` are at hand as `NativeCalls`; a facade that translates to them passes the same checks.
5. A facade is loaded with the first request below one of its prefixes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from contract.receipts import TrajectoryReceipt
from contract.requests import ActionRequest
from contract.responses import ActionResponse
from contract.rollout_status import RolloutsStatus
from contract.routes import API_PREFIX, Body, Route
from domain.action import Action
from domain.codec import encode
from domain.errors import Conflict, TangramError, Unavailable
from domain.events import ActionCancelRequested
from domain.fleets import GenerationSpec
from domain.principals import Principal, Scope
from domain.project_limits import loads_of
from domain.services import GpuService
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleet_router.forwarded_request import ForwardedRequest
from scheduler.runtime.fleet_router.router import GenerationEnd
from scheduler.runtime.gateway.authentication import bearer_token
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.actions import submission
from scheduler.runtime.gateway.endpoints.ports import PREFIX as PORT_PREFIX
from scheduler.runtime.gateway.endpoints.response_streaming import ResponseStreaming
from scheduler.runtime.gateway.fair_turns import turn_of
from scheduler.runtime.gateway.http import ClientGone, HttpError, HttpRequest, HttpResponse, Send
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.route_table import TRAJECTORY, Handler
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.facade_records import FacadeClaims, FacadeRecords, TimedRecords
from scheduler.runtime.stored_actions import with_stored_inputs

log = logging.getLogger(__name__)

#: Longest wait for one result; clients have limits of their own.
PATIENCE_SECONDS = 86_400.0


def note_refusal(door: str, request: HttpRequest, error: TangramError) -> None:
    """Log a request that a door refuses, or whose client disconnected: one line, without its body."""
    said = str(error) or type(error).__name__
    log.info("door %s: %s %.200r: %.300r", door, request.method, request.path, said)


@dataclass(frozen=True)
class Facade:
    """A protocol that the gateway speaks beside its own."""

    #: First segments of its paths, as in ``/v1``.
    prefix: str
    routes: tuple[Route, ...]
    #: Makes the handlers, by the operations of ``routes``.
    handlers: Callable[[FacadePort], Mapping[str, Handler]]
    #: Returns an error in the shape of this protocol.
    refusal: Callable[[TangramError, HttpRequest], HttpResponse]
    #: Body of an error, for the OpenAPI document.
    error: Body
    #: Returns the token that a request shows in this protocol.
    token: Callable[[HttpRequest], str] = bearer_token

    async def unknown(self, request: HttpRequest) -> HttpResponse:
        """Refuse a request below the prefix that no route serves."""
        known = ", ".join(f"{route.method} {route.path}" for route in self.routes)
        raise HttpError(
            404,
            "unknown_url",
            f"{request.method} {request.path} is not served here; there are {known}",
        )


@dataclass(frozen=True)
class FacadeEntry:
    """A facade that is loaded with its first request."""

    #: First segments of the paths that it serves: that of the facade, and others.
    prefixes: tuple[str, ...]
    load: Callable[[], Facade]
    #: Whether the OpenAPI document lists its routes; a protocol that is documented elsewhere is left out.
    documented: bool = True
    #: Hosts (the header, in lower case) whose requests it serves, whatever their path, below its first prefix and
    #: the path that the groups ``port`` and ``name`` give: ``/hosts/PORT/NAME/…``.
    hosts: re.Pattern[str] | None = None
    #: Name of its protocol; empty: the first prefix without the slash.
    name: str = ""
    #: It works on after its answers: a web process loads it at its start where such work is noted (`TimedRecords.note`).
    resumes: bool = False

    @property
    def door(self) -> str:
        """The name that actions record as their door, as in ``e2b``."""
        return self.name or self.prefixes[0].strip("/")

    @cached_property
    def _own(self) -> re.Pattern[str]:
        prefixes = "|".join(map(re.escape, self.prefixes))
        return re.compile(f"({TRAJECTORY})?({prefixes})(/.*)?")

    def owns(self, path: str) -> bool:
        """Whether clients of this facade request ``path``, and read its errors."""
        return self._own.fullmatch(path) is not None

    def path_of(self, host: str, path: str) -> str | None:
        """Return the path below the prefix of a request to one of `hosts`; None for other hosts."""
        found = None if self.hosts is None else self.hosts.match(host)
        return found and f"{self.prefixes[0]}/hosts/{found['port']}/{found['name']}{path}"

    @cached_property
    def facade(self) -> Facade:
        """The facade, loaded. Raises Unavailable; the next request tries again."""
        try:
            return self.load()
        except Exception as error:  # any error of a module on import
            log.exception("door %s cannot be loaded", self.door)
            raise Unavailable(f"the door {self.door} cannot be loaded: {error}") from error

    @property
    def is_loaded(self) -> bool:
        """Whether a request has loaded the facade."""
        return "facade" in self.__dict__


class FacadePort:
    """The gateway as one facade sees it."""

    def __init__(
        self,
        context: GatewayContext,
        streams: ResponseStreaming,
        native: Mapping[str, Handler],
        door: str,
    ) -> None:
        self._context = context
        self._streams = streams
        self._native = native
        self._door = door
        #: What this facade stores.
        self.records = FacadeRecords(context.client, context.keys, door, context.confirmed)
        #: What it stores for a while.
        self.timed = TimedRecords(context.client, context.keys, door, context.confirmed)
        #: Messages to URLs of its clients.
        self.callbacks = context.callbacks
        #: What the clients of this facade wait for.
        self.claims = FacadeClaims(context.client, context.keys, door)

    def native(self, request: HttpRequest, principal: Principal) -> NativeCalls:
        """Return the calls of ``/api/v1`` for a client's request."""
        return NativeCalls(
            self._context, self._native, self._finished, self._door, request, principal
        )

    async def principal(self, request: HttpRequest, token: str, scope: Scope) -> Principal:
        """Return the principal of a token that is not the one of the request. Raises HttpError 401, 403."""
        principal = await self._context.tokens.principal_of(token, request, scope)
        await self._context.turns.take(turn_of(principal))
        return principal

    async def forward(
        self, request: HttpRequest, principal: Principal, trajectory: str, port: str, send: Send
    ) -> None:
        """Pass a client's request to a server in an environment, at its own path; the response to ``send``.

        Raises NotFound, Gone, HttpError 405, 502.
        """
        forward = self._native.get(f"ports_{request.method.lower()}")
        if forward is None:
            raise HttpError(405, "method_not_allowed", f"{request.method} is not forwarded")
        raw: bytes = request.scope.get("raw_path") or b"/"
        path = f"{API_PREFIX}/trajectories/{trajectory}/ports/{port}"
        own = {"path": path, "raw_path": path.encode() + raw.partition(b"?")[0], PORT_PREFIX: ""}
        inner = HttpRequest({**request.scope, **own}, request.receive)
        inner.id = request.id
        await forward(inner, principal, trajectory, port, send)

    async def _finished(
        self,
        request: HttpRequest,
        principal: Principal,
        action: Action,
        seconds: float | None,
        key: str,
    ) -> ActionResponse:
        patience = PATIENCE_SECONDS if seconds is None else seconds
        return await self._complete(request, principal, action, patience, key)

    async def trajectories(self) -> list[TrajectoryReceipt]:
        """Return the open trajectories of this facade, of all projects. Raises Unavailable."""
        return await self._context.queries.trajectories(None, self._door)

    async def rollout_counts(self, project: str, task: str) -> RolloutsStatus:
        """Return the numbers of unfinished rollouts of a task that came through this facade, by state and stage. Raises Unavailable."""
        return await self._context.queries.rollouts(
            project=project, task=task, door=self._door, limit=0
        )

    async def repeat(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Do ``work`` again and again, so long after its end, until cancelled; errors of Tangram are logged."""
        while keep_running():
            try:
                await work()
            except TangramError as error:
                log.warning("door %s: work in the background waits: %s", self._door, error)
            if keep_running():
                await asyncio.sleep(seconds)

    async def secret(self) -> bytes:
        """Return the secret of all web processes, for tokens that a facade makes. Raises Unavailable."""
        return await self.records.secret()

    def services(self) -> Mapping[str, GpuService]:
        """Return the declared GPU services by name."""
        return self._context.admission.view.services

    def fleets(self) -> Mapping[str, FleetCapacity]:
        """Return the declared fleets of language models by name."""
        return self._context.admission.view.fleets

    async def fleet(self, name: object) -> FleetCapacity | None:
        """Return the fleet of a model; None where the name is of a GPU service, or unknown. Raises Unavailable."""
        if not isinstance(name, str) or name in self.services():
            return None
        if name not in self.fleets():
            await self._context.refresh()  # it may have been declared just now
        return self.fleets().get(name)

    async def generate(
        self,
        request: HttpRequest,
        principal: Principal,
        payload: ActionRequest,
        generation: GenerationSpec,
        asked: ForwardedRequest,
        send: Send,
    ) -> GenerationEnd:
        """Run a generation, whose answer passes to ``send`` but for its end that is no completion.

        Raises InvalidRequest, NotFound, ClientGone, Unavailable, and HttpError 429.
        """
        admission = self._context.admission
        action = await self._context.admitted(
            lambda: admission.action(payload, principal, self._door, generation)
        )
        named = {"X-Request-Id": request.id}
        return await self._context.router.serve(action, asked, send, request.disconnected, named)

    @property
    def output_bytes(self) -> int:
        """Most bytes of each output stream that an action may keep."""
        return self._context.admission.output_bytes

    async def admit(self, principal: Principal, build: Callable[[], ActionRequest]) -> Action:
        """Return the action that ``build`` describes.

        A refusal may rest on an outdated configuration: then ``build`` is called again with the
        newest. Raises InvalidRequest, NotFound.
        """
        admission = self._context.admission
        return await self._context.admitted(
            lambda: admission.action(build(), principal, self._door)
        )

    async def complete(
        self, request: HttpRequest, principal: Principal, action: Action, send: Send
    ) -> ActionResponse | None:
        """Submit an action and return it finished; None when its response was streamed whole to ``send``.

        The action of a response that broke off after its beginning is returned too. Raises CapacityError when no more responses can be streamed, ClientGone, HttpError 504.
        """
        if action.call is None or not action.call.stream:
            return await self._complete(request, principal, action, PATIENCE_SECONDS)
        with self._streams.place():  # before the submission: a refusal must cost nothing

            async def streamed() -> bool:
                return await self._streamed(request, principal, action, send)

            return await self._submitted(request, principal, action, PATIENCE_SECONDS, streamed)

    async def _complete(
        self,
        request: HttpRequest,
        principal: Principal,
        action: Action,
        seconds: float,
        key: str = "",
    ) -> ActionResponse:
        """Submit an action and return it finished. Raises as `complete`."""

        async def not_streamed() -> bool:
            return False

        view = await self._submitted(request, principal, action, seconds, not_streamed, key)
        assert view is not None
        return view

    async def _submitted(
        self,
        request: HttpRequest,
        principal: Principal,
        action: Action,
        seconds: float,
        streamed: Callable[[], Awaitable[bool]],
        key: str = "",
    ) -> ActionResponse | None:
        """Submit an action; None when it was ``streamed`` whole, else it finished. Cancel it when that fails."""
        context = self._context
        action = await with_stored_inputs(action, context.bodies)
        future = context.tail.finish_of(action.id)
        try:
            first = await self._append(action, key)
            if not first and await streamed():
                return None
            view = None
            if not first:
                view = await context.settled(request, principal, action.id, future, seconds)
        except (ClientGone, asyncio.CancelledError) as error:
            left = isinstance(error, ClientGone)
            ended = str(error) or "the web process of its client ended"
            await self._cancel(action, "its client disconnected" if left else ended)
            raise
        finally:
            context.tail.discard(action.id, future)
        if first:
            return await context.find(request, principal, first, seconds)
        if view is None:
            await self._cancel(action, f"its client waits for {seconds:g} s")
            raise HttpError(504, "timeout", f"{action.id} was not done after {seconds:g} s")
        return view

    async def _append(self, action: Action, key: str) -> str:
        """Submit an action; return the id of the one that an earlier request with ``key`` submitted."""
        context, name = self._context, ""
        if key:  # no key of the native API begins so
            name = context.keys.idempotency(action.project, f"\0{self._door}/{key}")
        before = await context.submitter.append(
            [submission(action)],
            key=name,
            remember=action.id.encode() if key else b"",
            loads=loads_of([action]),
        )
        return "" if before is None else before.decode()

    async def _cancel(self, action: Action, reason: str) -> None:
        event = ActionCancelRequested(action_id=action.id, project=action.project, reason=reason)
        await self._context.submitter.append([encode(event)], follows=action.project)

    async def _streamed(
        self, request: HttpRequest, principal: Principal, action: Action, send: Send
    ) -> bool:
        """Stream the response while it arrives; False when the action ends without a whole one."""
        try:
            return await self._streams.pass_on(request, principal, action.id, send)
        except Conflict:
            return False
