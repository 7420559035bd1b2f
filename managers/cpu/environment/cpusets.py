"""Cpusets of environments: the granted cores while a command acts, the shared ones for all else.

Each environment has two sets below one parent of the driver, ``acting`` and ``background``. Init, idle sessions and
background processes are in ``background``, which has the shared cores of the node and never a granted one. A
command enters ``acting`` before it becomes the command, so all its processes are there; what it leaves is moved
to ``background`` when it ends. A process cannot leave its set or run on other cores, whatever affinity it asks for.

Rules
1. A change of ``acting`` moves running processes at once; it is what a resize of an action does.
2. Processes are moved until a list of them is empty: a process that forks meanwhile is in the next list.
3. Only sets below our parent, named after the driver's key, are changed.
4. They ask for no balancing of their own: the set around them balances all its CPUs. Otherwise the kernel builds
   the scheduling domains of the machine again with each change of CPUs, which takes up to 40 ms beside other work.

The sets are those of control groups version 1. Without them, affinity is set from outside, and the filter
of system calls refuses `sched_setaffinity` (`managers.cpu.process.seccomp`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from managers.cpu.cgroup_files import find_mounts, group_paths, read, write

_ACTING: Final = "acting"
_BACKGROUND: Final = "background"
_PROCESSES: Final = "cgroup.procs"
_CPUS: Final = "cpuset.cpus"
_BALANCE: Final = "cpuset.sched_load_balance"
#: Rounds of moving what forks meanwhile. Chains of forks needed three.
_ROUNDS: Final = 100


class EnvironmentCores:
    """The two sets of one environment."""

    def __init__(self, directory: Path) -> None:
        self._at = directory
        # Each command of a session uses these files; joining a `Path` takes as long as reading one.
        self._acting_cpus = f"{directory}/{_ACTING}/{_CPUS}"
        self._acting_processes = f"{directory}/{_ACTING}/{_PROCESSES}"
        self._background_processes = f"{directory}/{_BACKGROUND}/{_PROCESSES}"
        #: Tag of each command that acts → its CPUs.
        self._granted: dict[int, frozenset[int]] = {}

    def grant(self, tag: int, cpus: frozenset[int]) -> None:
        """Let the command ``tag`` run on ``cpus``, and move it there if it runs. Raises OSError."""
        self._granted[tag] = cpus
        write(self._acting_cpus, _listed(frozenset().union(*self._granted.values())))

    def enter(self, pid: int, *, acting: bool) -> None:
        """Move a process. Raises OSError when it has ended."""
        write(self._acting_processes if acting else self._background_processes, str(pid))

    def retire(self, pids: Iterable[int]) -> None:
        """Move processes to the shared cores; those that have ended are ignored."""
        for pid in pids:
            with contextlib.suppress(OSError):
                self.enter(pid, acting=False)

    def leave(self, tag: int) -> None:
        """Record the end of a command. When no other one acts, all that is left is retired."""
        self._granted.pop(tag, None)
        for _ in range(_ROUNDS):
            if self._granted or not (left := self.acting()):
                break
            self.retire(left)

    @property
    def entrance(self) -> Path:
        """The file to which a process writes ``0`` to enter the shared cores."""
        return Path(self._background_processes)

    def resting(self) -> list[int]:
        """Return the processes on the shared cores."""
        return _members(self._background_processes)

    def acting(self) -> list[int]:
        """Return the processes on granted cores."""
        return _members(self._acting_processes)

    def remove(self) -> bool:
        """Remove both sets; return whether they are gone. A set with processes stays."""
        for directory in (self._at / _ACTING, self._at / _BACKGROUND, self._at):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


class CoreSets:
    """The sets of one driver."""

    def __init__(
        self, directory: Path, background: frozenset[int], memory_nodes: str, balance: str = "1"
    ) -> None:
        """``balance``: whether the kernel balances within each set by itself."""
        self._at = directory
        self._background = background
        self._memory_nodes = memory_nodes
        self._balance = balance

    def of(self, name: str) -> EnvironmentCores:
        """Return the sets of an environment, made if missing. Raises OSError."""
        directory = self._at / name
        for each in (directory, directory / _ACTING, directory / _BACKGROUND):
            if not each.is_dir():
                each.mkdir()
                write(each / _BALANCE, self._balance)  # before it has CPUs
                write(each / "cpuset.mems", self._memory_nodes)
                write(each / _CPUS, read(self._at / _CPUS).strip())
        write(directory / _BACKGROUND / _CPUS, _listed(self._background))
        return EnvironmentCores(directory)

    def rename(self, former: str, name: str) -> None:
        """Give the sets of an environment another name. Raises OSError."""
        (self._at / former).rename(self._at / name)

    def clear(self, keep: Collection[str] = ()) -> None:
        """Remove the sets of environments that are not kept; their processes have ended."""
        with contextlib.suppress(FileNotFoundError):
            for each in [each for each in self._at.iterdir() if each.is_dir()]:
                if each.name not in keep:
                    EnvironmentCores(each).remove()

    def close(self) -> None:
        """Remove the sets that are empty, and the parent if it is."""
        self.clear()
        with contextlib.suppress(OSError):
            self._at.rmdir()


def open_core_sets(
    name: str, background: frozenset[int], proc: Path = Path("/proc/self")
) -> CoreSets:
    """Make the parent ``name``. Raises OSError where this process may not make sets."""
    root = find_mounts(("cpuset",), proc / "mounts").by_controller.get("cpuset")
    if root is None:
        raise OSError("there are no cpusets of control groups version 1")
    own = root / group_paths((proc / "cgroup").read_text()).get("cpuset", "").lstrip("/")
    problem = OSError(f"{own} is no cpuset")
    for place in dict.fromkeys(each for each in (own, root) if each.is_dir()):
        directory = place / name
        try:
            nodes = read(place / "cpuset.mems").strip()
            balance = "0" if read(place / _BALANCE).strip() == "1" else "1"
            directory.mkdir(exist_ok=True)
            write(directory / _BALANCE, balance)
            write(directory / "cpuset.mems", nodes)
            write(directory / _CPUS, read(place / _CPUS).strip())
            sets = CoreSets(directory, background, nodes, balance)
            trial = sets.of("trial")
            # Entering must be permitted, which opening for writing checks.
            os.close(
                os.open(directory / "trial" / _ACTING / _PROCESSES, os.O_WRONLY | os.O_CLOEXEC)
            )
            trial.remove()
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                directory.rmdir()
        else:
            return sets
    raise problem


def _listed(cpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def _members(processes: str) -> list[int]:
    try:
        return [int(pid) for pid in read(processes).split()]
    except OSError:
        return []
