"""Control groups of containers: cores, quota, processes and usage as files, versions 1 and 2.

Each access is a read or write of some ten microseconds, so it happens in the event loop. Version 1 has
a tree for each controller, version 2 one for all; `ControlGroup` hides the difference. A container's
group is found by its first process and must be below a parent that we made: no other group is written.

Source of names: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managers.cpu.cgroup_files import (
    fields,
    find_mounts,
    group_paths,
    read,
    read_if_there,
    write,
)
from managers.cpu.topology import parse_cpu_list

PERIOD_MICROSECONDS: Final = 100_000
#: The least that the kernel takes as quota.
LEAST_QUOTA_MICROSECONDS: Final = 1000

_PROCESSES: Final = "cgroup.procs"
_STATE: Final = "freezer.state"
#: Name of the group of a container's processes that are frozen apart from the others.
_HELD: Final = "held"
#: Processes are listed so often to move them out of it; one that is not frozen yet may start another.
_MOVING_ROUNDS: Final = 10
#: Weights of groups on the same cores, in the kernel's version 1 and in the engine's words.
NORMAL_SHARES: Final = 1024
LEAST_SHARES: Final = 2


@dataclass(frozen=True)
class Usage:
    """Usage of a group since it was made, and its peak memory since `reset_peak`."""

    cpu_seconds: float
    throttled_seconds: float
    peak_memory_bytes: int
    oom_kills: int


def used_between(before: Usage | None, after: Usage | None) -> Usage | None:
    """Return the usage between two measurements; None without both."""
    if before is None or after is None:
        return None
    return Usage(
        after.cpu_seconds - before.cpu_seconds,
        after.throttled_seconds - before.throttled_seconds,
        after.peak_memory_bytes,
        after.oom_kills - before.oom_kills,
    )


class ControlGroup(ABC):
    """The control group of one container."""

    @abstractmethod
    def set_cpus(self, cpus: frozenset[int]) -> None:
        """Confine it to these CPUs."""

    @abstractmethod
    def effective_cpus(self) -> frozenset[int]:
        """Return the CPUs that it may really use."""

    @abstractmethod
    def set_quota(self, milli: int | None) -> None:
        """Limit it to so many thousandths of a core; None: no limit."""

    @abstractmethod
    def set_yielding(self, yielding: bool) -> None:
        """Give it the lowest weight on its cores, or the normal one."""

    @abstractmethod
    def processes(self) -> list[int]:
        """Return the ids of its processes, as this machine numbers them."""

    @abstractmethod
    def freeze(self, frozen: bool) -> None:
        """Freeze all its processes, or thaw them."""

    @abstractmethod
    def is_frozen(self) -> bool:
        """Say whether all its processes are frozen."""

    @property
    @abstractmethod
    def held(self) -> FrozenPart:
        """The part of its processes that is frozen while the others run."""

    @abstractmethod
    def process_count(self) -> int:
        """Return the number of its processes, zombies included."""

    @abstractmethod
    def set_process_limit(self, limit: int | None) -> None:
        """Allow at most so many processes; None: any number."""

    @abstractmethod
    def usage(self) -> Usage:
        """Return its usage."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Restart the measurement of peak memory, where the kernel supports it."""


class FrozenPart:
    """A group below that of a container: what is in it is frozen, and can be continued by nothing inside.

    It divides no resource: its processes count as those of the container.
    """

    def __init__(self, directory: Path, file: str, words: tuple[str, str]) -> None:
        """``file`` and ``words``: what freezes, and the text for frozen and thawed."""
        self._at = directory
        self._file, self._words = file, words

    def hold(self, pids: Iterable[int]) -> None:
        """Move processes there, and freeze them; those that have ended are ignored. Raises OSError."""
        self._at.mkdir(exist_ok=True)
        write(self._at / self._file, self._words[0])
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                write(self._at / _PROCESSES, str(pid))

    def is_frozen(self) -> bool:
        """Say whether none of them runs any more. Raises OSError."""
        if self._file == _STATE:
            return read(self._at / _STATE).strip() == self._words[0]
        return fields(read(self._at / "cgroup.events")).get("frozen") == 1

    def processes(self) -> list[int]:
        """Return their ids."""
        return [int(pid) for pid in read_if_there(self._at / _PROCESSES).split()]

    def release(self) -> None:
        """Let them run, among the others again. Idempotent; nothing is done for a container that has ended.

        They are moved while they are frozen and can start none, each once: there may be processes that the kernel lists
        and does not move. Those are thawed where they are.
        """
        moved: set[int] = set()
        for _ in range(_MOVING_ROUNDS):
            with contextlib.suppress(OSError):
                if not (pids := set(self.processes()) - moved):
                    break
                moved |= pids
                for pid in pids:
                    with contextlib.suppress(OSError):
                        write(self._at.parent / _PROCESSES, str(pid))
        with contextlib.suppress(OSError):
            write(self._at / self._file, self._words[1])
            self._at.rmdir()


