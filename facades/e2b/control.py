"""Control of sandboxes: they are created, listed, renewed, paused, forked, kept as snapshots and ended.

| E2B                          | Tangram                                                                    |
|------------------------------|----------------------------------------------------------------------------|
| create                       | open a trajectory; its environment begins with the first command or file   |
| timeout, connect             | move the end of the trajectory; ``connect`` never moves it nearer           |
| pause                        | park its environment; it ends after `PAUSED_SECONDS`                       |
| connect, resume when paused  | run ``true`` in it, which thaws its programs                               |
| fork, snapshot               | those of trajectories; an environment that stays busy is copied            |
| kill                         | finish the trajectory                                                      |
| metrics                      | the programs of its environment, measured twice                            |

``Idempotency-Key`` of create names the sandbox, so a repetition finds it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from contract.receipts import TrajectoryDetails
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.principals import Principal
from facades.e2b import snapshots
from facades.e2b.access import ENVD, TRAFFIC
from facades.e2b.errors import status_of
from facades.e2b.listing import CLIENT, MOST, NEXT, page_of, shown
from facades.e2b.metrics import is_asked, measured
from facades.e2b.requests import (
    MOST_SECONDS,
    Fork,
    NewSandbox,
    NewSnapshot,
    Timeout,
)
from facades.e2b.sandbox import (
    ENVD_VERSION,
    FACTS,
    TASK,
    SandboxFacts,
    chosen_number,
    cores_of,
    facts_of,
    is_paused,
    sandboxes_of,
)
from facades.e2b.templates import Templates
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.request_parsing import decode
from scheduler.runtime.gateway.route_table import Handler

#: Life of a paused sandbox.
PAUSED_SECONDS: Final = 30 * 86_400
#: Light: a command that thaws an environment takes no core of its own.
_WAKE: Final = {"kind": "exec", "exec": {"command": ["true"]}, "cost": {"cpu": 0.1}}
_WAKE_SECONDS: Final = 30.0

_new = msgspec.json.Decoder(NewSandbox)
_timeout = msgspec.json.Decoder(Timeout)
_fork = msgspec.json.Decoder(Fork)
_snapshot = msgspec.json.Decoder(NewSnapshot)
_refresh = msgspec.json.Decoder(dict[str, int])


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the routes."""
    control = Control(port)
    made: dict[str, Handler] = {
        "create": control.create,
        "list": control.list,
        "show": control.show,
        "kill": control.kill,
        "timeout": control.timeout,
        "refresh": control.refresh,
        "connect": control.connect,
        "resume": control.resume,
        "pause": control.pause,
        "fork": control.fork,
        "network": control.network,
        "metrics": control.metrics,
        "metrics_of_all": control.metrics_of_all,
        "logs": control.logs,
        "snapshot": control.snapshot,
        "snapshots": control.snapshots,
    }
    return {f"e2b_{operation}": handler for operation, handler in made.items()}


