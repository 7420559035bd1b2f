"""Occupants of an environment's tree: programs that could not follow when the tree changes under them.

When the root of a running environment is switched (`switch`), a program whose directory is ``/`` continues in
the new tree. One whose directory is below, or that has a directory open, stays in the former tree, which is
read-only then: the environment is busy. Regular files that are open for reading are no hindrance.

The shell of an idle session re-enters its directory on request, so it is no occupant.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

_MOUNT: re.Pattern[str] = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


class Occupant(NamedTuple):
    """A program that holds a directory of the tree."""

    pid: int
    command: str
    #: ``its directory`` or ``an open directory``, and its path inside the environment.
    holds: str

    @property
    def text(self) -> str:
        """Sentence for people."""
        return f"process {self.pid} ({self.command}) has {self.holds} in the tree"


def find_occupants(init: int, pids: Iterable[int], movable: Collection[int] = ()) -> list[Occupant]:
    """Return the occupants among the processes ``pids`` of the environment of process ``init``.

    ``movable``: processes that re-enter their directory by themselves. A process that ends meanwhile is left
    out. Raises PermissionError for one that cannot be examined. Takes some 0.1 ms for each process.
    """
    root = _mount_at(f"/proc/{init}/root")
    found = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            held = _held(pid, root, may_move=pid in movable)
            if held is not None:
                found.append(Occupant(pid, _command(pid), held))
    return found


def users_of(folder: Path) -> list[str]:
    """Return the programs of this machine, but for this one, that have a directory or a file below ``folder`` open. Blocks.

    Those of other users are not seen by a worker that is not root.
    """
    below, found = f"{os.path.realpath(folder)}/", []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it has ended, or is of another user
            handles = (f"/proc/{name}/fd/{each}" for each in os.listdir(f"/proc/{name}/fd"))
            if any(
                f"{_target(each)}/".startswith(below) for each in (f"/proc/{name}/cwd", *handles)
            ):
                found.append(f"process {name} ({_command(int(name))})")
    return found


def _target(link: str) -> str:
    """Return what a link of /proc says; empty where it is gone."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _held(pid: int, root: int, *, may_move: bool) -> str | None:
    """Return which directory of the mount ``root`` a process holds besides its top, if any."""
    place = f"/proc/{pid}/cwd"
    path = os.readlink(place)
    if not may_move and path != "/" and _mount_at(place) == root:
        return f"its directory {path}"
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            # It may be closed meanwhile; sockets and pipes cannot be followed.
            with contextlib.suppress(FileNotFoundError):
                if _is_directory(entry.path) and _mount_at(entry.path) == root:
                    return f"an open directory {os.readlink(entry.path)}"
    return None


def _is_directory(place: str) -> bool:
    return stat.S_ISDIR(os.stat(place).st_mode)


def _mount_at(place: str) -> int:
    """Return the id of the mount that a link of /proc leads to."""
    handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        found = _MOUNT.search(Path(f"/proc/self/fdinfo/{handle}").read_text())
    finally:
        os.close(handle)
    if found is None:  # Linux before 3.15
        raise PermissionError("the mounts of processes cannot be seen")
    return int(found[1])


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
