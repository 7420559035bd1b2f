"""Files and ports of the environments of one driver, as the node door reaches them.

While an environment runs, its files are the tree that its programs see, through the root of one of its processes:
a layer of an overlay must not be changed behind its mount, and only the root has the whole tree. While it does not
run, its tree is opened by itself where it has layers, else its workspace is reached in its folder. Ports need an environment that runs.

The root and the network are opened for each operation, and belong to the environment if its process still lives after
that: an id that is used again by another process never opens that one's root.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from domain.confinement import NETWORK_EGRESS
from domain.errors import NotFound, Unavailable
from domain.ids import TrajectoryKey
from managers.cpu.disk_watch import DiskWatch
from managers.cpu.environment.protocol import LivingEnvironment
from managers.cpu.files.file_tree import read_whole, write_whole
from managers.cpu.files.place import TreePlace
from managers.cpu.files.resolution import PathScope
from managers.cpu.files.tree_transfers import OpenTrees, TreeTransfers
from managers.cpu.ports.connector import EnvironmentNetwork, PortConnector
from managers.cpu.workspaces import Workspaces

#: Uids of an environment on a node with uids for environments (`managers.cpu.process.uid_ranges`).
ENVIRONMENT_UIDS: Final = 65_536


@dataclass(frozen=True)
class RunningTree:
    """An environment that runs: the root and the network of one of its processes."""

    #: Host id of the process, and whether it is still the one of the environment.
    pid: int
    is_alive: Callable[[], bool]
    #: Returns the host ids of all its processes. Raises OSError when it has ended.
    processes: Callable[[], Iterable[int]]
    #: Host uid of its root user, None for the worker's; and the number of its uids.
    uid: int | None = None
    uids: int = 1
    #: It reaches hosts through the node's proxy.
    has_egress: bool = False
    #: Loopback address of its own; empty: it has the usual one.
    address: str = ""

    def open_root(self) -> int:
        """Return a descriptor of its root. Raises Unavailable when it has ended."""
        try:
            root = os.open(f"/proc/{self.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the environment has no files now: {error.strerror}") from error
        if not self.is_alive():
            os.close(root)
            raise Unavailable("the environment has ended meanwhile; try again")
        return root


class DoorAccess:
    """Access from outside to the environments of one driver."""

    def __init__(
        self,
        workspaces: Workspaces,
        disk: DiskWatch,
        find_running: Callable[[TrajectoryKey], RunningTree | None],
        resting_root: Callable[[Path], Callable[[], int] | None] = lambda _: None,
    ) -> None:
        self._workspaces = workspaces
        self._disk = disk
        self._find_running = find_running
        #: Returns what opens the tree of an environment that does not run; None: it has only a workspace.
        self._resting_root = resting_root
        self._trees = OpenTrees()
        #: Sockets in the networks of environments.
        self.ports = PortConnector()

    def files_of(
        self,
        trajectory: TrajectoryKey,
        folder: Path,
        declared_bytes: int = 0,
        watched: Path | None = None,
    ) -> TreeTransfers:
        """Return the files of an environment, whose ``folder`` exists. Blocks.

        ``watched``: the path by which its disk is watched, where that is not the folder.
        """
        room = self._disk.room(watched or folder, declared_bytes)
        running = self._find_running(trajectory)
        if running is not None:
            place = TreePlace(running.open_root, PathScope.ROOT, running.uid, room, running.uids)
            return self._trees.of(folder.name, place)
        owners = self._workspaces.owners
        uid = None if owners is None else owners.own(folder)
        open_root = self._resting_root(folder)
        if open_root is not None:
            uids = 1 if owners is None else ENVIRONMENT_UIDS
            place = TreePlace(open_root, PathScope.ROOT, uid, room, uids)
        else:
            place = TreePlace.folder(self._workspaces.files(folder), uid, room)
        return self._trees.of(folder.name, place)

    def files(self, trajectory: TrajectoryKey) -> TreeTransfers:
        """Return the files of an environment. Raises NotFound with code ``not_here``. Blocks."""
        return self.files_of(trajectory, self._workspaces.existing(trajectory))

    def put(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a small file, into a folder that is made if missing. Blocks."""
        write_whole(self.files_of(trajectory, self._workspaces.ensure(trajectory)), path, content)

    def get(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a small file. Blocks."""
        return read_whole(self.files(trajectory), path, limit_bytes)

    async def connect_port(self, trajectory: TrajectoryKey, port: int) -> int:
        """Return the descriptor of a socket that is connected to a port of an environment that runs."""
        running = self._find_running(trajectory)
        if running is None:
            raise NotFound(f"{trajectory} has no environment that runs here", code="not_here")
        network = EnvironmentNetwork(
            running.pid, running.is_alive, running.processes, running.has_egress, running.address
        )
        name = self._workspaces.of(trajectory).name
        return (await self.ports.connect(name, network, port)).detach()

    async def end(self, name: str) -> None:
        """End what is open of an environment that is about to end; an unknown one is ignored.

        ``name``: that of its folder.
        """
        self.ports.end(name)
        await self._trees.end(name)

    async def close(self) -> None:
        """End everything."""
        self.ports.close()
        await self._trees.close()


def tree_of(
    find: Callable[[TrajectoryKey], LivingEnvironment | None], trajectory: TrajectoryKey
) -> RunningTree | None:
    """Return the tree of a trajectory's living environment; None while it does not run."""
    living = find(trajectory)
    if living is None:
        return None
    return RunningTree(
        living.pid,
        partial(_is_alive, living),
        lambda: [each.pid for each in living.processes()],
        living.uid,
        1 if living.uid is None else ENVIRONMENT_UIDS,
        living.spec.network == NETWORK_EGRESS,
        getattr(living, "address", ""),  # some kinds of environments have none
    )


def _is_alive(living: LivingEnvironment) -> bool:
    """Say whether the init of an environment still lives, whatever its process id is used for."""
    waiting = select.poll()
    try:
        waiting.register(living.pidfd, select.POLLIN)
        return not waiting.poll(0)
    except (OSError, ValueError):  # its descriptor is closed: it has ended
        return False


def is_in_container(pid: int, container: str, proc: Path = Path("/proc")) -> bool:
    """Say whether a process belongs to a container, by the path of its control group."""
    try:
        return container in (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return False
