"""Memory groups: control groups that limit the memory of environments on this node.

Theory of operation. The driver has one parent group, named after its key; its limit is what the node
has for environments, so that all actions together cannot exhaust the machine. Below it each environment
has a group of its own with its declared bytes, or the default. A command enters its group before it
becomes the command (`MemoryGroup.entrance`), so all its processes are in it, and files on its tmpfs
count as its memory. When the limit is reached, the kernel kills a process of this group and no other.

Rules
1. Only groups below our parent are changed or removed, and only processes in them are ended (I7).
2. A group lives as long as its environment: caches of its files are charged to it, and are freed when
   these files are deleted.
3. Swap counts: an environment cannot pass its limit by swapping.

Where groups cannot be made, `open_memory_groups` raises OSError with the reason. In version 2 a group
that has processes cannot divide its memory: the parent is then made beside the worker's group (systemd:
``Delegate=memory pids`` with ``DelegateSubgroup=``), or at the root of the tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managers.cpu.cgroup_files import fields, find_mounts, group_paths, read, read_if_there, write

#: A smaller limit could not hold the shell that starts a command.
LEAST_BYTES: Final = 32 * 2**20
#: Part of the machine's memory that environments together leave to all else, and the least of it.
_LEFT_SHARE: Final = 16
_LEFT_BYTES: Final = 256 * 2**20
#: Part of the environments' memory that one of them may use if it declares nothing.
_DEFAULT_SHARE: Final = 2
#: Part of the environments' memory that one tmpfs may hold, and the most of it.
_TMPFS_SHARE: Final = 8
_MOST_TMPFS_BYTES: Final = 4 * 2**30
#: Part of its limit from which a group counts as having reached it.
_NEAR: Final = 0.9
_PATIENCE_SECONDS: Final = 10.0
_TRIAL_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.005


@dataclass(frozen=True)
class MemoryLimits:
    """Limits on the memory of environments, in bytes."""

    #: Of an environment that declares no memory.
    default_bytes: int
    #: Of all environments together.
    total_bytes: int

    @classmethod
    def of(cls, real_bytes: int, offered_bytes: int, default_bytes: int = 0) -> MemoryLimits:
        """Return the limits of a node that offers ``offered_bytes`` of its ``real_bytes``."""
        left = max(_LEFT_BYTES, real_bytes // _LEFT_SHARE)
        total = max(LEAST_BYTES, min(offered_bytes, real_bytes - left))
        return cls(min(default_bytes or total // _DEFAULT_SHARE, total), total)

    @property
    def tmpfs_bytes(self) -> int:
        """Size of each tmpfs of an environment, which is memory as well."""
        return min(_MOST_TMPFS_BYTES, self.total_bytes // _TMPFS_SHARE)

    def of_environment(self, declared_bytes: int) -> int:
        """Return the limit of an environment that declares so many bytes (0: none)."""
        return max(LEAST_BYTES, declared_bytes or self.default_bytes)


@dataclass(frozen=True)
class _Files:
    """Names of the files of one version of control groups."""

    limit: str
    swap: str
    #: Limits of version 1 on memory and swap are one number for both.
    swap_counts_memory: bool
    peak: str
    events: str
    usage: str
    reclaim: str


_V1: Final = _Files(
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True, "memory.max_usage_in_bytes",
    "memory.oom_control", "memory.usage_in_bytes", "memory.force_empty",
)  # fmt: skip
_V2: Final = _Files(
    "memory.max", "memory.swap.max", False, "memory.peak", "memory.events", "memory.current",
    "memory.reclaim",
)  # fmt: skip


class MemoryGroup:
    """The group of one environment."""

    def __init__(self, directory: Path, files: _Files) -> None:
        self._at = directory
        self._files = files
        self._events = f"{directory}/{files.events}"
        #: Bytes that it may use; 0 until it is limited.
        self.limit_bytes = 0

    @property
    def entrance(self) -> Path:
        """The file to which a process writes ``0`` to enter."""
        return self._at / "cgroup.procs"

    def limit(self, limit_bytes: int) -> None:
        """Let it use at most so many bytes. Raises OSError."""
        if limit_bytes == self.limit_bytes:
            return
        swap = limit_bytes if self._files.swap_counts_memory else 0
        # Memory alone may never be above memory and swap, so a raise begins with the latter.
        for name, number in ((self._files.swap, swap), (self._files.limit, limit_bytes)):
            with contextlib.suppress(OSError):
                write(self._at / name, str(number))
        write(self._at / self._files.limit, str(limit_bytes))
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
            write(self._at / self._files.swap, str(swap))
        self.limit_bytes = limit_bytes

    def kills(self) -> int:
        """Return how many processes the kernel has killed because a limit was reached. Raises OSError."""
        return fields(read(self._events)).get("oom_kill", 0)

    def peak_bytes(self) -> int:
        """Return the most that it has used; 0 where the kernel does not tell. Raises OSError."""
        return int(read_if_there(self._at / self._files.peak) or "0")

    def reclaim(self) -> int:
        """Give back its page cache; return the bytes that were. Blocks, for a second per some GiB."""
        before = self.usage_bytes()
        # Version 2 fails with EAGAIN when it could not give back all; version 1 ignores the number.
        with contextlib.suppress(OSError):
            write(self._at / self._files.reclaim, str(before))
        return max(0, before - self.usage_bytes())

    def enter(self, pid: int) -> None:
        """Move a process there; what it has used stays counted where it was. Raises OSError when it has ended."""
        write(self.entrance, str(pid))

    def usage_bytes(self) -> int:
        """Return what it uses now."""
        return int(read_if_there(self._at / self._files.usage) or "0")

    def processes(self) -> list[int]:
        """Return the ids of its processes, those in groups of actions below included. Raises OSError."""
        pids = [int(pid) for pid in read(self.entrance).split()]
        for below in self._at.glob(f"*/**/{self.entrance.name}"):
            pids += [int(pid) for pid in read_if_there(below).split()]
        return pids

    def end(self, patience_seconds: float = _PATIENCE_SECONDS) -> int:
        """Kill its processes until none is left; return how many there were. Blocks."""
        deadline = time.monotonic() + patience_seconds
        ended: set[int] = set()
        while (pids := self.processes()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended.update(pids)
            time.sleep(_PAUSE_SECONDS)  # the kernel does not notify of a set's end
        return len(ended)

    def remove(self) -> bool:
        """Remove it; return whether it is gone. A group with processes stays."""
        try:
            for below in self._at.glob(f"*/{self.entrance.name}"):
                below.parent.rmdir()
            self._at.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class MemoryGroups:
    """The groups of one driver."""

    def __init__(self, parent: MemoryGroup, directory: Path) -> None:
        self._parent = parent
        self._at = directory
        self._groups: dict[str, MemoryGroup] = {}

    @property
    def directory(self) -> Path:
        """The parent's directory."""
        return self._at

    def of(self, name: str, limit_bytes: int) -> MemoryGroup:
        """Return the group of an environment, made if missing, with this limit. Raises OSError."""
        group = self._groups.get(name)
        if group is None:
            directory = self._at / name
            directory.mkdir(exist_ok=True)
            group = self._groups[name] = MemoryGroup(directory, self._parent._files)
        group.limit(limit_bytes)
        return group

    def rename(self, former: str, name: str) -> None:
        """Give a group another name. Raises OSError where the kernel renames none (version 2)."""
        (self._at / former).rename(self._at / name)
        known = self._groups.pop(former, None)
        self._groups[name] = MemoryGroup(self._at / name, self._parent._files)
        if known is not None:
            self._groups[name].limit_bytes = known.limit_bytes

    def reclaim(self, name: str) -> int:
        """Give back the page cache of an environment; return the bytes that were. Blocks."""
        group = self._groups.get(name)
        return 0 if group is None else group.reclaim()

    def remove(self, name: str) -> None:
        """Remove the group of an environment, if there is one."""
        group = self._groups.pop(name, None)
        if group is not None:
            group.remove()

    def clear(self, keep: Collection[str] = ()) -> int:
        """End all processes below our parent, and remove the groups; return how many ended. Blocks.

        Environments with a name in ``keep`` stay.
        """
        ended = 0
        with contextlib.suppress(FileNotFoundError):
            below = [each for each in self._at.iterdir() if each.is_dir()]
            for directory in [each for each in below if each.name not in keep]:
                group = MemoryGroup(directory, self._parent._files)
                ended += group.end()
                group.remove()
        self._groups.clear()
        return ended

    def close(self) -> None:
        """Remove all groups that are empty, and the parent. Blocks."""
        for name in list(self._groups):
            self.remove(name)
        self._parent.remove()


