"""Environments of a worker's rollouts: their trajectories, actions and files, by native calls.

Rules
1. The calls of `rollout.ports.EnvironmentPort`: each may be repeated after a crash, and then finds what is there.
2. The trajectories of a rollout live as long as it is this worker's: their ends are moved (`TrajectoryRenewed`) when they
   are opened, when a successor takes the rollout, and by `keep`. Those of a parked rollout last `KEPT_SECONDS` from
   then on. Those that are still open when the rollout ends are closed by the core.
3. Files are read up to `MAX_FILE_BYTES`.
4. A call in a trajectory that has ended raises `LostEnvironment`: its node was lost, or its time to live is over. The end
   of an action says whether its environment is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, TypeVar

from websockets.exceptions import ConnectionClosed

from contract.receipts import TrajectoryDetails
from contract.responses import ActionResponse
from domain.action import Outcome
from domain.errors import CapacityError, Conflict, NotFound, TangramError, Unavailable
from domain.events import TrajectoryRenewed
from domain.rollouts import Rollout
from rollout.ports import ActionEnd, LostEnvironment
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.node_connection import NodeSocket
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.rollouts.stage_leases import lease_trajectory
from scheduler.runtime.rollouts.worker_calls import WorkerCalls

log = logging.getLogger(__name__)

#: Well below a frame to a handler process.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
#: The trajectories of a rollout are open for this long from each renewal on.
KEPT_SECONDS: Final = 7200.0
RENEW_SECONDS: Final = 900.0
#: Between two looks at a trajectory whose node is silent: it returns, or is counted as dead.
SILENT_SECONDS: Final = 1.0

Pause = Callable[[float], Awaitable[object]]
T = TypeVar("T")


class RolloutEnvironments:
    """Trajectories of the rollouts of one worker."""

    def __init__(self, calls: WorkerCalls, pause: Pause = asyncio.sleep) -> None:
        self._calls = calls
        self._pause = pause
        #: Rollout → the trajectories that calls named.
        self._named: dict[str, tuple[Rollout, set[str]]] = {}

    async def open(
        self, rollout: Rollout, name: str, environment: Mapping[str, Any] | None
    ) -> None:
        """Open a trajectory; one that is open already is used. Raises LostEnvironment, Conflict, InvalidRequest."""
        self._name(rollout, name)
        members: dict[str, Any] = {"metadata": {"rollout": rollout.id}}
        if environment is not None:
            members["environment"] = dict(environment)
        native = self._calls.native(rollout)
        open_it = partial(native.open, name, rollout.task, **members)
        await self._unless_lost(rollout, name, open_it)
        await self._renew(rollout, [name])

    async def fork(self, rollout: Rollout, source: str, names: Sequence[str]) -> None:
        """Fork a trajectory; forks that are open already are used. Raises NotFound, Conflict, HttpError."""
        self._name(rollout, source, *names)
        native = self._calls.native(rollout)

        async def fork() -> None:
            missing = [name for name in names if not await self._is_open(rollout, name)]
            if missing:
                if (await native.trajectory(source)).node is None:
                    await native.place(source)  # INIT had nothing to do in it
                given = {"on_busy": "wait", "metadata": {"rollout": rollout.id}}
                await native.fork(source, missing, **given)

        await self._calls.patiently(fork)
        await self._renew(rollout, names)

    def hold(self, rollout: Rollout) -> None:
        """Keep the trajectories of a rollout from now on, whichever will be opened."""
        self._name(rollout)

    async def take(self, rollout: Rollout) -> None:
        """Renew what a predecessor opened."""
        self._name(rollout)
        await self._keep(rollout, usual_trajectories(rollout))

    async def finish(self, rollout: Rollout, name: str) -> None:
        """End a trajectory and remove its environment; may be repeated."""
        if rollout.id in self._named:
            self._named[rollout.id][1].discard(name)
        with suppress(NotFound):
            await self._calls.patiently(partial(self._calls.native(rollout).finish, name))

    async def submit(self, rollout: Rollout, key: str, members: Mapping[str, Any]) -> str:
        """Submit an action once per ``key`` and return its id. Raises InvalidRequest, CapacityError."""
        if isinstance(name := members.get("trajectory"), str):
            self._name(rollout, name)
        return await self._calls.submit(rollout, f"action/{key}", members)

    async def wait(self, rollout: Rollout, action_id: str) -> ActionEnd:
        """Return an action once it is finished. Raises NotFound, Gone."""
        while True:
            view = await self._calls.settled(rollout, action_id)
            if view.outcome is not None:
                unknown, name = view.outcome is Outcome.UNKNOWN, view.trajectory
                lost = unknown and name is not None and await self._is_lost(rollout, name)
                return _end_of(view, environment_lost=lost)

    async def cancel(self, rollout: Rollout, action_id: str, reason: str) -> None:
        """Cancel an action; one that is finished is not changed. Raises NotFound."""
        await self._calls.cancel(rollout, action_id, reason)

    async def put(self, rollout: Rollout, name: str, path: str, content: bytes) -> None:
        """Write a file. Raises LostEnvironment, InvalidRequest, Conflict, HttpError."""
        native = self._calls.native(rollout)
        await self._unless_lost(rollout, name, partial(native.put, name, path, content))

    async def get(self, rollout: Rollout, name: str, path: str) -> bytes:
        """Read a file. Raises LostEnvironment, NotFound, HttpError."""
        native = self._calls.native(rollout)
        read = partial(native.get, name, path, MAX_FILE_BYTES)
        try:
            return await self._unless_lost(rollout, name, read)
        except HttpError as error:
            if error.status == 404:
                raise NotFound(str(error)) from None
            raise

    async def open_session(
        self, rollout: Rollout, name: str, session: str, members: Mapping[str, Any]
    ) -> None:
        """Open a session; one that is open is used. Raises LostEnvironment, InvalidRequest, NotFound, Conflict."""
        native = self._calls.native(rollout)

        async def opened() -> None:
            try:
                await native.open_session(name, **{**members, "name": session})
            except Conflict as error:
                if error.pointer != "/name":
                    raise
                if session not in {each.name for each in await native.sessions(name)}:
                    # A predecessor has asked for it, and its shell has not begun.
                    raise Unavailable(f"session {session!r} is being opened") from error

        await self._unless_lost(rollout, name, opened)

    async def connect(self, rollout: Rollout, name: str, port: int) -> TunnelChannel:
        """Connect to a server on a port of an environment. Raises LostEnvironment, NotFound, Conflict, Unavailable."""
        return await self._unless_lost(rollout, name, partial(self._connect, rollout, name, port))

    async def _connect(self, rollout: Rollout, name: str, port: int) -> TunnelChannel:
        async with AsyncExitStack() as stack:
            door = self._calls.context.node_door
            try:
                socket = await stack.enter_async_context(
                    door.websocket(rollout.project, name, f"/tunnels/{port}")
                )
            except HttpError as error:
                if error.status != 502:
                    raise
                raise Conflict(f"nothing listens on port {port} of {name}: {error}") from None
            return TunnelChannel(socket, stack.pop_all())

    def drop(self, rollout: str) -> None:
        """Keep the trajectories of a rollout no more: it was withdrawn, or is finished."""
        self._named.pop(rollout, None)

    async def keep(self) -> None:
        """Renew the trajectories of all rollouts until cancelled."""
        while keep_running():
            await self._pause(RENEW_SECONDS)
            for rollout, names in list(self._named.values()):
                # A successor may not have named those that its predecessor opened.
                await self._keep(rollout, usual_trajectories(rollout) | names)

    async def _keep(self, rollout: Rollout, names: Iterable[str]) -> None:
        try:
            await self._renew(rollout, names)
        except TangramError as error:
            log.warning("the trajectories of %s are not renewed: %s", rollout.id, error)

    async def _renew(self, rollout: Rollout, names: Iterable[str]) -> None:
        for name in sorted(names):
            await self._calls.send(
                TrajectoryRenewed(
                    project=rollout.project,
                    trajectory=name,
                    ttl_seconds=KEPT_SECONDS,
                    only_later=True,
                )
            )

    def _name(self, rollout: Rollout, *names: str) -> None:
        self._named.setdefault(rollout.id, (rollout, set()))[1].update(names)

    async def _unless_lost(
        self, rollout: Rollout, name: str, call: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the result of a call in a trajectory. Raises LostEnvironment where the trajectory has ended meanwhile."""
        try:
            return await self._calls.patiently(call)
        except CapacityError:
            raise
        except TangramError as error:
            if why := await self._why_over(rollout, name):
                raise LostEnvironment(f"{name}: {why}") from error
            raise

    async def _why_over(self, rollout: Rollout, name: str) -> str:
        """Return why a trajectory is not open any more; empty: it is open, or was never opened."""
        try:
            found = await self._trajectory(rollout, name)
        except NotFound:
            return ""
        return "" if found.state == "open" else str(found.detail or found.state)

    async def _is_lost(self, rollout: Rollout, name: str) -> bool:
        """Whether the environment of a trajectory is gone with its node. Waits while the node is only silent."""
        while True:
            try:
                found = await self._trajectory(rollout, name)
            except NotFound:
                return True
            if found.lost is True or found.silent is not True:
                return found.lost is True
            await self._pause(SILENT_SECONDS)

    async def _trajectory(self, rollout: Rollout, name: str) -> TrajectoryDetails:
        return await self._calls.patiently(partial(self._calls.native(rollout).trajectory, name))

    async def _is_open(self, rollout: Rollout, name: str) -> bool:
        """Whether a trajectory is open. Raises Conflict for one that has ended."""
        try:
            found = await self._calls.native(rollout).trajectory(name)
        except NotFound:
            return False
        if found.state != "open":
            raise Conflict(f"trajectory {name!r} is {found.state}")
        return True


