"""Process table: finds and ends the processes of an action, and reaps those that this one adopts.

The worker is a *child subreaper*: when a process below it dies, its children become ours instead of
init's. So after an action's main process has ended, every process it left running has one of our own
children as an ancestor. Listing our children (a few small files) shows whether any is left; the whole
process list is searched only then. As their parent, we must also wait for such children when they die,
and for no others: the tag distinguishes them.

A process that shed its tag becomes our child as soon as no process of its action is above it. Such a child
has *escaped*: it is ended with all below it when the next action ends, whichever action it was of. Our
own children (engines, pool processes) have neither a tag nor the lowered limit, and are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.ports import Leftover
from managers.common.start_log import leftover
from managers.cpu.cgroup_files import read
from managers.cpu.process.process_groups import EnvironmentGroup, ProcessGroup, ProcessGroups
from managers.cpu.process.process_tag import ProcessTagger

_PR_SET_CHILD_SUBREAPER: Final = 36
_FIRST_PAUSE_SECONDS: Final = 0.001
_LONGEST_PAUSE_SECONDS: Final = 0.05
#: So many processes do not end within a millisecond.
_MANY: Final = 100
#: Attempts to pin a program that starts threads faster than they are found.
_PINNING_ROUNDS: Final = 20
#: Programs of the sandbox itself, Apptainer's with its drivers of file systems: not counted or sent SIGTERM.
_PLUMBING: Final = (
    "bwrap", "nsenter", "apptainer", "starter", "starter-suid", "sinit", "squashfuse_ll", "fuse-overlayfs",
)  # fmt: skip


@dataclass(frozen=True)
class Termination:
    """Result of ending an action's processes."""

    #: Number of processes that were ended.
    ended: int = 0
    #: Descriptions of those that did not end.
    remaining: tuple[str, ...] = ()

    def then(self, later: Termination) -> Termination:
        """Return the sum of both."""
        return Termination(self.ended + later.ended, (*self.remaining, *later.remaining))


#: All tables of this process: a child with a tag of any of them has not escaped.
_tables: weakref.WeakSet[ProcessTable] = weakref.WeakSet()


