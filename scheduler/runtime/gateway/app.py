"""ASGI application of the gateway: routes requests to handlers, and the others to Django.

Errors become problems (RFC 9457), or what the clients of a facade expect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import redis

from contract.port_routes import PORTS
from contract.requests import ROUTE
from contract.routes import API_PREFIX, ROUTES, SOCKETS, WEBSOCKET
from domain.errors import TangramError, Unavailable
from domain.principals import Scope as TokenScope
from scheduler.runtime.asgi_socket import AsgiSocket, PeerGone
from scheduler.runtime.gateway.authentication import bearer_token, expiry_headers
from scheduler.runtime.gateway.chat_completions import AgentChats
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.actions import Actions
from scheduler.runtime.gateway.endpoints.backends import Backends
from scheduler.runtime.gateway.endpoints.batches import BatchEndpoints
from scheduler.runtime.gateway.endpoints.event_feeds import EventFeeds
from scheduler.runtime.gateway.endpoints.files import Files
from scheduler.runtime.gateway.endpoints.fleets import Fleets
from scheduler.runtime.gateway.endpoints.health import Health
from scheduler.runtime.gateway.endpoints.images import Images
from scheduler.runtime.gateway.endpoints.leases import Leases
from scheduler.runtime.gateway.endpoints.output_streaming import OutputStreaming
from scheduler.runtime.gateway.endpoints.ports import Ports
from scheduler.runtime.gateway.endpoints.processes import Processes
from scheduler.runtime.gateway.endpoints.response_streaming import ResponseStreaming
from scheduler.runtime.gateway.endpoints.rollout_changes import RolloutChanges
from scheduler.runtime.gateway.endpoints.rollouts import RolloutEndpoints
from scheduler.runtime.gateway.endpoints.selectors import SelectorEndpoints
from scheduler.runtime.gateway.endpoints.sessions import Sessions
from scheduler.runtime.gateway.endpoints.snapshots import Snapshots
from scheduler.runtime.gateway.endpoints.stored_transfers import transfer_handlers
from scheduler.runtime.gateway.endpoints.task_control import TaskControl
from scheduler.runtime.gateway.endpoints.trajectories import Trajectories
from scheduler.runtime.gateway.facade import FacadeEntry, FacadePort, note_refusal
from scheduler.runtime.gateway.fair_turns import turn_of
from scheduler.runtime.gateway.http import (
    Application,
    ClientGone,
    HttpError,
    HttpRequest,
    HttpResponse,
    Receive,
    Scope,
    Send,
    TrackedSend,
    problem_of,
    send_at_shutdown,
)
from scheduler.runtime.gateway.idempotency import IdempotencyStore
from scheduler.runtime.gateway.route_table import Handler, Match, RouteTable
from scheduler.runtime.redis.confirmation import unavailable
from scheduler.runtime.redis.facade_records import TimedRecords
from scheduler.runtime.rollouts.chat_tokens import is_chat_token

log = logging.getLogger(__name__)

#: Submissions check their idempotency keys in the script that appends them, batches with their manifests.
_OWN_KEYS: Final = (
    f"{API_PREFIX}/actions", f"{API_PREFIX}/actions/batch", f"{API_PREFIX}/batches",
)  # fmt: skip


def _is_replayable(request: HttpRequest) -> bool:
    """Whether the answer to this request is stored under its idempotency key by `IdempotencyStore`."""
    path = request.path
    return (
        request.method == "POST"
        and path.startswith(f"{API_PREFIX}/")
        and path.rstrip("/") not in _OWN_KEYS
        and "/ports/" not in path
        and not path.endswith("/v1/chat/completions")
    )


def native_handlers(
    context: GatewayContext,
    streams: ResponseStreaming | None = None,
    needed_roles: tuple[str, ...] = (),
    chats: AgentChats | None = None,
) -> dict[str, Handler]:
    """Return the handler of each operation of `contract.routes.ROUTES`."""
    actions, leases, feeds = Actions(context), Leases(context), EventFeeds(context)
    tasks, trajectories = TaskControl(context), Trajectories(context)
    health = Health(context, needed_roles)
    ports, chats, images = Ports(context), chats or AgentChats(context), Images(context)
    snapshots, streams = Snapshots(context), streams or ResponseStreaming(context)
    return {
        "actions_submit": actions.submit,
        "actions_submit_batch": actions.batch,
        "actions_retrieve": actions.show,
        "actions_stream": OutputStreaming(context, streams).stream,
        "actions_cancel": actions.cancel,
        "leases_renew": leases.renew,
        "leases_release": leases.release,
        "events_stream": feeds.events,
        "completions_list": feeds.completions,
        "tasks_open": trajectories.open_task,
        "tasks_pause": tasks.pause,
        "tasks_resume": tasks.resume,
        "tasks_priority": tasks.prioritise,
        "tasks_cancel": tasks.cancel,
        "services_evict": tasks.evict,
        "trajectories_open": trajectories.open,
        "trajectories_finish": trajectories.finish,
        "trajectories_renew": trajectories.renew,
        **_file_handlers(Files(context)),
        **transfer_handlers(context),
        **{route.operation: ports.forward for route in PORTS},
        "processes_list": Processes(context).list,
        "processes_end": Processes(context).end,
        **_session_handlers(Sessions(context)),
        **_selector_handlers(SelectorEndpoints(context)),
        "images_list": images.show,
        "images_import": images.store,
        "images_remove": images.remove,
        **_rollout_handlers(RolloutEndpoints(context), RolloutChanges(context)),
        **(
            _backend_handlers(Backends(context))
            | _fleet_handlers(Fleets(context))
            | _batch_handlers(BatchEndpoints(context))
        ),
        "agent_chat_complete": chats.complete,
        "agent_chat_models": chats.models,
        "snapshots_take": snapshots.take,
        "trajectories_park": snapshots.park,
        "snapshots_list": snapshots.list,
        "snapshots_remove": snapshots.remove,
        "livez": health.live,
        "readyz": health.ready,
        "status_retrieve": health.status,
        "queues_list": health.queues,
        "decisions_list": health.decisions,
    }


def _file_handlers(files: Files) -> dict[str, Handler]:
    """Return the handlers of `contract.file_routes.FILES`."""
    return {
        **dict.fromkeys(("files_put", "files_put_at"), files.put),
        "files_get": files.get,
        "files_get_at": files.get_at,
        **dict.fromkeys(("files_delete", "files_delete_at"), files.delete),
        "files_stat": files.stat,
        "files_set_mode": files.set_mode,
        "files_list": files.entries,
        "files_make_directory": files.make_directory,
        "files_move": files.move,
        "files_pack": files.pack,
        "files_unpack": files.unpack,
    }


def _socket_handlers(context: GatewayContext) -> dict[str, Handler]:
    """Return the handler of each operation of `contract.routes.SOCKETS`.

    It takes the request, the principal, the parameters of the path, and an `AsgiSocket` to accept.
    """
    ports = Ports(context)
    return {
        "sessions_attach": Sessions(context).attach,
        **dict.fromkeys(("ports_websocket", "ports_websocket_root"), ports.websocket),
        "ports_tunnel": ports.tunnel,
    }


def _rollout_handlers(rollouts: RolloutEndpoints, changes: RolloutChanges) -> dict[str, Handler]:
    """Return the handlers of `contract.rollout_routes.ROLLOUTS`."""
    return {
        "rollouts_submit": rollouts.submit,
        "rollouts_list": rollouts.listed,
        "rollouts_completions": rollouts.completions,
        "rollouts_acknowledge": rollouts.acknowledge,
        "rollouts_retrieve": rollouts.show,
        "rollouts_artefact": rollouts.artefact,
        "rollouts_turns": rollouts.turns,
        "rollouts_cancel": changes.cancel,
        "rollouts_park": changes.park,
        "rollouts_resume": changes.resume,
        "rollouts_cancel_many": changes.cancel_many,
        "rollouts_park_many": changes.park_many,
        "rollouts_resume_many": changes.resume_many,
    }


def _batch_handlers(batches: BatchEndpoints) -> dict[str, Handler]:
    """Return the handlers of `contract.batch_routes.BATCHES`."""
    return {
        "batches_create": batches.create,
        "batches_list": batches.listed,
        "batches_retrieve": batches.show,
        "batches_rows": batches.rows,
    }


def _backend_handlers(backends: Backends) -> dict[str, Handler]:
    """Return the handlers of `contract.rollout_routes.BACKENDS`."""
    return {
        "backends_list": backends.listed,
        "backends_put": backends.put,
        "backends_clear": backends.clear,
        "backends_forget": backends.forget,
        "backends_balance": backends.balance,
        "backends_remove": backends.remove,
        "backends_drain": backends.drain,
        "backends_resume": backends.resume,
    }


def _fleet_handlers(fleets: Fleets) -> dict[str, Handler]:
    """Return the handlers of `contract.fleet_routes.FLEETS`."""
    return {
        "fleets_status": fleets.status,
        "fleets_plan": fleets.plan,
        "fleets_drain": fleets.drain,
        "fleets_undrain": fleets.undrain,
        "fleets_pin": fleets.pin,
    }


def _selector_handlers(selectors: SelectorEndpoints) -> dict[str, Handler]:
    """Return the handlers of `contract.selector_routes.SELECTORS`."""
    return {
        "selectors_list": selectors.list,
        "selectors_show": selectors.show,
        "selectors_profile": selectors.profile,
        "selectors_put_profile": selectors.put_profile,
        "selectors_decision": selectors.decision,
        "selectors_observe": selectors.observe,
        "selectors_pin": selectors.pin,
        "selectors_unpin": selectors.unpin,
    }


def _session_handlers(sessions: Sessions) -> dict[str, Handler]:
    """Return the handlers of `contract.session_routes.SESSIONS`."""
    return {
        "sessions_open": sessions.open,
        "sessions_list": sessions.list,
        "sessions_retrieve": sessions.show,
        "sessions_close": sessions.close,
        "sessions_input": sessions.send,
        "sessions_interrupt": sessions.interrupt,
        "sessions_resize": sessions.resize,
    }


class Gateway:
    """The routes of the gateway and of its facades, in front of another ASGI application."""

    def __init__(
        self,
        context: GatewayContext,
        behind: Application,
        needed_roles: tuple[str, ...] = (),
        facades: Sequence[FacadeEntry] = (),
    ) -> None:
        self._context = context
        self._behind = behind
        self._facades = facades
        self._idempotency = IdempotencyStore(context.client, context.keys, context.confirmed)
        self._streams = ResponseStreaming(context)
        self._chats = AgentChats(context)
        self._native = native_handlers(context, self._streams, needed_roles, self._chats)
        self._table = RouteTable()
        self._table.add(ROUTES, self._native)
        self._table.add(SOCKETS, _socket_handlers(context))
        #: Routes of the facades that are loaded, by the first of their prefixes.
        self._loaded: dict[str, RouteTable] = {}

    async def resume(self) -> None:
        """Load the facades that have work of a web process which ended; without Redis, their first requests do."""
        for entry in self._facades:
            if entry.resumes:
                records = TimedRecords(self._context.client, self._context.keys, entry.door)
                with suppress(Unavailable):
                    if await records.noted():
                        self._routes_of(entry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.serve(scope, receive, send)

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Return the work of serving a request: without a coroutine around it, which each action would pay."""
        if scope["type"] == "websocket":
            return self._serve_socket(scope, receive, send)
        if scope["type"] != "http":
            return self._behind(scope, receive, send)
        request = HttpRequest(scope, receive)
        if b"idempotency-key" not in request.headers or not _is_replayable(request):
            return self._serve(request, send)
        return self._serve_once(request, send)

    async def _serve_once(self, request: HttpRequest, send: Send) -> None:
        sending, request.exchange = TrackedSend(send), None
        try:
            await self._once(request, sending)
        except (Exception, asyncio.CancelledError) as error:
            await self._fail(error, request, sending)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = self._table.find(WEBSOCKET, scope["path"])
        if match is None or match.route.scope is None:
            await self._behind(scope, receive, send)
            return
        request, socket = HttpRequest(scope, receive), AsgiSocket(receive, send)
        if not await socket.connected():
            return
        try:
            if not self._context.started:
                await self._context.start()
            principal = await self._context.tokens.principal(request, match.route.scope)
            await match.handler(request, principal, *match.parameters, socket)
            await socket.close()
        except (PeerGone, ClientGone):
            return
        except Exception as error:
            response = self._error_response(error, request)
            with suppress(PeerGone):
                if socket.accepted:
                    await socket.close(1011, str(error) if response.status < 500 else "")
                else:
                    await socket.refuse(
                        response.status, response.head(request.id), response.content
                    )

    async def _once(self, request: HttpRequest, send: Send) -> None:
        """Answer a request with a key; its caller is known before a stored answer is looked for."""
        if not self._context.started:
            await self._context.start()
        # Django looks the token up for each request, so its stored answers need the same.
        ours = self._table.find(request.method, request.path) is not None
        await self._context.tokens.caller(request, fresh=not ours)
        await self._idempotency.once(request, send, self._serve)

    async def _serve(self, request: HttpRequest, send: Send) -> None:
        sending = TrackedSend(send)
        try:
            answering = self._answer(request, sending)
        except Exception as error:  # a door cannot be loaded, or read the token
            await self._error_response(error, request).send(sending, request.id)
            return
        if answering is None:
            await self._behind(request.scope, request.receive, send)
            return
        try:
            response = await answering
        except (Exception, asyncio.CancelledError) as error:
            await self._fail(error, request, sending)
        else:
            if response is not None and not sending.begun:
                await response.answer(request, sending)

    async def _fail(
        self, error: Exception | asyncio.CancelledError, request: HttpRequest, send: TrackedSend
    ) -> None:
        """Send the problem in place of a response.

        A response that has begun cannot be replaced: it breaks off, without its end.
        """
        if isinstance(error, ClientGone):
            entry = self._facade_of(self._hosted(request).path)
            if entry is not None:
                note_refusal(entry.door, request, error)
        elif isinstance(error, asyncio.CancelledError):
            # The server shuts down, and cancels what takes longer than its grace period. Clients retry: another process has the result.
            if not send.begun:
                ending = self._refusal(Unavailable("this web process is ending"), request)
                await send_at_shutdown(ending.send(send, request.id))
        else:
            response = self._error_response(error, request)
            if not send.begun:
                await response.answer(request, send)

    def _answer(self, request: HttpRequest, send: Send) -> Awaitable[HttpResponse | None] | None:
        """Return the work of answering, or None when the gateway does not serve this request."""
        outer, request = request, self._hosted(request)
        match = self._table.find(request.method, request.path)
        show: Callable[[HttpRequest], str] = bearer_token
        if match is None:
            entry = self._facade_of(request.path)
            if entry is None:
                return None
            show = entry.facade.token
            match = self._routes_of(entry).find(request.method, request.path)
            if match is None:
                below = not request.path.startswith("/trajectories/")
                return entry.facade.unknown(request) if below else None
        outer.scope[ROUTE] = match.route.path
        if match.route.scope is None:
            return self._anonymous(request, match, send)
        token = show(request)
        return self._direct(request, match, match.route.scope, token) or self._authorized(
            request, match, match.route.scope, token, send
        )

    def _direct(
        self, request: HttpRequest, match: Match, scope: TokenScope, token: str
    ) -> Awaitable[HttpResponse | None] | None:
        """Return the work of a handler that has to wait for nothing before it; None: `_authorized` does."""
        context, route = self._context, match.route
        if not context.started or route.streams or route.for_agents:
            return None
        principal = context.tokens.known(token, scope)
        if principal is None or principal.expires_at is not None:
            return None
        passes = context.turns.passes(turn_of(principal))
        return match.handler(request, principal, *match.parameters) if passes else None

    def _routes_of(self, entry: FacadeEntry) -> RouteTable:
        """Return the routes of a facade, which its first request loads."""
        table = self._loaded.get(entry.prefixes[0])
        if table is None:
            facade = entry.facade
            port = FacadePort(self._context, self._streams, self._native, entry.door)
            table = self._loaded[entry.prefixes[0]] = RouteTable()
            table.add_facade(entry.prefixes, facade.routes, facade.handlers(port))
        return table

    async def _anonymous(
        self, request: HttpRequest, match: Match, send: Send
    ) -> HttpResponse | None:
        """Answer on a route without a token; one of a facade takes its parameters too."""
        if not match.parameters:
            return await match.handler(request)
        if not self._context.started:
            await self._context.start()
        sending = (send,) if match.route.streams else ()
        return await match.handler(request, *match.parameters, *sending)

    async def _authorized(
        self, request: HttpRequest, match: Match, scope: TokenScope, token: str, send: Send
    ) -> HttpResponse | None:
        if not self._context.started:
            await self._context.start()
        if match.route.for_agents and is_chat_token(token):
            principal = await self._chats.principal(token, match.parameters[0] or "")
        else:
            principal = await self._context.tokens.principal_of(token, request, scope)
        await self._context.turns.take(turn_of(principal))
        if match.route.streams:
            return await match.handler(request, principal, *match.parameters, send)
        response: HttpResponse | None = await match.handler(request, principal, *match.parameters)
        if response is not None and principal.expires_at is not None:
            response.headers = {**response.headers, **expiry_headers(principal)}
        return response

    def _hosted(self, request: HttpRequest) -> HttpRequest:
        """Return a request to the host of a facade as one to a path of it; any other as it is."""
        named = request.headers.get(b"host", b"")
        # As `FacadeEntry.hosts` begin: with the port of an environment, then a name.
        if not named[:1].isdigit() or b"-" not in named:
            return request
        host = named.decode("latin-1")
        for entry in self._facades:
            path = entry.path_of(host.lower(), request.path)
            if path is not None:
                return HttpRequest({**request.scope, "path": path}, request.receive)
        return request

    def _facade_of(self, path: str) -> FacadeEntry | None:
        return next((entry for entry in self._facades if entry.owns(path)), None)

    def _error_response(self, error: Exception, request: HttpRequest) -> HttpResponse:
        """Return the response to an error; an error that is not the client's is logged."""
        if isinstance(error, TangramError):
            return self._refusal(error, request)
        if isinstance(error, redis.RedisError):
            return self._refusal(unavailable(error), request)
        log.error("request %s failed", request.id, exc_info=error)
        return self._refusal(HttpError(500, "internal", "internal error of Tangram"), request)

    def _refusal(self, error: TangramError, request: HttpRequest) -> HttpResponse:
        """Return an error in the shape that the clients of this path read."""
        entry = self._facade_of(request.path)
        if entry is None or not entry.is_loaded:
            return problem_of(error, request)
        note_refusal(entry.door, request, error)
        return entry.facade.refusal(error, request)
