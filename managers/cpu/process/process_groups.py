"""Process groups: a control group for the processes of each action, where the worker can write them.

A process cannot leave its group, whatever it does to its tag, session or parent, so the group names all
processes of an action. It also limits their number, together and not for each user as ``ulimit -u``.
A command enters before it becomes the command. At its end further forks are refused and what is left is
killed: by ``cgroup.kill`` in version 2, one process after another in version 1.

In version 1 the groups are in the tree of the controller ``pids``. In version 2 a process has one group
for all controllers, so the group of an action is below the memory group of its environment, if it has one.

The group of an action in a living environment is empty when the action has ended, as what it left is moved to the
background; it is then used for the next action, because making and removing one costs more than all else that is done with it.

Only groups below our parent, named after the driver's key, are changed, and only processes in them are
ended (I7). A new driver ends what its dead predecessor left in them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from managers.cpu.cgroup_files import find_mounts, group_paths, read, write

_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.005
_MOVING_ROUNDS: Final = 100
_ENVIRONMENT: Final = "environment-"
_CONTROL: Final = "cgroup.subtree_control"


class ProcessGroup:
    """The control group of one action."""

    def __init__(self, directory: Path) -> None:
        self._at = directory
        # Each action uses it; joining a `Path` takes as long as reading the file.
        self._processes = f"{directory}/cgroup.procs"
        self._limit: int | None = None
        #: Its action has ended and left nothing in it.
        self.is_spare = False

    @property
    def entrance(self) -> Path:
        """The file to which a process writes ``0`` to enter."""
        return Path(self._processes)

    def enter(self, pid: int) -> None:
        """Move a process there. Raises OSError when it has ended."""
        write(self._processes, str(pid))

    def limit(self, processes: int) -> None:
        """Let it have at most so many processes, where the controller is available."""
        if processes != self._limit:
            self._limit = processes
            with contextlib.suppress(OSError):
                write(f"{self._at}/pids.max", str(processes))

    def processes(self) -> list[int]:
        """Return the ids of its processes; none when it is gone."""
        try:
            return [int(pid) for pid in read(self._processes).split()]
        except OSError:
            return []

    def kill(self) -> None:
        """Refuse further forks, and send SIGKILL to its processes; those that it had may end later."""
        self.limit(0)
        try:
            write(self._at / "cgroup.kill", "1")
        except OSError:
            for pid in self.processes():
                # Without a check of the number: a process of the group keeps it until it is waited for.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove it; return whether it is gone. A group with processes stays."""
        try:
            self._at.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class EnvironmentGroup:
    """The groups of a living environment: one of each action, and one of all that runs beside and between them.

    Their parent limits the number of processes of the environment.
    """

    def __init__(self, directory: Path, processes: int) -> None:
        self.directory = directory
        self._processes = processes
        self.background = ProcessGroup(directory / "background")
        #: Empty groups of ended actions.
        self._spare: list[ProcessGroup] = []

    def make(self) -> None:
        """Make the groups. Raises OSError."""
        self.directory.mkdir(exist_ok=True)
        (self.directory / "background").mkdir(exist_ok=True)
        ProcessGroup(self.directory).limit(self._processes)

    def action(self, tag: int) -> ProcessGroup:
        """Return an empty group for an action, made if there is no spare one. Raises OSError."""
        if self._spare:
            group = self._spare.pop()
            group.is_spare = False
        else:
            directory = self.directory / f"action-{tag:x}"
            directory.mkdir(exist_ok=True)
            group = ProcessGroup(directory)
        group.limit(self._processes)
        return group

    def keep(self, group: ProcessGroup) -> bool:
        """Keep the group of an ended action for another one; return False where it may hold processes."""
        if group.is_spare:
            self._spare.append(group)
        return group.is_spare

    def retire(self, group: ProcessGroup) -> list[int]:
        """Move what an action has left to the background; return it. Repeated until a list is empty."""
        moved: dict[int, None] = {}
        for turn in range(_MOVING_ROUNDS):
            if not (pids := group.processes()):
                group.is_spare = True
                break
            if turn > _MOVING_ROUNDS // 2:
                group.limit(0)  # it forks faster than it is moved
            for pid in pids:
                with contextlib.suppress(OSError):
                    write(self.background.entrance, str(pid))
                    moved[pid] = None
        return list(moved)

    def processes(self) -> list[int]:
        """Return all processes of the environment."""
        groups = [ProcessGroup(each) for each in self.directory.glob("*/")]
        return [pid for group in groups for pid in group.processes()]

    def remove(self) -> bool:
        """Remove the groups; return whether they are gone. A group with processes stays."""
        left = [each for each in self.directory.glob("*/") if not ProcessGroup(each).remove()]
        return not left and ProcessGroup(self.directory).remove()


