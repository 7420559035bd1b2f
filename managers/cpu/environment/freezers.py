"""Freezers of environments: control groups in which the kernel runs no process until they are thawed.

A program can continue itself after SIGSTOP: by a timer, a change of a directory or the end of its parent that sends
SIGCONT. Nothing inside can thaw a group. Version 1 has a tree of its own for freezers: an environment has a group
there, which its processes enter when it is frozen first and never leave. In version 2 the group that contains
the processes of the environment anyway is frozen.

Only groups below our parent, named after the driver's key, are changed (I7).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from managers.cpu.cgroup_files import fields, find_mounts, group_paths, read, write

_PROCESSES: Final = "cgroup.procs"
_STATE: Final = "freezer.state"
#: Version 2.
_FREEZE: Final = "cgroup.freeze"
_EVENTS: Final = "cgroup.events"


class EnvironmentFreezer:
    """The group of one environment by which it is frozen."""

    def __init__(self, directory: Path, *, unified: bool = False) -> None:
        """``unified``: a group of version 2, which the processes are in already."""
        self._at = directory
        self._unified = unified

    def freeze(self, wanted: bool) -> None:
        """Freeze what is in the group and what enters it later, or thaw it. Raises OSError."""
        if self._unified:
            write(self._at / _FREEZE, "1" if wanted else "0")
        elif wanted:
            self._at.mkdir(exist_ok=True)
            write(self._at / _STATE, "FROZEN")
        else:
            with contextlib.suppress(FileNotFoundError):  # it was never frozen
                write(self._at / _STATE, "THAWED")

    def is_frozen(self) -> bool:
        """Say whether none of its processes runs any more, in the kernel neither. Raises OSError."""
        if self._unified:
            return fields(read(self._at / _EVENTS)).get("frozen") == 1
        return read(self._at / _STATE).strip() == "FROZEN"

    def take(self, pids: Collection[int]) -> bool:
        """Move processes into the group that are not there; return whether there were any. Raises OSError."""
        if self._unified:
            return False
        there = {int(pid) for pid in read(self._at / _PROCESSES).split()}
        missing = [pid for pid in pids if pid not in there]
        for pid in missing:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                write(self._at / _PROCESSES, str(pid))
        return bool(missing)

    def remove(self) -> bool:
        """Thaw and remove it; return whether it is gone. A group with processes stays."""
        if self._unified:
            return True
        try:
            self.freeze(False)
            self._at.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


class Freezers:
    """The freezers of one driver, in the tree of version 1."""

    def __init__(self, directory: Path) -> None:
        self._at = directory

    def of(self, name: str) -> EnvironmentFreezer:
        """Return the freezer of an environment, whose group is made when it is frozen first."""
        return EnvironmentFreezer(self._at / name)

    def thaw(self) -> None:
        """Thaw what a predecessor has left frozen."""
        for each in self._at.glob(f"*/{_STATE}"):
            with contextlib.suppress(OSError):  # it is being removed
                EnvironmentFreezer(each.parent).freeze(False)

    def clear(self, keep: Collection[str] = ()) -> None:
        """Thaw and remove the groups of environments that are not kept."""
        with contextlib.suppress(FileNotFoundError):
            for each in [each for each in self._at.iterdir() if each.is_dir()]:
                if each.name not in keep:
                    EnvironmentFreezer(each).remove()

    def close(self) -> None:
        """Remove the groups that are empty, and the parent if it is."""
        self.clear()
        with contextlib.suppress(OSError):
            self._at.rmdir()


def open_freezers(name: str, proc: Path = Path("/proc/self")) -> Freezers:
    """Make the parent ``name`` in the tree of freezers, and thaw what is in it.

    Raises OSError where this process may not.
    """
    root = find_mounts(("freezer",), proc / "mounts").by_controller.get("freezer")
    if root is None:
        raise OSError("there are no freezers of control groups version 1")
    own = root / group_paths((proc / "cgroup").read_text()).get("freezer", "").lstrip("/")
    problem = OSError(f"{own} is no control group")
    for place in dict.fromkeys(each for each in (own, root) if each.is_dir()):
        try:
            (place / name).mkdir(exist_ok=True)
            freezers = Freezers(place / name)
            trial = freezers.of("trial")
            trial.freeze(True)
            # Entering must be permitted, which opening for writing checks.
            os.close(os.open(place / name / "trial" / _PROCESSES, os.O_WRONLY | os.O_CLOEXEC))
            trial.remove()
            freezers.thaw()
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                (place / name).rmdir()
        else:
            return freezers
    raise problem


def unified_freezer(directory: Path) -> EnvironmentFreezer | None:
    """Return the freezer of a group that contains an environment; None for a group of version 1."""
    unified = (directory / _FREEZE).exists()
    return EnvironmentFreezer(directory, unified=True) if unified else None
