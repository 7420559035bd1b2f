"""Disk watch: the disk that environments use, measured while actions run, and their quotas.

Theory of operation. A thread adds up the blocks of an environment's files, as ``du`` does, while an action
runs in it and once after. The next look follows after ten times the duration of the last one, at least half
a second, and later while nothing grows: so looking costs at most a tenth of a core, however many files there
are. An environment above its quota has its action stopped (`cancelled`: its own fault, so it is neither run
again nor rewarded). An action that finds its environment above the quota may go on while nothing grows: it may
be there to delete files.

A program may pass its quota between two looks; the limit on the size of one file (RLIMIT_FSIZE) is never
above the quota, and the guard of the node's free space (`scheduler.runtime.node.disk_guard`) is behind both.
Files that were deleted but are open in a process of the environment count as well; those that are only
mapped, or in a message between sockets, do not. Links are not followed, and no depth of a tree hides files.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from domain.action import Outcome
from domain.errors import InvalidRequest, StorageFull
from domain.ports import EnvironmentDisk
from managers.cpu.disk_use import NOTHING, DiskUse, hidden_bytes, measure_all

_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 8.0
#: Pause after a look, as a multiple of its duration.
_REST: Final = 10
#: An environment counts as recent for so long after its action has ended.
_RECENT_SECONDS: Final = 60.0
#: Longest time for new looks when the disk is full; beyond it earlier ones are used.
_URGENT_SECONDS: Final = 2.0
#: Pause before the first look at environments of a predecessor.
_ADOPTED_SECONDS: Final = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DiskQuotas:
    """Quotas of environments."""

    #: Of an environment that declares none.
    default_bytes: int = 16 * 2**30
    #: Of any environment.
    most_bytes: int = 2**62
    files: int = 1_000_000

    @classmethod
    def parse(cls, given: Mapping[str, str], directory: Path) -> DiskQuotas:
        """Parse ``environment_disk_bytes`` and ``environment_files``; the rest depends on the disk.

        By default a quarter of the file system of ``directory``, at most 16 GiB; no environment may
        declare more than half of it. Raises InvalidRequest.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        space = os.statvfs(directory)
        total = space.f_blocks * space.f_frsize
        default = _number(given, "environment_disk_bytes", min(cls.default_bytes, total // 4))
        files = min(cls.files, space.f_files // 4 or cls.files)
        return cls(default, max(default, total // 2), _number(given, "environment_files", files))

    def of_environment(self, declared_bytes: int) -> int:
        """Return the quota of an environment that declares so many bytes (0: none)."""
        return min(declared_bytes or self.default_bytes, self.most_bytes)

    def of_disk(self, declared_bytes: int) -> int:
        """Return the room on a disk of its own of an environment that declares so many bytes (0: none)."""
        return min(declared_bytes, self.most_bytes)


@dataclass
class _Watched:
    """One environment."""

    path: Path
    quota_bytes: int
    #: Further trees of its files: the own layer of a container.
    also: tuple[Path, ...] = ()
    #: Finds its processes.
    processes: Callable[[], Iterable[int]] = tuple
    #: A disk of its own bounds it: it is measured and never stopped.
    has_disk: bool = False
    #: Stops its action; None while none runs.
    stop: Callable[[Outcome, str], None] | None = None
    use: DiskUse = NOTHING
    #: Usage when its action began, where it was above the quota; None: the next look finds it.
    begun: DiskUse | None = NOTHING
    #: Bytes that it used when the disks of the node were last free.
    calm_bytes: int = 0
    due_at: float = 0.0
    #: Written from outside since the last look began.
    uploaded: DiskUse = NOTHING
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    ended_at: float = 0.0

    def measured(self, use: DiskUse, took_seconds: float, now: float) -> None:
        """Record a look, and set the time of the next one."""
        grows = use.grows_from(self.use)
        longer = min(2 * self.pause_seconds, _LONGEST_PAUSE_SECONDS)
        self.pause_seconds = _FIRST_PAUSE_SECONDS if grows else longer
        self.use = use
        self.due_at = now + max(self.pause_seconds, _REST * took_seconds)

    def is_recent(self, now: float) -> bool:
        """Say whether an action runs, or ended a moment ago."""
        return self.stop is not None or now - self.ended_at < _RECENT_SECONDS


def _measure_watched(each: _Watched) -> DiskUse:
    use = measure_all((each.path, *each.also))
    return use._replace(used_bytes=use.used_bytes + hidden_bytes(each.processes()))


class DiskWatch:
    """The environments of one driver."""

    def __init__(self, quotas: DiskQuotas, clock: Callable[[], float] = time.monotonic) -> None:
        self.quotas = quotas
        self._clock = clock
        self._environments: dict[str, _Watched] = {}
        self._looking = asyncio.Lock()

    def begin(
        self,
        path: Path,
        declared_bytes: int,
        stop: Callable[[Outcome, str], None],
        also: tuple[Path, ...] = (),
        processes: Callable[[], Iterable[int]] = tuple,
        *,
        has_disk: bool = False,
    ) -> None:
        """Watch an environment while an action runs in it.

        ``also``: further trees of its files. ``processes`` finds its processes; called in a thread, may raise
        OSError. ``has_disk``: it has a disk of its own, which ends its growth.
        """
        quota = self.quotas.of_environment(declared_bytes)
        known = self._environments.setdefault(path.name, _Watched(path, quota))
        known.quota_bytes, known.stop = quota, stop
        known.also, known.processes, known.has_disk = also, processes, has_disk
        known.pause_seconds = _FIRST_PAUSE_SECONDS
        # A look after the last action's end is pending, if one is due at all.
        known.begun = known.use if math.isinf(known.due_at) or not known.due_at else None
        known.due_at = min(known.due_at or math.inf, self._clock() + _FIRST_PAUSE_SECONDS)

    def adopt(self, paths: Iterable[Path], also: tuple[Path, ...] = ()) -> None:
        """Look at environments of a predecessor."""
        for path in paths:
            known = _Watched(path, self.quotas.default_bytes, also)
            known.due_at = self._clock() + _ADOPTED_SECONDS
            self._environments.setdefault(path.name, known)

    def end(self, path: Path) -> None:
        """Look once more at an environment, whose action has ended."""
        known = self._environments.get(path.name)
        if known is not None:
            known.stop, known.ended_at = None, self._clock()
            known.processes = tuple
            known.due_at = known.ended_at

    def drop(self, name: str) -> None:
        """Stop watching an environment that was removed."""
        self._environments.pop(name, None)

    def used_bytes(self, name: str) -> int | None:
        """Return what an environment used at the last look; None before the first one."""
        known = self._environments.get(name)
        return known.use.used_bytes if known is not None and known.use != NOTHING else None

    def calm(self) -> None:
        """Take present usages as the base of growth: the disks of the node are free."""
        for each in self._environments.values():
            each.calm_bytes = each.use.used_bytes

    def room(self, path: Path, declared_bytes: int = 0) -> EnvironmentRoom:
        """Return the disk that is left to uploads into an environment, which declares so many bytes."""
        known = self._environments.setdefault(
            path.name, _Watched(path, self.quotas.default_bytes, due_at=math.inf)
        )
        if declared_bytes:
            known.quota_bytes = self.quotas.of_environment(declared_bytes)
        return EnvironmentRoom(known, self.quotas.files, self._clock)

    async def run(self) -> None:
        """Run forever: look at environments that are due."""
        while True:
            due = any(not math.isinf(each.due_at) for each in self._environments.values())
            await asyncio.sleep(_FIRST_PAUSE_SECONDS * (0.5 if due else 2.0))
            now = self._clock()
            for name, each in list(self._environments.items()):
                if each.due_at <= now:
                    await self._look(name, each)

    async def usage(self) -> list[EnvironmentDisk]:
        """Look at recent and new environments now, for a limited time; return the usage of all."""
        until = self._clock() + _URGENT_SECONDS
        recent = [
            (name, each)
            for name, each in self._environments.items()
            if each.is_recent(self._clock()) or not math.isinf(each.due_at)
        ]
        recent.sort(key=lambda pair: -pair[1].ended_at if pair[1].stop is None else -math.inf)
        for name, each in recent:
            if self._clock() < until:
                await self._look(name, each)
        now = self._clock()
        return [
            EnvironmentDisk(
                name,
                each.use.used_bytes,
                each.use.used_bytes - each.calm_bytes,
                each.is_recent(now),
            )
            for name, each in self._environments.items()
        ]

    async def _look(self, name: str, each: _Watched) -> None:
        async with self._looking:
            began = self._clock()
            counted = each.uploaded
            try:
                use = await asyncio.to_thread(_measure_watched, each)
            except OSError as error:
                _log.warning("the disk usage of %s cannot be measured: %s", name, error)
                use = each.use
            now = self._clock()
            each.measured(use, now - began, now)
            # What is uploaded during a look may be counted twice, until the next one.
            each.uploaded = each.uploaded.less(counted)
        if each.stop is None:
            each.due_at = math.inf
        elif each.begun is None:
            each.begun = use
        elif (
            not each.has_disk
            and use.grows_from(each.begun)
            and (why := excess(use, each.quota_bytes, self.quotas.files))
        ):
            each.stop(Outcome.CANCELLED, why)


class RoomLeft(NamedTuple):
    """What uploads may still use of a quota, and the quota."""

    size_bytes: int
    files: int
    quota_bytes: int


class EnvironmentRoom:
    """Disk that uploads into one environment may use (`managers.cpu.files`).

    What is written since the last look counts in full, also where it replaces a file. Before an upload is
    refused the environment is measured: its programs may have deleted files since. Blocks; any thread.
    """

    def __init__(self, known: _Watched, files: int, clock: Callable[[], float]) -> None:
        self._known = known
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()

    def take(self, size_bytes: int, files: int = 0) -> None:
        """Count what will be written. Raises StorageFull beyond the quota."""
        wanted = DiskUse(size_bytes, files)
        with self._lock:
            known = self._known
            why = self._excess(wanted)
            if why:
                counted = known.uploaded
                known.use = _measure_watched(known)
                known.uploaded = known.uploaded.less(counted)
                why = self._excess(wanted)
            if why:
                raise StorageFull(why)
            known.uploaded = known.uploaded.more(wanted)
            known.due_at = min(known.due_at or math.inf, self._clock() + _FIRST_PAUSE_SECONDS)

    def give_back(self, size_bytes: int, files: int = 0) -> None:
        """Count what was not written, or was deleted again."""
        with self._lock:
            self._known.uploaded = self._known.uploaded.less(DiskUse(size_bytes, files))

    def left(self) -> RoomLeft:
        """Return what is left now."""
        with self._lock:
            known = self._known
            use = known.use.more(known.uploaded)
            quota = known.quota_bytes
            return RoomLeft(quota - use.used_bytes, self._files - use.files, quota)

    def _excess(self, wanted: DiskUse) -> str:
        known = self._known
        if not wanted.used_bytes and not wanted.files:
            return ""
        return excess(known.use.more(known.uploaded).more(wanted), known.quota_bytes, self._files)


def excess(use: DiskUse, quota_bytes: int, files: int) -> str:
    """Return which quota an environment exceeds, and the cure; empty: none."""
    if use.used_bytes > quota_bytes:
        return (
            f"disk quota of {quota_bytes} bytes exceeded: the environment uses {use.used_bytes};"
            " declare a higher environment.disk_bytes, or delete files"
        )
    if use.files > files:
        return f"disk quota of {files} files exceeded: the environment has {use.files}"
    return ""


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit() or int(text) == 0:
        raise InvalidRequest(f"{name} is {text!r}: give a whole number above 0")
    return int(text)