class ProcessGroups:
    """The groups of one driver."""

    def __init__(self, directory: Path, processes: int, *, one_tree: bool) -> None:
        self._at = directory
        self._processes = processes
        #: Version 2: groups are made below that of memory.
        self._one_tree = one_tree
        #: Groups whose processes had not all ended.
        self._waiting: list[ProcessGroup] = []

    def of(self, tag: int, memory: Path | None) -> ProcessGroup:
        """Make the group of an action; ``memory`` is the directory of its memory group. Raises OSError."""
        directory = self._parent(memory) / f"action-{tag:x}"
        directory.mkdir(exist_ok=True)
        group = ProcessGroup(directory)
        group.limit(self._processes)
        return group

    def environment(self, name: str, memory: Path | None) -> EnvironmentGroup:
        """Make the groups of a living environment, as `of`. Raises OSError."""
        group = EnvironmentGroup(self._parent(memory) / f"{_ENVIRONMENT}{name}", self._processes)
        group.make()
        return group

    def rename(self, former: str, name: str) -> None:
        """Give the groups of an environment another name. Raises OSError where the kernel renames none."""
        (self._at / f"{_ENVIRONMENT}{former}").rename(self._at / f"{_ENVIRONMENT}{name}")

    def _parent(self, memory: Path | None) -> Path:
        """Return where a group is made. In version 2 that group limits the number of processes as well."""
        if not self._one_tree or memory is None:
            return self._at
        ProcessGroup(memory).limit(self._processes)
        return memory

    def remove(self, group: ProcessGroup) -> None:
        """Remove the group of an ended action, later if a process is still ending."""
        self._waiting = [each for each in (*self._waiting, group) if not each.remove()]

    def clear(self, keep: Collection[str] = (), patience_seconds: float = _PATIENCE_SECONDS) -> int:
        """End all processes of a predecessor's actions; return how many there were. Blocks.

        Environments with a name in ``keep`` stay, without the action that ran in them.
        """
        deadline = time.monotonic() + patience_seconds
        ended: set[int] = set()
        kept = {f"{_ENVIRONMENT}{name}" for name in keep}
        for directory in _leftovers(self._at, kept):
            group = ProcessGroup(directory)
            while (pids := group.processes()) and time.monotonic() < deadline:
                ended.update(pids)
                group.kill()
                time.sleep(_PAUSE_SECONDS)  # the kernel does not notify of a set's end
            group.remove()
        return len(ended)

    def close(self) -> None:
        """Remove the groups that are empty, and the parent if it is. Blocks."""
        for group in self._waiting:
            group.remove()
        with contextlib.suppress(OSError):
            self._at.rmdir()


def open_process_groups(
    name: str, processes: int, keep: Collection[str] = (), proc: Path = Path("/proc/self")
) -> ProcessGroups:
    """Make the parent ``name`` and end what a predecessor left in it, but for environments to ``keep``. Blocks.

    ``processes`` limits each action. Raises OSError where this process may not make groups.
    """
    problem = OSError("there are no control groups of processes")
    one_tree, places = _places(proc)
    for place in places:
        groups = ProcessGroups(place / name, processes, one_tree=one_tree)
        try:
            (place / name).mkdir(exist_ok=True)
            if one_tree:
                divide_processes(place)
                divide_processes(place / name)
            groups.clear(keep)
            trial = groups.of(0, None)
            # Entering must be permitted, which opening for writing checks.
            os.close(os.open(trial.entrance, os.O_WRONLY | os.O_CLOEXEC))
            groups.remove(trial)
        except OSError as error:
            problem = error
            groups.close()
        else:
            return groups
    raise problem


def _leftovers(parent: Path, kept: Collection[str]) -> list[Path]:
    """Return the groups of actions, and of environments that are not ``kept``, those within others first."""
    found: list[Path] = []
    for place, names, _ in os.walk(parent, topdown=False):
        is_ending = os.path.basename(place).startswith(_ENVIRONMENT) and (
            os.path.basename(place) not in kept
        )
        found += [
            Path(place, name)
            for name in names
            if name.startswith("action-") or (is_ending and name == "background")
        ]
        if is_ending:
            found.append(Path(place))
    return found


def divide_processes(directory: Path) -> None:
    """Let groups below a group of version 2 have limits of their own on processes, where that is possible."""
    with contextlib.suppress(OSError):  # it may have processes, or no such controller
        if "pids" not in read(directory / _CONTROL).split():
            write(directory / _CONTROL, "+pids")


def _places(proc: Path) -> tuple[bool, list[Path]]:
    """Return whether there is one tree, and the directories in which a parent may be made."""
    mounts = find_mounts(("pids",), proc / "mounts")
    paths = group_paths((proc / "cgroup").read_text())
    root, one_tree = mounts.by_controller.get("pids"), False
    if root is None:
        if mounts.by_controller or mounts.unified is None:
            return False, []
        root, one_tree = mounts.unified, True
    own = root / paths.get("" if one_tree else "pids", "").lstrip("/")
    # A group of version 2 that has processes cannot divide what it has: then beside it.
    beside = [own.parent] if one_tree and own != root else []
    return one_tree, [each for each in (own, *beside, root) if each.is_dir()]
