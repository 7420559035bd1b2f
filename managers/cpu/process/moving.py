"""Moves of kept environments: what has no program, no session and nothing in memory is packed as a snapshot, and begins from it elsewhere.

A snapshot has the files of the tree. So an environment is refused, with a code of `domain.moves`, while it has anything else: a
program, a session (an ended one is asked for its exit status), files in a tmpfs, a disk of its own, or a request that uses it. The node
worker holds off what arrives later.

Nodes move environments where a sandbox gives each of them a whole tree, and where there is no sandbox: then an environment is its
workspace, programs end with their action, and one that did not is seen by the files that it has open. A sandbox without whole trees
has files in memory that no snapshot has, so nothing is moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from domain.action import EnvironmentSpec
from domain.decisions import ForkEnvironment, MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, InvalidRequest
from domain.ids import TrajectoryKey
from domain.moves import IN_MEMORY, IN_USE, OWN_DISK, PROCESS, SESSION, packed_name
from managers.common.removals import Removals
from managers.cpu.environment.in_memory import place_in_memory
from managers.cpu.environment.move_limits import check_size
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.process.isolation import Isolation
from managers.cpu.process.sessions import ProcessSessions
from managers.cpu.tree.layers import TreeRecord
from managers.cpu.tree.occupants import users_of
from managers.cpu.tree.snapshot_keeper import SnapshotKeeper
from managers.cpu.tree.trees import Trees
from managers.cpu.workspaces import Workspaces


class ProcessMoving:
    """The moves of one process driver (`domain.ports.moves.EnvironmentMoving`)."""

    def __init__(
        self,
        workspaces: Workspaces,
        trees: Trees,
        isolation: Isolation,
        snapshots: SnapshotKeeper,
        sessions: ProcessSessions,
        removals: Removals,
        running: Callable[[TrajectoryKey], LivingEnvironment | None],
        wake: Callable[[TrajectoryKey], Awaitable[None]],
        make: Callable[[TrajectoryKey, EnvironmentSpec], Awaitable[object]],
    ) -> None:
        """``wake``: continues an idle environment, and raises Conflict for one that acts. ``make``: makes and starts an environment."""
        self._workspaces = workspaces
        self._trees = trees
        self._isolation = isolation
        self._snapshots = snapshots
        self._sessions = sessions
        self._removals = removals
        self._running = running
        self._wake = wake
        self._make = make

    @property
    def works(self) -> bool:
        """Whether environments can be moved from and to this node, known once the driver is open."""
        if self._isolation.sandbox is None:
            return True
        return self._trees.everywhere and self._trees.has_layers

    async def pack(self, order: MoveEnvironment) -> None:
        """Store the files of an environment under the name of its move. Raises Conflict with a code of `domain.moves`."""
        trajectory = order.trajectory
        if self._removals.is_used(trajectory):
            raise Conflict("a request uses the environment", code=IN_USE)
        await self._wake(trajectory)
        folder = await asyncio.to_thread(self._workspaces.ensure, trajectory)
        if self._workspaces.disk_bytes(folder):
            raise Conflict("the environment has a disk of its own", code=OWN_DISK)
        if self._isolation.sandbox is None and (users := await asyncio.to_thread(users_of, folder)):
            raise Conflict(f"programs use it: {', '.join(users[:3])}", code=PROCESS)
        self._check_quiet(trajectory)
        layers = self._trees.layers_of(folder)
        await asyncio.to_thread(check_size, layers, order.most_bytes)
        name = packed_name(trajectory, order.number)
        fork = ForkEnvironment(
            trajectory, order.node, (), request_id="", reply_to="", environment=order.environment,
            project=order.project, snapshot=name,
        )  # fmt: skip
        try:
            await self._snapshots.take(fork)
        except Conflict as error:
            code = PROCESS if error.code == "busy_environment" else error.code
            raise Conflict(str(error), code=code) from error

    def _check_quiet(self, trajectory: TrajectoryKey) -> None:
        """Raise Conflict while something lives in an environment that would not be in its snapshot."""
        living = self._running(trajectory)
        if living is None:
            return
        if self._sessions.service.all(trajectory):
            raise Conflict("the environment has a session", code=SESSION)
        if programs := living.processes():
            named = ", ".join(each.command for each in programs[:3])
            raise Conflict(f"{len(programs)} programs run in it: {named}", code=PROCESS)
        if place := place_in_memory(living.root):
            raise Conflict(f"the environment has files in {place}, in memory", code=IN_MEMORY)

    async def receive(
        self, order: ReceiveEnvironment, archive: AsyncGenerator[bytes, None]
    ) -> None:
        """Begin an environment with what the source has packed, and start it."""
        trajectory, spec = order.trajectory, order.environment or EnvironmentSpec()
        async with self._removals.using(trajectory):
            name = packed_name(trajectory, order.number)
            await self._snapshots.begin_with(trajectory, name, archive, self._check_image)
        await self._make(trajectory, spec)

    def _check_image(self, record: TreeRecord) -> None:
        stack = record.stack
        if stack.is_image and not self._trees.images.has(stack.lowest):
            raise InvalidRequest(f"this node does not have image {record.image!r}")
