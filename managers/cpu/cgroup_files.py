"""Files of control groups, versions 1 and 2: where they are mounted, and how they are read and written.

Each access takes some ten microseconds, so it may happen in the event loop. Version 1 has a tree for
each controller, version 2 one tree for all.

In a job of Slurm the groups are Slurm's, and none is made: it ends what is in the groups of the job, and does not look
below them nor elsewhere. So all that a node worker starts stays in the job, ends with it, and counts to its memory and cores.

Source of names: the kernel's Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Slurm sets it in all processes of a job.
SLURM_JOB: Final = "SLURM_JOB_ID"


@dataclass(frozen=True)
class MountPoints:
    """Mount points of control groups."""

    #: Version 1: controller → mount point; empty for version 2.
    by_controller: Mapping[str, Path]
    unified: Path | None
    #: All of them, also those of other controllers.
    mounted: tuple[Path, ...]


def find_mounts(controllers: Collection[str], mounts: Path) -> MountPoints:
    """Return the mount points that ``mounts`` (``/proc/self/mounts``) lists. Raises OSError, in a job of Slurm always."""
    if job := os.environ.get(SLURM_JOB):
        raise OSError(f"those of job {job} are Slurm's")
    by_controller: dict[str, Path] = {}
    unified: Path | None = None
    mounted: list[Path] = []
    for line in mounts.read_text().splitlines():
        _, at, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            mounted.append(Path(at))
        if kind == "cgroup":
            for option in options.split(","):
                if option in controllers:
                    by_controller.setdefault(option, Path(at))
        elif kind == "cgroup2" and unified is None:
            unified = Path(at)
    return MountPoints(by_controller, unified, tuple(mounted))


def group_paths(text: str) -> dict[str, str]:
    """Return controller → path of ``/proc/<pid>/cgroup``; version 2 has the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def read(path: Path | str) -> str:
    """Return the content of a small file of the kernel; several times as fast as `Path.read_text`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        chunks = []
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
        return b"".join(chunks).decode(errors="replace")
    finally:
        os.close(descriptor)


def read_if_there(path: Path | str) -> str:
    """Return the content of a small file; empty when it is missing."""
    try:
        return read(path)
    except FileNotFoundError:
        return ""


def write(path: Path | str, text: str) -> None:
    """Write to a file of the kernel in one call."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def fields(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
