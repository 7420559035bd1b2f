"""Looks at the processes of a session in /proc, by their pids outside the environment.

The kernel notifies of none of these facts, so they are read at intervals; a look takes some hundredths of
a millisecond.
"""

from __future__ import annotations

import os
import platform
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

#: System calls that wait for input: read; select and its kin, by the number of descriptors; poll.
_CALLS: Final = {
    "x86_64": ({0, 19}, {23, 270}, {7, 271}),
    "aarch64": ({63, 65}, {72}, {73}),
}
_READS, _SELECTS, _POLLS = _CALLS.get(platform.machine(), (set(), set(), set()))
_POLL_ENTRY: Final = struct.Struct("ihh")
_POLLIN: Final = 1
_MOST_POLLED: Final = 64


class ProcessFacts(NamedTuple):
    """Fields of /proc/PID/stat."""

    parent: int
    group: int
    session: int
    #: Ticks since boot: with the pid the identity of the process.
    started: int
    zombie: bool


def facts_of(pid: int) -> ProcessFacts | None:
    """Return the facts of a process; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return ProcessFacts(
        int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), fields[0] in "ZX"
    )


def ticks_now() -> int:
    """Return the time as `ProcessFacts.started` counts it."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def children(pid: int) -> list[int]:
    """Return the children of a process that has one thread."""
    with suppress(OSError, ValueError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descendants(pid: int) -> Iterator[int]:
    """Yield the descendants of a process, parents first."""
    todo = children(pid)
    while todo:
        each = todo.pop()
        yield each
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                text = Path(f"/proc/{each}/task/{thread}/children").read_text()
                todo += map(int, text.split())


def image_of(pid: int) -> bytes:
    """Return bytes that change when the process executes another program; empty when unreadable.

    The auxiliary vector has random addresses, so a program that executes itself differs as well.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/auxv").read_bytes()
    return b""


def members(session: int, group: int | None = None) -> list[int]:
    """Return the processes of a session, perhaps those of one process group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and (facts := facts_of(int(name))) is not None:
            in_group = group is None or facts.group == group
            if facts.session == session and in_group and not facts.zombie:
                found.append(int(name))
    return found


def waits_for_input(pid: int, given: Path | None = None) -> bool:
    """Whether the main thread of a process is blocked in a read or poll of its standard input.

    ``given``: the pipe that is the session's input; None: a terminal is. A process that waits for another program's output,
    as the second one of ``make | tail``, waits for neither.
    """
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        number, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
    except (OSError, ValueError, IndexError):  # running, ended, or not permitted
        return False
    if number in _READS:
        waits = first == 0
    elif number in _SELECTS:
        waits = first == 1
    else:
        waits = number in _POLLS and _polls_input(pid, first, min(second, _MOST_POLLED))
    return waits and _has_input(pid, given)


def _has_input(pid: int, given: Path | None) -> bool:
    with suppress(OSError):
        found = os.stat(f"/proc/{pid}/fd/0")
        return (
            stat.S_ISCHR(found.st_mode) if given is None else os.path.samestat(found, given.stat())
        )
    return False


def _polls_input(pid: int, address: int, count: int) -> bool:
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            entries = memory.read(count * _POLL_ENTRY.size)
    except (OSError, OverflowError):
        return False
    whole = len(entries) - len(entries) % _POLL_ENTRY.size
    return any(
        descriptor == 0 and events & _POLLIN
        for descriptor, events, _ in _POLL_ENTRY.iter_unpack(entries[:whole])
    )
