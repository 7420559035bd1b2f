"""Where control groups are mounted on this machine, and where those of our containers are in them.

A container's group is found by its first process and must lie below a parent that we made: below no
other do we write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managers.cpu.containers.cgroups import (
    ControlGroup,
    ControlGroupV1,
    ControlGroupV2,
    read,
    write,
)
from managers.cpu.cpulist import parse_cpu_list

#: What version 1 keeps in trees of their own, as far as we need it.
V1_CONTROLLERS: Final = ("cpuset", "cpu", "cpuacct", "freezer", "memory", "pids")


@dataclass(frozen=True)
class Trees:
    """Where control groups are mounted on this machine."""

    #: Version 1: controller → mount point; empty for version 2.
    by_controller: Mapping[str, Path]
    unified: Path | None
    #: Everything that is mounted: engines make groups in trees that we have no use for, too.
    mounted: tuple[Path, ...] = ()

    @classmethod
    def find(cls, mounts: Path = Path("/proc/self/mounts")) -> Trees:
        """Read the mounts of this machine."""
        by_controller: dict[str, Path] = {}
        unified: Path | None = None
        mounted: list[Path] = []
        for line in mounts.read_text().splitlines():
            _, at, kind, options, *_ = line.split()
            if kind in ("cgroup", "cgroup2"):
                mounted.append(Path(at))
            if kind == "cgroup":
                for option in options.split(","):
                    if option in V1_CONTROLLERS:
                        by_controller.setdefault(option, Path(at))
            elif kind == "cgroup2" and unified is None:
                unified = Path(at)
        return cls(by_controller, unified, tuple(mounted))

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
        paths = _paths_of((proc / str(pid) / "cgroup").read_text())
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
        """Make the group that our containers go below. Version 1 wants its cores spelled out."""
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
        """Remove the parent; while a container is in it, it stays."""
        for root in self.mounted:
            with contextlib.suppress(OSError):
                (root / parent.lstrip("/")).rmdir()

    def parent_cpus(self, parent: str) -> frozenset[int]:
        """Return the CPUs that containers below ``parent`` may get. Raises OSError."""
        if self.version == 1:
            file = self.by_controller["cpuset"] / parent.lstrip("/") / "cpuset.effective_cpus"
        elif self.unified is not None:
            file = self.unified / parent.lstrip("/") / "cpuset.cpus.effective"
        else:
            raise OSError("this machine has no control groups")
        return frozenset(parse_cpu_list(read(file)))


def _paths_of(text: str) -> dict[str, str]:
    """Return controller → path of ``/proc/<pid>/cgroup``; version 2 stands under the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def _below(root: Path, path: str, parent: str) -> Path:
    parts = Path(path).parts
    if parent.lstrip("/") not in parts or ".." in parts:
        raise OSError(f"control group {path!r} is not below {parent!r}")
    return root / path.lstrip("/")
