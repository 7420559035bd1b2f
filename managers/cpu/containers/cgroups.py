"""Control groups of containers: cores, quota, processes and usage as files, versions 1 and 2.

All of it are single reads and writes of some ten microseconds, so they happen in the event loop.
Version 1 has a tree for each controller, version 2 one for all; `ControlGroup` hides which.

Source of names: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managers.cpu.cpulist import parse_cpu_list

PERIOD_MICROSECONDS: Final = 100_000
#: The least that the kernel takes as quota.
LEAST_QUOTA_MICROSECONDS: Final = 1000

#: Weights of groups on the same cores, in the kernel's version 1 and in the engine's words.
NORMAL_SHARES: Final = 1024
LEAST_SHARES: Final = 2


@dataclass(frozen=True)
class Usage:
    """What a group has used since it was made, and the most memory since `reset_peak`."""

    cpu_seconds: float
    throttled_seconds: float
    peak_memory_bytes: int
    oom_kills: int


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
        """Let it give way to all groups beside it on the same cores, or be one among them."""

    @abstractmethod
    def processes(self) -> list[int]:
        """Return the ids of its processes, as this machine numbers them."""

    @abstractmethod
    def freeze(self, frozen: bool) -> None:
        """Ask for all its processes to stop, or to go on."""

    @abstractmethod
    def is_frozen(self) -> bool:
        """Say whether all of them have stopped."""

    @abstractmethod
    def process_count(self) -> int:
        """Return how many there are, the dead that nobody waited for included."""

    @abstractmethod
    def set_process_limit(self, limit: int | None) -> None:
        """Allow at most so many processes; None: any number."""

    @abstractmethod
    def usage(self) -> Usage:
        """Return what it has used."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Measure the most memory from now on, where the kernel can."""


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
        return [int(pid) for pid in read(self._at["freezer"] / "cgroup.procs").split()]

    def freeze(self, frozen: bool) -> None:
        write(self._at["freezer"] / "freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        return read(self._at["freezer"] / "freezer.state").strip() == "FROZEN"

    def process_count(self) -> int:
        return int(read(self._at["pids"] / "pids.current"))

    def set_process_limit(self, limit: int | None) -> None:
        write(self._at["pids"] / "pids.max", "max" if limit is None else str(limit))

    def usage(self) -> Usage:
        throttled = _fields(read(self._at["cpu"] / "cpu.stat")).get("throttled_time", 0)
        memory = self._at["memory"]
        return Usage(
            int(read(self._at["cpuacct"] / "cpuacct.usage")) / 1e9,
            throttled / 1e9,
            int(read(memory / "memory.max_usage_in_bytes")),
            _fields(read(memory / "memory.oom_control")).get("oom_kill", 0),
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
        return [int(pid) for pid in read(self._at / "cgroup.procs").split()]

    def freeze(self, frozen: bool) -> None:
        write(self._at / "cgroup.freeze", "1" if frozen else "0")

    def is_frozen(self) -> bool:
        return _fields(read(self._at / "cgroup.events")).get("frozen") == 1

    def process_count(self) -> int:
        return int(read(self._at / "pids.current"))

    def set_process_limit(self, limit: int | None) -> None:
        write(self._at / "pids.max", "max" if limit is None else str(limit))

    def usage(self) -> Usage:
        cpu = _fields(read(self._at / "cpu.stat"))
        peak = _read_if_there(self._at / "memory.peak") or read(self._at / "memory.current")
        return Usage(
            cpu.get("usage_usec", 0) / 1e6,
            cpu.get("throttled_usec", 0) / 1e6,
            int(peak),
            _fields(read(self._at / "memory.events")).get("oom_kill", 0),
        )

    def reset_peak(self) -> None:
        # Linux 6.12 resets it for the descriptor that wrote, and for no other reader: of no use
        # here. The peak is then that of the environment's life, which never says too little.
        return


def cpu_list(cpus: frozenset[int]) -> str:
    """Return CPUs in the kernel's notation."""
    return ",".join(map(str, sorted(cpus)))


def quota_microseconds(milli: int) -> int:
    """Return the part of a period that ``milli`` thousandths of a core are."""
    return max(LEAST_QUOTA_MICROSECONDS, milli * PERIOD_MICROSECONDS // 1000)


def _fields(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read(path: Path) -> str:
    """Return the content of a small file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
        return b"".join(chunks).decode()
    finally:
        os.close(descriptor)


def _read_if_there(path: Path) -> str:
    try:
        return read(path)
    except FileNotFoundError:
        return ""


def write(path: Path, text: str) -> None:
    """Write to a file of the kernel: once, and nothing before or after."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
