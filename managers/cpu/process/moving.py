"""Moves of kept environments: what has no program, no session and nothing in memory is packed as a snapshot, and begins from it elsewhere.

A snapshot has the files of the tree. So an environment is refused, with a code of `domain.moves`, while it has anything else: a
program, a session (an ended one is asked for its exit status), files in a tmpfs, a disk of its own, or a request that uses it. The node
worker holds off what arrives later.

Nodes move environments where commands run under bubblewrap and every environment has a whole tree: elsewhere a program of an earlier action might not be seen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.decisions import ForkEnvironment, MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, InvalidRequest
from domain.ids import TrajectoryKey
from domain.moves import IN_MEMORY, IN_USE, OWN_DISK, PROCESS, SESSION, TOO_LARGE, packed_name
from managers.common.removals import Removals
from managers.cpu.disk_use import exceeds
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.process.isolation import Isolation
from managers.cpu.process.sessions import ProcessSessions
from managers.cpu.tree.layers import TreeRecord
from managers.cpu.tree.snapshot_keeper import SnapshotKeeper
from managers.cpu.tree.trees import Trees
from managers.cpu.workspaces import Workspaces

#: Directories that may be in memory.
_IN_MEMORY: Final = (("dev", "shm"), ("tmp",), ("run",), ("var", "tmp"))
#: Files of an environment that an action waits for.
_MOST_FILES: Final = 4000
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        return self._isolation.name == "bwrap" and self._trees.everywhere and self._trees.has_layers

    async def pack(self, order: MoveEnvironment) -> None:
        """Store the files of an environment under the name of its move. Raises Conflict with a code of `domain.moves`."""
        trajectory = order.trajectory
        if self._removals.is_used(trajectory):
            raise Conflict("a request uses the environment", code=IN_USE)
        await self._wake(trajectory)
        folder = await asyncio.to_thread(self._workspaces.ensure, trajectory)
        if self._workspaces.disk_bytes(folder):
            raise Conflict("the environment has a disk of its own", code=OWN_DISK)
        self._check_quiet(trajectory)
        if order.most_bytes:
            await asyncio.to_thread(self._check_size, folder, order.most_bytes)
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
        if place := _in_memory(living.root):
            raise Conflict(f"the environment has files in {place}, in memory", code=IN_MEMORY)

    def _check_size(self, folder: Path, most_bytes: int) -> None:
        """Raise Conflict for an environment of more bytes, or of so many files that its copy takes as long. Blocks."""
        layers = self._trees.layers_of(folder)
        if exceeds(layers, most_bytes, _MOST_FILES):
            limits = f"{most_bytes} bytes or {_MOST_FILES} files"
            raise Conflict(f"the environment has more than {limits}", code=TOO_LARGE)

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


def _in_memory(root: Path) -> str:
    """Return a directory of a running environment that is in memory and not empty; empty: there is none. Follows no link."""
    top = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        device = os.fstat(top).st_dev
        for parts in _IN_MEMORY:
            handle = _opened(top, parts)
            if handle is None:
                continue
            try:
                if os.fstat(handle).st_dev != device and os.listdir(handle):
                    return "/" + "/".join(parts)
            finally:
                os.close(handle)
    finally:
        os.close(top)
    return ""


def _opened(top: int, parts: tuple[str, ...]) -> int | None:
    """Return a descriptor of a directory below ``top``; None where there is none."""
    handle = os.dup(top)
    for part in parts:
        try:
            deeper = os.open(part, _DIRECTORY, dir_fd=handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        handle = deeper
    return handle