class Control:
    """Handlers of ``/sandboxes`` and ``/snapshots``."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port
        self._sandboxes = sandboxes_of(port)
        self._templates = Templates(port)

    async def create(self, request: HttpRequest, principal: Principal, _: None) -> HttpResponse:
        """POST /sandboxes: 201 and the sandbox."""
        asked = decode(_new, await request.body())
        if asked.volume_mounts:
            raise InvalidRequest("volumes are not supported here", pointer="/volumeMounts")
        native, metadata = self._port.native(request, principal), asked.metadata or {}
        project = await native.project()
        base = await self._templates.base(native, project, asked.template_id)
        facts = SandboxFacts(
            template=asked.template_id,
            metadata=metadata,
            envs={**base.envs, **(asked.env_vars or {})},
            by=principal.name,
            networks=principal.networks,
            public=bool(asked.network and asked.network.allow_public),
            pauses=bool(asked.auto_pause),
            resume_seconds=_resume_seconds(asked),
        )
        cores_of(facts)  # raises before anything is opened
        environment = {
            **base.environment,
            "ttl_seconds": max(1, asked.timeout),
            "network": metadata.get("tangram.network", "none"),
            "memory_bytes": int(chosen_number(metadata, "tangram.memory_bytes", 0)),
        }
        pool = {"pool": metadata["tangram.pool"]} if "tangram.pool" in metadata else {}
        name = await self._name(request, project)
        opened = await native.open(
            name,
            metadata.get("tangram.task", TASK),
            environment=environment,
            metadata={FACTS: msgspec.to_builtins(facts)},
            pause_seconds=PAUSED_SECONDS if asked.auto_pause else None,
            **pool,
        )
        return HttpResponse(201, await self._handed(request, project, name, opened, facts))

    async def _name(self, request: HttpRequest, project: str) -> str:
        """Return the id of a new sandbox: by the idempotency key of the request, else a random one."""
        key = request.header(b"idempotency-key")
        if not key:
            return new_id()
        return (await self._sandboxes.tokens()).sandbox_id(project, key)

    async def _handed(
        self,
        request: HttpRequest,
        project: str,
        name: str,
        found: TrajectoryDetails,
        facts: SandboxFacts,
    ) -> dict[str, Any]:
        """Return a sandbox with its tokens, as its owner gets it."""
        tokens, holder = await self._sandboxes.tokens(), facts.holder(project)
        return {
            "templateID": facts.template,
            "sandboxID": name,
            "alias": facts.template,
            "clientID": CLIENT,
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": tokens.token(ENVD, name, holder),
            "trafficAccessToken": tokens.token(TRAFFIC, name, holder),
            "domain": domain_of(request),
        }

    async def list(self, request: HttpRequest, principal: Principal, _: None) -> HttpResponse:
        """GET /sandboxes: a page of the open ones."""
        native = self._port.native(request, principal)
        page = page_of(await native.trajectories(), request.query())
        return HttpResponse(200, page.items, headers={NEXT: page.next} if page.next else None)

    async def show(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """GET /sandboxes/{id}."""
        native = self._port.native(request, principal)
        found, facts = await self._open(native, name)
        handed = await self._handed(request, await native.project(), name, found, facts)
        return HttpResponse(200, {**shown(name, found, facts), **handed})

    async def _open(self, native: NativeCalls, name: str) -> tuple[TrajectoryDetails, SandboxFacts]:
        """Return a sandbox that has not ended. Raises NotFound."""
        try:
            found = await native.trajectory(name)
        except NotFound:
            raise _no_sandbox(name) from None
        facts = facts_of(found)
        if found.state != "open" or facts is None:
            raise _no_sandbox(name)
        return found, facts

    async def kill(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """DELETE /sandboxes/{id}: 204; 404 for one that has ended."""
        await request.body()
        native = self._port.native(request, principal)
        await self._open(native, name)
        await native.finish(name)
        self._sandboxes.forget(await native.project(), name)
        return HttpResponse(204)

    async def timeout(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/timeout: it ends so many seconds from now."""
        asked = decode(_timeout, await request.body())
        native = self._port.native(request, principal)
        found, _facts = await self._open(native, name)
        if is_paused(found):
            raise Conflict(f"sandbox {name!r} is paused; connect to it first")
        await native.renew(name, ttl_seconds=asked.timeout)
        return HttpResponse(204)

    async def refresh(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/refreshes {"duration"}: it ends so many seconds from now, or later."""
        body = await request.body()
        asked = decode(_refresh, body) if body.strip() else {}
        native = self._port.native(request, principal)
        await self._open(native, name)
        seconds = min(max(1, asked.get("duration", 15)), MOST_SECONDS)
        await native.renew(name, ttl_seconds=seconds, only_later=True)
        return HttpResponse(204)

    async def connect(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/connect: 200 and the sandbox, 201 when it was paused."""
        seconds = await _seconds_asked(request)
        native = self._port.native(request, principal)
        found, facts = await self._open(native, name)
        if is_paused(found):
            return await self._resumed(request, native, name, facts, seconds)
        found = await native.renew(name, ttl_seconds=seconds, only_later=True)
        project = await native.project()
        return HttpResponse(200, await self._handed(request, project, name, found, facts))

    async def resume(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/resume: 201 and the sandbox; 409 when it is not paused."""
        seconds = await _seconds_asked(request)
        native = self._port.native(request, principal)
        found, facts = await self._open(native, name)
        if not is_paused(found):
            raise Conflict(f"sandbox {name!r} is running already")
        return await self._resumed(request, native, name, facts, seconds)

    async def _resumed(
        self,
        request: HttpRequest,
        native: NativeCalls,
        name: str,
        facts: SandboxFacts,
        seconds: int,
    ) -> HttpResponse:
        found = await native.renew(name, ttl_seconds=max(1, seconds), paused=False)
        if found.node:
            wake = {**_WAKE, "task": found.task, "trajectory": name}
            with suppress(HttpError):  # it waits longer for a core: the next command thaws it
                await native.run(wake, _WAKE_SECONDS)
        handed = await self._handed(request, await native.project(), name, found, facts)
        return HttpResponse(201, handed)

    async def pause(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/pause: 204; 409 when it is paused already."""
        await request.body()
        native = self._port.native(request, principal)
        found, _facts = await self._open(native, name)
        if is_paused(found):
            raise Conflict(f"sandbox {name!r} is paused already")
        if found.live_actions:
            # 409 would tell the SDK that it is paused.
            raise InvalidRequest("commands run in this sandbox: it is paused after they have ended")
        if found.node:
            await _park(native, name)
        await native.renew(name, ttl_seconds=PAUSED_SECONDS, paused=True)
        self._sandboxes.forget(await native.project(), name)
        return HttpResponse(204)

    async def fork(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/fork: 201 and a list of ``{"sandbox"}`` or ``{"error"}``."""
        body = await request.body()
        asked = decode(_fork, body) if body.strip() else Fork()
        native = self._port.native(request, principal)
        _found, facts = await self._open(native, name)
        names = [new_id() for _ in range(asked.count)]
        metadata = {FACTS: msgspec.to_builtins(facts)}
        try:
            await native.place(name)
            await native.fork(name, names, on_busy="copy", metadata=metadata)
        except TangramError as error:
            failed = {"code": status_of(error, request), "message": str(error)}
            return HttpResponse(201, [{"error": failed}] * asked.count)
        seconds = max(1, 300 if asked.timeout is None else asked.timeout)
        project = await native.project()
        made = []
        for child in names:
            found = await native.renew(child, ttl_seconds=seconds)
            made.append({"sandbox": await self._handed(request, project, child, found, facts)})
        return HttpResponse(201, made)

    async def network(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """PUT /sandboxes/{id}/network: refused, since an environment keeps its network."""
        await request.body()
        await self._open(self._port.native(request, principal), name)
        raise HttpError(400, "unsupported", "the network of a sandbox is chosen when it is created")

    async def logs(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """GET /sandboxes/{id}/logs: none; the console and ``GET /actions`` have the output of each command."""
        await self._open(self._port.native(request, principal), name)
        return HttpResponse(200, {"logs": [], "logEntries": []})

    async def metrics(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """GET /sandboxes/{id}/metrics: one measurement, of now."""
        await request.body()
        native = self._port.native(request, principal)
        found, facts = await self._open(native, name)
        if not is_asked(request.query()):
            return HttpResponse(200, [])
        return HttpResponse(200, [await measured(native, name, found, facts)])

    async def metrics_of_all(
        self, request: HttpRequest, principal: Principal, _: None
    ) -> HttpResponse:
        """GET /sandboxes/metrics?sandbox_ids=…: one measurement of each."""
        await request.body()
        native, query = self._port.native(request, principal), request.query()
        names = [each for each in query.get("sandbox_ids", "").split(",") if each]
        shown_metrics: dict[str, Any] = {}
        for name in names[:MOST]:
            with suppress(NotFound):
                found, facts = await self._open(native, name)
                shown_metrics[name] = await measured(native, name, found, facts)
        return HttpResponse(200, {"sandboxes": shown_metrics})

    async def snapshot(
        self, request: HttpRequest, principal: Principal, _: None, name: str
    ) -> HttpResponse:
        """POST /sandboxes/{id}/snapshots: 201 ``{snapshotID, names}``."""
        body = await request.body()
        asked = decode(_snapshot, body) if body.strip() else NewSnapshot()
        native = self._port.native(request, principal)
        await self._open(native, name)
        return HttpResponse(201, await snapshots.taken(native, name, asked.name))

    async def snapshots(self, request: HttpRequest, principal: Principal, _: None) -> HttpResponse:
        """GET /snapshots: those of the project, of one sandbox or of one name."""
        native = self._port.native(request, principal)
        found, following = await snapshots.page(native, request.query())
        return HttpResponse(200, found, headers={NEXT: following} if following else None)


async def _seconds_asked(request: HttpRequest) -> int:
    """Return the life that a request asks for, by default that of a new sandbox. Raises InvalidRequest."""
    body = await request.body()
    return (decode(_timeout, body) if body.strip() else Timeout()).timeout


async def _park(native: NativeCalls, name: str) -> None:
    """Freeze the programs of a sandbox, where it has some and its node can."""
    with suppress(NotFound, Conflict):
        await native.call("trajectories_park", name)


def _resume_seconds(asked: NewSandbox) -> float:
    resumes = asked.auto_resume is not None and asked.auto_resume.enabled
    return float(max(1, asked.timeout)) if resumes else 0.0


def new_id() -> str:
    """Return the id of a new sandbox, which cannot be guessed."""
    return "i" + secrets.token_hex(10)[:19]


def domain_of(request: HttpRequest) -> str:
    """Return the domain of hosts like ``3000-ID.DOMAIN``: that of the request, ``localhost`` for an address."""
    host = request.header(b"host") or "localhost"
    name, colon, port = host.rpartition(":")
    if not (colon and port.isdigit()):
        name, port = host, ""
    if name.startswith("[") or name.replace(".", "").isdigit():
        name = "localhost"
    return f"{name}:{port}" if port else name


def _no_sandbox(name: str) -> NotFound:
    return NotFound(f"sandbox {name[:80]!r} was not found")
