"""Facts of the kernel about the processes of an environment, read from ``/proc`` on the host.

A process that has ended keeps its number, status and namespaces until its parent waits for it. A number alone is
no identity: with its start time it is.
"""

from __future__ import annotations

from pathlib import Path

from managers.cpu.cgroup_files import read
from managers.cpu.environment.protocol import EnvironmentLost


def kernel_status(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return the wait status of a dead process that was not waited for; None when it is gone."""
    try:
        text = read(f"{proc}/{pid}/stat")
    except OSError:
        return None
    # The name may hold spaces and parentheses; the last one closes it.
    fields = text.rpartition(")")[2].split()
    return int(fields[-1]) if fields[0] in ("Z", "X") else None


def inner_pid_of(pid: int) -> int | None:
    """Return the id of a process in the innermost pid namespace; None when it has ended."""
    try:
        text = read(f"/proc/{pid}/status")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def children_of(pid: int) -> list[int]:
    """Return the children of the only thread of a process. Raises OSError where they are not listed."""
    try:
        return [int(each) for each in read(f"/proc/{pid}/task/{pid}/children").split()]
    except ProcessLookupError:
        return []


def start_time(pid: int) -> int | None:
    """Return the start of a living process, in clock ticks since the start of the machine; None: it has ended."""
    try:
        text = read(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def find_processes(outer: int) -> tuple[int, int]:
    """Return process 1 and the init of the sandbox whose outer process is ``outer``. Raises EnvironmentLost.

    Beside process 1 there may be drivers of its file systems, and above it processes that wait for it.
    """
    waiting, first = [outer], list[int]()
    while waiting and not first:
        waiting = [child for each in waiting for child in children_of(each)]
        first = [each for each in waiting if inner_pid_of(each) == 1]
    inits = children_of(first[0]) if len(first) == 1 else []
    if len(inits) != 1:
        raise EnvironmentLost("the processes of its sandbox were not found")
    return first[0], inits[0]