def describe_kills(kills: int, peak_bytes: int, limit_bytes: int) -> str:
    """Return how often the kernel killed in a group with this limit and this peak, and the cure."""
    times = "once" if kills == 1 else f"{kills} times"
    killed = f"the kernel killed {times} for lack of memory"
    # A group that never came near its limit lost a process to that of all environments together.
    if 0 < peak_bytes < limit_bytes * _NEAR:
        return f"{killed}: all environments of this node together reached the limit of the node"
    return (
        f"{killed}: the environment may use {limit_bytes} bytes,"
        " declare a higher environment.memory_bytes"
    )


def watch_kills(group: MemoryGroup | None) -> Callable[[], str]:
    """Return a function that describes what the kernel has killed in a group since now; empty: nothing."""
    if group is None:
        return str
    try:
        before = group.kills()
    except OSError:
        return str

    def since() -> str:
        with contextlib.suppress(OSError):
            if kills := group.kills() - before:
                return describe_kills(kills, group.peak_bytes(), group.limit_bytes)
        return ""

    return since


def open_memory_groups(
    name: str, total_bytes: int, keep: Collection[str] = (), proc: Path = Path("/proc/self")
) -> MemoryGroups:
    """Make the parent ``name``, end what a predecessor left in it, and try it. Blocks.

    Environments with a name in ``keep`` stay.

    Raises OSError with the reason when this process may not make limited groups.
    """
    files, places = _places(proc)
    problem = "there is no memory controller"
    for place in places:
        directory = place / name
        try:
            _make_parent(directory, files)
            parent = MemoryGroup(directory, files)
            groups = MemoryGroups(parent, directory)
            groups.clear(keep)
            parent.limit(total_bytes)
            _try(groups)
        except OSError as error:
            problem = f"{directory}: {error.strerror or error}"
            with contextlib.suppress(OSError):
                directory.rmdir()
        else:
            return groups
    raise OSError(problem)


