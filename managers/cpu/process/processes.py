"""Finding and ending the processes of an action, and burying what this process inherits.

The worker is a *child subreaper*: when a process below it dies, its children become ours instead of
init's. So after an action's main process has ended, whatever it left running has one of our own
children as an ancestor, and a look at our children (a few small files) tells whether anything is
left; the whole process list is searched only when something is. Being the parent, we must also wait
for such children when they die, and for nobody else's: the seal tells which are ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managers.cpu.process.process_tag import Sealer

_PR_SET_CHILD_SUBREAPER: Final = 36
_FIRST_PAUSE_SECONDS: Final = 0.001
_LONGEST_PAUSE_SECONDS: Final = 0.05
#: A program that starts threads faster than we find them is given up after so many looks.
_PINNING_ROUNDS: Final = 20
#: Processes that only hold a sandbox together: not the user's, so not counted or asked to end.
_PLUMBING: Final = "bwrap"


@dataclass(frozen=True)
class Ending:
    """What it took to end an action's processes."""

    #: Processes that were running, were told to end, and are no more.
    ended: int = 0
    #: Those that would not go, in words.
    remaining: tuple[str, ...] = ()


class ProcessTable:
    """The processes that carry seals of one driver."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        #: Seal of each live run → its main process, None while that is being spawned.
        self._mains: dict[int, int | None] = {}

    def expect(self, seal: int) -> None:
        """A run begins; its main process will be waited for by the run itself."""
        self._mains[seal] = None

    def enter(self, seal: int, pid: int) -> None:
        """The main process of a run is known."""
        self._mains[seal] = pid

    def leave(self, seal: int) -> None:
        """A run is over and its main process has been waited for."""
        self._mains.pop(seal, None)

    def left_behind(self, seal: int) -> bool:
        """Say whether a process of the ended run lives on; bury adopted dead ones on the way."""
        mains = set(self._mains.values())
        alive = False
        for pid in _children():
            if pid in mains:
                continue
            carried = self._sealer.read(pid)
            if carried is None or self._is_being_spawned(carried) or _bury(pid):
                continue
            alive = alive or carried == seal
        return alive

    def find(self, seal: int) -> list[int]:
        """Return the living processes that carry ``seal``, or will in a moment."""
        found = self.find_all().get(seal, [])
        main = self._mains.get(seal)
        # In its first moments a main process has not sealed itself; it has no children then.
        if main is not None and main not in found and _state(main)[0] not in "ZX":
            found.append(main)
        return found

    def find_all(self) -> dict[int, list[int]]:
        """Return the living processes of this driver, by seal."""
        found: dict[int, list[int]] = {}
        for pid in _all_processes():
            seal = self._sealer.read(pid)
            if seal is not None and _state(pid)[0] not in "ZX":
                found.setdefault(seal, []).append(pid)
        return found

    def ask_to_end(self, seal: int) -> set[int]:
        """Send SIGTERM to what the user started, not to the sandbox around it; say to whom."""
        pids = _users(self.find(seal))
        self._signal(seal, pids, signal.SIGTERM)
        return pids

    async def end(self, seal: int, patience_seconds: float, asked: Iterable[int] = ()) -> Ending:
        """Kill what carries ``seal`` until nothing does, or patience runs out.

        ``asked`` are processes that were asked to end before; they count when they are gone.
        """
        deadline = time.monotonic() + patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        ended = set(asked)
        while pids := self.find(seal):
            if time.monotonic() > deadline:
                return Ending(len(ended.difference(pids)), tuple(map(_describe, pids)))
            # Counted before: one that is signalled may take others with it at once.
            ended |= _users(pids)
            self._signal(seal, pids, signal.SIGKILL)
            # The kernel does not tell when the last one of a set has gone.
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self.left_behind(seal)
        return Ending(len(ended))

    def pin(self, seal: int, cpus: frozenset[int]) -> None:
        """Let all threads of a run go on with ``cpus`` alone, and what they start as well.

        A thread that is started while we look inherits what its parent had at that moment, so we
        look again until nobody has anything else.
        """
        for _ in range(_PINNING_ROUNDS):
            threads = [thread for pid in self._members(seal) for thread in _threads(pid)]
            if not sum(_pin(thread, cpus) for thread in threads):
                return

    def _members(self, seal: int) -> list[int]:
        """Return a run's processes: those below its main process, and those that were adopted."""
        main = self._mains.get(seal)
        mains = set(self._mains.values())
        adopted = [
            pid for pid in _children() if pid not in mains and self._sealer.read(pid) == seal
        ]
        return [
            pid
            for top in (*adopted, *(() if main is None else (main,)))
            for pid in (top, *_descendants(top))
        ]

    def _signal(self, seal: int, pids: Iterable[int], number: signal.Signals) -> None:
        """Signal those of ``pids`` that still carry ``seal``."""
        for pid in pids:
            with contextlib.suppress(OSError), _held(pid) as handle:
                # Looked at again through the handle: the number may have a new owner by now. A
                # main process keeps its number until its run waits for it.
                if self._sealer.read(pid) == seal or self._mains.get(seal) == pid:
                    signal.pidfd_send_signal(handle, number)

    def _is_being_spawned(self, seal: int) -> bool:
        return seal in self._mains and self._mains[seal] is None


def become_subreaper() -> None:
    """Make this process inherit the orphans among its descendants. Cannot fail on Linux ≥ 3.4."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int]:
    """Hold on to a process, so that its number cannot pass to another one unnoticed."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _children() -> Iterator[int]:
    """Return this process's children; every process where the kernel does not list them."""
    for thread in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{thread}/children").read_text()
        except ProcessLookupError:  # the thread ended meanwhile
            continue
        except FileNotFoundError:
            if Path(f"/proc/self/task/{thread}").exists():
                yield from _all_processes()
                return
            continue
        yield from map(int, text.split())


def _descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``; none where the kernel does not list children."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        of = waiting.pop()
        for thread in _threads(of):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{of}/task/{thread}/children").read_text()
                children = [int(child) for child in text.split()]
                found += children
                waiting += children
    return found


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # it has ended
        return []


def _pin(thread: int, cpus: frozenset[int]) -> bool:
    """Give ``thread`` these CPUs; say whether it had others."""
    try:
        if os.sched_getaffinity(thread) == cpus:
            return False
        os.sched_setaffinity(thread, cpus)
    except OSError:  # it has ended
        return False
    return True


def _all_processes() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _bury(pid: int) -> bool:
    """Wait for a child if it is dead; say whether it was."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _state(pid: int) -> tuple[str, str]:
    """Return a process's state letter and name; ``X`` when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "X", ""
    # The name may hold spaces and parentheses; the last one closes it.
    head, _, rest = text.rpartition(")")
    return rest.split()[0], head.partition("(")[2]


def _users(pids: Iterable[int]) -> set[int]:
    """Return those that are not plumbing."""
    return {pid for pid in pids if _state(pid)[1] not in ("", _PLUMBING)}


def _describe(pid: int) -> str:
    state, name = _state(pid)
    return f"process {pid} ({name}, state {state})"