class ControlGroupV1(ControlGroup):
    """A group as one directory in the tree of each controller."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._at = directories

    def set_cpus(self, cpus: frozenset[int]) -> None:
        write(self._at["cpuset"] / "cpuset.cpus", cpu_list(cpus))

    def effective_cpus(self) -> frozenset[int]:
        return frozenset(parse_cpu_list(read(self._at["cpuset"] / "cpuset.effective_cpus")))

    def set_quota(self, milli: int | None) -> None:
        quota = -1 if milli is None else quota_microseconds(milli)
        write(self._at["cpu"] / "cpu.cfs_quota_us", str(quota))

    def set_yielding(self, yielding: bool) -> None:
        write(self._at["cpu"] / "cpu.shares", str(LEAST_SHARES if yielding else NORMAL_SHARES))

    def processes(self) -> list[int]:
        pids = [int(pid) for pid in read(self._at["freezer"] / _PROCESSES).split()]
        return pids + self.held.processes()

    def freeze(self, frozen: bool) -> None:
        write(self._at["freezer"] / _STATE, "FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        return read(self._at["freezer"] / _STATE).strip() == "FROZEN"

    @property
    def held(self) -> FrozenPart:
        return FrozenPart(self._at["freezer"] / _HELD, _STATE, ("FROZEN", "THAWED"))

    def process_count(self) -> int:
        return int(read(self._at["pids"] / "pids.current"))

    def set_process_limit(self, limit: int | None) -> None:
        write(self._at["pids"] / "pids.max", "max" if limit is None else str(limit))

    def usage(self) -> Usage:
        throttled = fields(read(self._at["cpu"] / "cpu.stat")).get("throttled_time", 0)
        memory = self._at["memory"]
        return Usage(
            int(read(self._at["cpuacct"] / "cpuacct.usage")) / 1e9,
            throttled / 1e9,
            int(read(memory / "memory.max_usage_in_bytes")),
            fields(read(memory / "memory.oom_control")).get("oom_kill", 0),
        )

    def reset_peak(self) -> None:
        write(self._at["memory"] / "memory.max_usage_in_bytes", "0")


class ControlGroupV2(ControlGroup):
    """A group as one directory."""

    def __init__(self, directory: Path) -> None:
        self._at = directory

    def set_cpus(self, cpus: frozenset[int]) -> None:
        write(self._at / "cpuset.cpus", cpu_list(cpus))

    def effective_cpus(self) -> frozenset[int]:
        return frozenset(parse_cpu_list(read(self._at / "cpuset.cpus.effective")))

    def set_quota(self, milli: int | None) -> None:
        quota = "max" if milli is None else str(quota_microseconds(milli))
        write(self._at / "cpu.max", f"{quota} {PERIOD_MICROSECONDS}")

    def set_yielding(self, yielding: bool) -> None:
        write(self._at / "cpu.weight", "1" if yielding else "100")

    def processes(self) -> list[int]:
        pids = [int(pid) for pid in read(self._at / _PROCESSES).split()]
        return pids + self.held.processes()

    def freeze(self, frozen: bool) -> None:
        write(self._at / "cgroup.freeze", "1" if frozen else "0")

    def is_frozen(self) -> bool:
        return fields(read(self._at / "cgroup.events")).get("frozen") == 1

    @property
    def held(self) -> FrozenPart:
        return FrozenPart(self._at / _HELD, "cgroup.freeze", ("1", "0"))

    def process_count(self) -> int:
        return int(read(self._at / "pids.current"))

    def set_process_limit(self, limit: int | None) -> None:
        write(self._at / "pids.max", "max" if limit is None else str(limit))

    def usage(self) -> Usage:
        cpu = fields(read(self._at / "cpu.stat"))
        peak = read_if_there(self._at / "memory.peak") or read(self._at / "memory.current")
        return Usage(
            cpu.get("usage_usec", 0) / 1e6,
            cpu.get("throttled_usec", 0) / 1e6,
            int(peak),
            fields(read(self._at / "memory.events")).get("oom_kill", 0),
        )

    def reset_peak(self) -> None:
        # Linux 6.12 resets it for the descriptor that wrote, and for no other reader: of no use
        # here. The peak is then that of the environment's life, which is never too low.
        return


def cpu_list(cpus: frozenset[int]) -> str:
    """Return CPUs in the kernel's notation."""
    return ",".join(map(str, sorted(cpus)))