class ProcessTable:
    """The processes with tags of one driver."""

    def __init__(self, tagger: ProcessTagger) -> None:
        self._tagger = tagger
        _tables.add(self)
        #: Seal of each live run → its main process, None while that is being spawned.
        self._mains: dict[int, int | None] = {}
        #: Seal of each run that has a control group → the group.
        self._groups: dict[int, ProcessGroup] = {}
        #: The scan that all who end a set at this moment wait for.
        self._scanning: asyncio.Future[dict[int, list[int]]] | None = None

    def expect(self, tag: int) -> None:
        """Record the start of a run, which waits for its main process itself."""
        self._mains[tag] = None

    def enter(self, tag: int, pid: int) -> None:
        """Record the main process of a run."""
        self._mains[tag] = pid

    def leave(self, tag: int) -> None:
        """Record the end of a run, whose main process was waited for."""
        self._mains.pop(tag, None)

    def hold_group(self, tag: int, group: ProcessGroup) -> None:
        """Record the control group of a run: what is in it is the run's, tag or not."""
        self._groups[tag] = group

    def drop_group(
        self, tag: int, groups: ProcessGroups | None, environment: EnvironmentGroup | None = None
    ) -> None:
        """Remove the group of an ended run, if it has one and ``environment`` does not keep it."""
        group = self._groups.pop(tag, None)
        if group is None or groups is None or (environment and environment.keep(group)):
            return
        groups.remove(group)

    def left_behind(self, tag: int) -> bool:
        """Say whether a process of the ended run, or an escaped one, is alive; reap dead ones."""
        mains = set(self._mains.values())
        alive = False
        for pid in _children():
            if pid in mains:
                continue
            carried = self._tagger.read(pid)
            if carried is None or self._is_being_spawned(carried) or _reap(pid):
                continue
            alive = alive or carried == tag
        return alive or bool(self._escaped()) or bool(self._in_group(tag))

    def find(self, tag: int) -> list[int]:
        """Return the living processes with ``tag``, and a main process that is about to set it."""
        return self._with_untagged(tag, self.find_all().get(tag, []))

    def _with_untagged(self, tag: int, found: list[int]) -> list[int]:
        """Return processes ``found`` by a tag, and those that it has not reached."""
        main = self._mains.get(tag)
        # A new main process has not set its tag yet; it has no children then.
        if main is not None and main not in found and _is_alive(main):
            found.append(main)
        return [*found, *(pid for pid in self._in_group(tag) if pid not in found)]

    def _in_group(self, tag: int) -> list[int]:
        group = self._groups.get(tag)
        return [] if group is None else [pid for pid in group.processes() if _is_alive(pid)]

    def find_all(self, besides: Collection[int] = ()) -> dict[int, list[int]]:
        """Return the living processes of this driver, by tag, without those with a tag in ``besides``."""
        found: dict[int, list[int]] = {}
        for pid in _all_processes():
            tag = self._tagger.read(pid)
            if tag is not None and tag not in besides and _is_alive(pid):
                found.setdefault(tag, []).append(pid)
        return found

    def ask_to_end(self, tag: int) -> set[int]:
        """Send SIGTERM to the user's processes, not to the sandbox around them; return these."""
        pids = _users(self.find(tag))
        self._signal(tag, pids, signal.SIGTERM)
        return pids

    async def end(
        self, tag: int, patience_seconds: float, asked: Iterable[int] = ()
    ) -> Termination:
        """Kill processes with ``tag`` until none is left or the patience is over.

        ``asked`` are processes that got SIGTERM before; they count as ended when they are gone.
        """
        deadline = time.monotonic() + patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        ended = set(asked)
        while pids := [*self._with_untagged(tag, await self._scan(tag)), *self._escaped()]:
            if time.monotonic() > deadline:
                return Termination(len(ended.difference(pids)), tuple(map(_describe, pids)))
            # Counted before: the end of one may end others at once.
            ended |= _users(pids)
            if tag in self._groups:
                self._groups[tag].kill()
            self._signal(tag, pids, signal.SIGKILL)
            # The kernel does not notify about the end of a set.
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self.left_behind(tag)
        return Termination(len(ended))

    async def end_marked(
        self, marked: Sequence[str], besides: Collection[int], patience_seconds: float
    ) -> list[Leftover]:
        """Do `end_all`; return the attempts that the predecessor had marked as started, and what became of them."""
        endings = await self.end_all(besides, patience_seconds)
        leftovers = []
        for mark in marked:
            ending = endings.get(self._tagger.tag(mark), Termination())
            detail = f"could not end {', '.join(ending.remaining)}" if ending.remaining else ""
            leftovers.append(leftover(mark, ended=ending.ended > 0, detail=detail))
        return leftovers

    async def end_all(
        self, besides: Collection[int], patience_seconds: float
    ) -> dict[int, Termination]:
        """Kill what a dead predecessor has left, without the tags in ``besides``; return what was ended, by tag.

        Each look at the processes of the machine serves all tags: there may be thousands of both.
        """
        began = time.monotonic()
        ended: dict[int, set[int]] = {}
        signalled: set[int] = set()
        while (found := self.find_all(besides)) and time.monotonic() - began <= patience_seconds:
            new = {
                tag: [pid for pid in pids if pid not in signalled] for tag, pids in found.items()
            }
            for tag, pids in new.items():
                # Counted before: the end of one may end others at once.
                ended.setdefault(tag, set()).update(_users(pids))
            for tag, pids in new.items():
                self._signal(tag, pids, signal.SIGKILL)
                signalled.update(pids)
            # The kernel does not notify about the end of a set; it takes a while to end thousands.
            await asyncio.sleep(
                _LONGEST_PAUSE_SECONDS if len(signalled) > _MANY else _FIRST_PAUSE_SECONDS
            )
        for pid in _children():
            if pid not in self._mains.values() and self._tagger.read(pid) in ended:
                _reap(pid)
        left = {tag: found.get(tag, []) for tag in {*ended, *found}}
        return {
            tag: Termination(
                len(ended.get(tag, set()).difference(pids)), tuple(map(_describe, pids))
            )
            for tag, pids in left.items()
        }

    async def _scan(self, tag: int) -> list[int]:
        """Return the living processes with ``tag``, by a scan that begins after this call.

        Sets that are ended together share it: a worker that starts again may have thousands to end, and
        thousands of processes to look through.
        """
        if self._scanning is None:
            loop = asyncio.get_running_loop()
            self._scanning = loop.create_future()
            loop.call_soon(self._finish_scan, self._scanning)
        found = await asyncio.shield(self._scanning)
        return list(found.get(tag, ()))

    def _finish_scan(self, scan: asyncio.Future[dict[int, list[int]]]) -> None:
        self._scanning = None
        try:
            scan.set_result(self.find_all())
        except OSError as error:  # no descriptor is left to read the list with
            scan.set_exception(error)

    def pin(self, tag: int, cpus: frozenset[int]) -> None:
        """Pin all threads of a run to ``cpus``, and so their children.

        A thread that starts meanwhile inherits the old affinity of its parent, so the scan repeats until
        no thread has another one.
        """
        for _ in range(_PINNING_ROUNDS):
            threads = [thread for pid in self._members(tag) for thread in _threads(pid)]
            if not sum(_pin(thread, cpus) for thread in threads):
                return

    def _escaped(self) -> list[int]:
        """Return the living adopted children without a valid tag, and all below them; reap dead ones."""
        mains = {pid for table in _tables for pid in table._mains.values()}
        found = [pid for pid in _children() if pid not in mains and self._is_escaped(pid)]
        tops = [pid for pid in found if not _reap(pid)]
        if len(tops) < len(found):
            # What a dead one had started became our child when it died, perhaps after the list.
            return self._escaped()
        return [pid for top in tops for pid in (top, *_descendants(top))]

    def _members(self, tag: int) -> list[int]:
        """Return a run's processes: those below its main process, and adopted ones."""
        main = self._mains.get(tag)
        mains = set(self._mains.values())
        adopted = [pid for pid in _children() if pid not in mains and self._tagger.read(pid) == tag]
        return [
            pid
            for top in (*adopted, *(() if main is None else (main,)))
            for pid in (top, *_descendants(top))
        ]

    def _signal(self, tag: int, pids: Iterable[int], number: signal.Signals) -> None:
        """Signal those of ``pids`` that still carry ``tag``."""
        for pid in pids:
            with contextlib.suppress(OSError), _held(pid) as handle:
                # Checked again while the handle is open: the number may have been reused. A main
                # process keeps its number until its run waits for it.
                if (
                    self._tagger.read(pid) == tag
                    or self._mains.get(tag) == pid
                    or pid in self._in_group(tag)
                    or self._is_escaped(pid)
                ):
                    signal.pidfd_send_signal(handle, number)

    def _is_escaped(self, pid: int) -> bool:
        """Say whether ``pid`` has a lowered limit that is no tag of this process."""
        valid = any(table._tagger.read(pid) is not None for table in _tables)
        return not valid and self._tagger.is_below(pid)

    def _is_being_spawned(self, tag: int) -> bool:
        return tag in self._mains and self._mains[tag] is None


