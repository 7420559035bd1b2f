"""Endpoints of tasks and trajectories."""

from __future__ import annotations

import secrets

import msgspec
from msgspec.structs import asdict, replace

from contract.receipts import (
    ForkedTrajectories,
    OpenedTask,
    TrajectoryDetails,
    TrajectoryReceipt,
)
from contract.requests import (
    DOOR,
    MAX_NAME_LENGTH,
    TaskRequest,
    TrajectoryForkRequest,
    TrajectoryRenewRequest,
    TrajectoryRequest,
)
from domain.codec import encode
from domain.errors import Conflict, InvalidRequest
from domain.events import TaskOpened, TrajectoryFinished, TrajectoryOpened, TrajectoryRenewed
from domain.ids import trajectory_key
from domain.principals import Principal
from scheduler.runtime.gateway.admission import check_metadata
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import checked_name, decode, decode_unchecked, packed

_task = msgspec.json.Decoder(TaskRequest)
_trajectory = msgspec.json.Decoder(TrajectoryRequest)
_fork = msgspec.json.Decoder(TrajectoryForkRequest)
_renew = msgspec.json.Decoder(TrajectoryRenewRequest)
#: A name that is made for a fork ends with so many characters of its own.
_SUFFIX_LENGTH = 16


class _TrajectoryHead(msgspec.Struct, rename={"source": "from"}):
    """The member that a fork has and any other trajectory lacks."""

    source: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_kind = msgspec.json.Decoder(_TrajectoryHead)


class Trajectories:
    """Handlers that open tasks and trajectories, and finish trajectories."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def open_task(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /tasks: declare a task and bind it to a pool."""
        payload = decode(_task, await request.body())
        check_metadata(payload.metadata)
        project, pool = await self._place(payload, principal)
        event = TaskOpened(project=project, task=payload.id, pool=pool, metadata=payload.metadata)
        await self._context.submitter.append([packed(event)], follows=project)
        return HttpResponse(201, OpenedTask(payload.id, project, pool or None))

    async def open(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /trajectories: declare a trajectory and its environment, or fork one."""
        body = await request.body()
        if decode_unchecked(_kind, body).source is not msgspec.UNSET:
            return await self._fork(decode(_fork, body), principal, request.scope.get(DOOR, ""))
        payload = decode(_trajectory, body)
        check_metadata(payload.metadata)
        project, pool = await self._place(payload, principal)
        event = TrajectoryOpened(
            project=project,
            task=payload.task,
            trajectory=payload.id,
            pool=pool,
            environment=payload.environment,
            metadata=payload.metadata,
            door=request.scope.get(DOOR, ""),
            pause_seconds=payload.pause_seconds or 0.0,
        )
        await self._context.submitter.append([packed(event)], follows=project)
        found = await self._context.queries.trajectory(project, payload.id)
        if found.state != "open":
            raise Conflict(
                f"trajectory {payload.id!r} is {found.state}; choose another id",
                pointer="/id",
            )
        if found.task != payload.task:
            raise Conflict(
                f"trajectory {payload.id!r} is open and belongs to task {found.task!r}; choose another"
                " id, or name that task",
                pointer="/task",
            )
        return HttpResponse(201, _receipt(payload.id, project, found))

    async def _fork(
        self, payload: TrajectoryForkRequest, principal: Principal, door: str
    ) -> HttpResponse:
        check_metadata(payload.metadata)
        admission, source = self._context.admission, payload.source
        project = await self._context.admitted(
            lambda: admission.project(principal, payload.project)
        )
        children = _children(payload)
        queries = self._context.queries
        report = await queries.fork(
            project, source, children, payload.on_busy, payload.metadata, door
        )
        found = await queries.trajectory(project, children[0])
        return HttpResponse(
            201,
            ForkedTrajectories(
                source=source,
                project=project,
                node=found.node or "",
                trajectories=[_receipt(name, project, found) for name in children],
                way=report.way,
                seconds=report.seconds,
                frozen_seconds=report.frozen_seconds,
            ),
        )

    async def renew(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """POST /trajectories/{id}/renew: move its end, pause or resume it."""
        payload = decode(_renew, await request.body())
        checked_name(name, "trajectory")
        project = await self._context.project(request, principal)
        event = TrajectoryRenewed(
            project=project,
            trajectory=name,
            ttl_seconds=payload.ttl_seconds,
            only_later=payload.only_later,
            paused=payload.paused,
        )
        await self._context.submitter.append([encode(event)], follows=project)
        found = await self._context.queries.trajectory(project, name)
        if found.state != "open":
            raise Conflict(f"trajectory {name!r} is {found.state}: only an open one is renewed")
        return HttpResponse(200, _receipt(name, project, found))

    async def finish(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """POST /trajectories/{id}/finish: cancel its actions and remove its environment."""
        await request.body()
        checked_name(name, "trajectory")
        project = await self._context.project(request, principal)
        found = await self._context.queries.trajectory(project, name)
        if found.state != "open":
            return HttpResponse(200, _receipt(name, project, found))
        event = TrajectoryFinished(project=project, trajectory=name)
        await self._context.submitter.append([encode(event)], follows=project)
        # From now on its files, ports and sessions are not found, although its node removes them a moment later.
        self._context.tail.places.close(trajectory_key(project, name))
        return HttpResponse(202, _receipt(name, project, replace(found, state="finishing")))

    async def _place(
        self, payload: TaskRequest | TrajectoryRequest, principal: Principal
    ) -> tuple[str, str]:
        """Return the project and the pool of a declaration. Raises NotFound, InvalidRequest."""
        admission = self._context.admission

        def place() -> tuple[str, str]:
            project = admission.project(principal, payload.project)
            pool = admission.pool(payload.pool, project)
            if isinstance(payload, TrajectoryRequest) and payload.environment is not None:
                admission.check_environment(payload.environment, project, payload.task, pool)
            return project, pool

        return await self._context.admitted(place)


def _receipt(name: str, project: str, found: TrajectoryDetails) -> TrajectoryReceipt:
    return TrajectoryReceipt(id=name, project=project, **asdict(found))


def _children(payload: TrajectoryForkRequest) -> tuple[str, ...]:
    """Return the names of the forks. Raises InvalidRequest."""
    names = payload.names
    if names is None:
        stem = f"{payload.source[: MAX_NAME_LENGTH - _SUFFIX_LENGTH]}-{secrets.token_hex(4)}"
        return tuple(f"{stem}-{number}" for number in range(payload.count or 1))
    if payload.count not in (None, len(names)):
        raise InvalidRequest(
            f"{len(names)} names are given, and count is {payload.count}: give one of them",
            pointer="/count",
        )
    if len(set(names)) < len(names):
        raise InvalidRequest("a name is given twice", pointer="/names")
    return tuple(names)