def _places(proc: Path) -> tuple[_Files, list[Path]]:
    """Return the directories in which a parent may be made, the best first."""
    mounts = find_mounts(("memory",), proc / "mounts")
    paths = group_paths((proc / "cgroup").read_text())
    root = mounts.by_controller.get("memory")
    if root is not None:
        own = root / paths.get("memory", "").lstrip("/")
        return _V1, [each for each in (own, root) if each.is_dir()]
    root = mounts.unified
    if root is None or "memory" not in read_if_there(root / "cgroup.controllers").split():
        return _V2, []
    own = root / paths.get("", "").lstrip("/")
    beside = [own.parent] if own != root else []
    return _V2, [each for each in (own, *beside, root) if each.is_dir()]


def _make_parent(directory: Path, files: _Files) -> None:
    directory.mkdir(exist_ok=True)
    if files is _V2:
        for each in (directory.parent, directory):
            for controller in ("memory", "pids"):
                _divide(each / "cgroup.subtree_control", controller)


def _divide(control: Path, controller: str) -> None:
    """Let groups below have limits of their own. Raises OSError for memory alone: without it the rest is of no use."""
    if controller in read(control).split():
        return
    try:
        write(control, f"+{controller}")
    except OSError:
        if controller == "memory":
            raise


def _try(groups: MemoryGroups) -> None:
    """Let a process enter a limited group. Raises OSError when it does not get there."""
    group = groups.of("trial", LEAST_BYTES)
    try:
        script = 'echo 0 >"$1" && grep -q /trial /proc/self/cgroup'
        entered = subprocess.run(
            ["/bin/sh", "-c", script, "sh", group.entrance], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False,
        )  # fmt: skip
        if entered.returncode != 0:
            raise OSError(entered.stderr.strip() or "a process cannot enter a new group")
    except subprocess.TimeoutExpired as error:
        raise OSError("a process cannot enter a new group") from error
    finally:
        groups.remove("trial")