class TunnelChannel:
    """The bytes of one connection to a server inside an environment (`rollout.ports.Channel`)."""

    def __init__(self, socket: NodeSocket, stack: AsyncExitStack) -> None:
        self._socket = socket
        self._stack = stack

    async def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises ConnectionError once the connection has ended."""
        try:
            if data:  # an empty message ends this direction
                await self._socket.send(data)
        except ConnectionClosed as error:
            raise ConnectionResetError(str(error)) from None

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""
        try:
            data = await self._socket.recv(decode=False)
        except ConnectionClosed:
            return b""
        return bytes(data)

    async def close(self) -> None:
        """Close it; may be repeated."""
        await self._stack.aclose()


def usual_trajectories(rollout: Rollout) -> set[str]:
    """Return the names of the trajectories of a rollout that lost no environment."""
    return {rollout.id, f"{rollout.id}-run", f"{rollout.id}-eval", lease_trajectory(rollout)}


def _end_of(view: ActionResponse, *, environment_lost: bool) -> ActionEnd:
    timing = view.timing
    return ActionEnd(
        id=view.id,
        outcome="" if view.outcome is None else view.outcome.value,
        result=view.result if isinstance(view.result, dict) else None,
        reward=view.reward,
        detail=view.detail or "",
        queue_seconds=timing.queue_seconds if timing else 0.0,
        execution_seconds=timing.execution_seconds if timing else 0.0,
        environment_lost=environment_lost,
    )