def quota_microseconds(milli: int) -> int:
    """Return the quota of a period for ``milli`` thousandths of a core."""
    return max(LEAST_QUOTA_MICROSECONDS, milli * PERIOD_MICROSECONDS // 1000)


#: Controllers of version 1 that we need, each with a tree of its own.
V1_CONTROLLERS: Final = ("cpuset", "cpu", "cpuacct", "freezer", "memory", "pids")


@dataclass(frozen=True)
class CgroupMounts:
    """The mounted control groups of this machine."""

    #: Version 1: controller → mount point; empty for version 2.
    by_controller: Mapping[str, Path]
    unified: Path | None
    #: All mount points: engines make groups also in trees that we do not use.
    mounted: tuple[Path, ...] = ()

    @classmethod
    def find(cls, mounts: Path = Path("/proc/self/mounts")) -> CgroupMounts:
        """Read the mounts of this machine."""
        found = find_mounts(V1_CONTROLLERS, mounts)
        return cls(found.by_controller, found.unified, found.mounted)

    @property
    def version(self) -> int:
        """1 where controllers have trees of their own, else 2; 0 without any."""
        if "cpuset" in self.by_controller:
            return 1
        return 2 if self.unified is not None else 0

    def roots(self) -> list[Path]:
        """Return the roots in which a parent has to be made."""
        if self.version == 1:
            return sorted(set(self.by_controller.values()))
        return [self.unified] if self.unified is not None else []

    def group_of(self, pid: int, parent: str, proc: Path = Path("/proc")) -> ControlGroup:
        """Return the group of a process. Raises OSError when it is not below ``parent``."""
        paths = group_paths((proc / str(pid) / "cgroup").read_text())
        if self.version == 1:
            found = {
                name: _below(root, paths.get(name, ""), parent)
                for name, root in self.by_controller.items()
            }
            if missing := set(V1_CONTROLLERS) - found.keys():
                raise OSError(f"control groups lack {', '.join(sorted(missing))}")
            return ControlGroupV1(found)
        if self.unified is None:
            raise OSError("this machine has no control groups")
        directory = _below(self.unified, paths.get("", ""), parent)
        for name in ("cpuset.cpus", "cpu.max", "pids.max", "memory.events"):
            if not (directory / name).exists():
                raise OSError(f"{directory} has no {name}: its controller is not delegated")
        return ControlGroupV2(directory)

    def make_parent(self, parent: str) -> None:
        """Make the parent group of our containers. Version 1 needs its cores written explicitly."""
        for root in self.roots():
            directory = root / parent.lstrip("/")
            directory.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                with contextlib.suppress(FileNotFoundError):
                    if self.version == 1 and not read(directory / name).strip():
                        write(directory / name, read(root / name).strip())
        if self.version == 2 and self.unified is not None:
            wanted = "+cpuset +cpu +memory +pids"
            for directory in (self.unified, self.unified / parent.lstrip("/")):
                write(directory / "cgroup.subtree_control", wanted)

    def remove_parent(self, parent: str) -> None:
        """Remove the parent, unless a container is in it."""
        for root in self.mounted:
            with contextlib.suppress(OSError):
                (root / parent.lstrip("/")).rmdir()

    def parent_cpus(self, parent: str) -> frozenset[int]:
        """Return the CPUs that containers below ``parent`` may use. Raises OSError."""
        if self.version == 1:
            file = self.by_controller["cpuset"] / parent.lstrip("/") / "cpuset.effective_cpus"
        elif self.unified is not None:
            file = self.unified / parent.lstrip("/") / "cpuset.cpus.effective"
        else:
            raise OSError("this machine has no control groups")
        return frozenset(parse_cpu_list(read(file)))


def _below(root: Path, path: str, parent: str) -> Path:
    parts = Path(path).parts
    if parent.lstrip("/") not in parts or ".." in parts:
        raise OSError(f"control group {path!r} is not below {parent!r}")
    return root / path.lstrip("/")