def become_subreaper() -> None:
    """Make this process inherit the orphans among its descendants. Cannot fail on Linux ≥ 3.4."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int]:
    """Open a handle of a process, so that reuse of its number is noticed."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _children() -> Iterator[int]:
    """Return this process's children; every process where the kernel does not list them."""
    for thread in os.listdir("/proc/self/task"):
        try:
            text = read(f"/proc/self/task/{thread}/children")
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
                text = read(f"/proc/{of}/task/{thread}/children")
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
    """Pin ``thread`` to these CPUs; return whether it had others."""
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


def _reap(pid: int) -> bool:
    """Wait for a child if it is dead; return whether it was."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _state(pid: int) -> tuple[str, str]:
    """Return a process's state letter and name; ``X`` when it is gone."""
    try:
        text = read(f"/proc/{pid}/stat")
    except OSError:
        return "X", ""
    # The name may hold spaces and parentheses; the last one closes it.
    head, _, rest = text.rpartition(")")
    return rest.split()[0], head.partition("(")[2]


def _is_alive(pid: int) -> bool:
    return _state(pid)[0] not in "ZX"


def _users(pids: Iterable[int]) -> set[int]:
    """Return those that do not belong to the sandbox."""
    return {pid for pid in pids if _state(pid)[1] not in ("", *_PLUMBING)}


def _describe(pid: int) -> str:
    state, name = _state(pid)
    return f"process {pid} ({name}, state {state})"
