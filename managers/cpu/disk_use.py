"""Disk use of trees of files, as ``du`` counts it: blocks, and not lengths.

Links are not followed, and no depth of a tree hides files: a walk has few directories open at a time. Files that were deleted but are open in
a process count as well (`hidden_bytes`). All of it blocks the thread that calls.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 512
#: Entries that are counted before other threads of this process may run.
_ENTRIES_AT_ONCE: Final = 2000
_BREATH_SECONDS: Final = 0.002
#: Directories of a branch that are open at a time.
_MOST_OPEN: Final = 64
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskUse(NamedTuple):
    """Disk that a tree of files uses."""

    used_bytes: int
    files: int

    def grows_from(self, before: DiskUse) -> bool:
        """Say whether there is more than there was ``before``."""
        return self.used_bytes > before.used_bytes or self.files > before.files

    def more(self, other: DiskUse) -> DiskUse:
        """Return the sum."""
        return DiskUse(self.used_bytes + other.used_bytes, self.files + other.files)

    def less(self, other: DiskUse) -> DiskUse:
        """Return the difference, at least nothing."""
        return DiskUse(max(0, self.used_bytes - other.used_bytes), max(0, self.files - other.files))


NOTHING: Final = DiskUse(0, 0)


def measure_all(roots: Iterable[Path]) -> DiskUse:
    """Return the sum of what several trees use. Blocks."""
    total = NOTHING
    for root in roots:
        total = total.more(measure(root))
    return total


def measure(root: Path) -> DiskUse:
    """Return what the file ``root``, or the files below it, use; missing ones use nothing. Blocks."""
    walk = _Walk()
    try:
        walk.enter(os.open(root, _DIRECTORY))
    except OSError:
        return _measure_file(root)
    try:
        while walk.step():
            pass
    finally:
        walk.close()
    return DiskUse(walk.blocks * _BLOCK_BYTES, walk.files)


def exceeds(roots: Iterable[Path], most_bytes: int, most_files: int) -> bool:
    """Return whether several trees use more than that together; ends as soon as they do. Blocks."""
    used, files = 0, 0
    for root in roots:
        try:
            top = os.open(root, _DIRECTORY)
        except OSError:
            continue
        walk = _Walk()
        try:
            walk.enter(top)
            while True:
                if (
                    used + walk.blocks * _BLOCK_BYTES > most_bytes
                    or files + walk.files > most_files
                ):
                    return True
                if not walk.step():
                    break
        finally:
            walk.close()
        used, files = used + walk.blocks * _BLOCK_BYTES, files + walk.files
    return False


def _measure_file(path: Path) -> DiskUse:
    with contextlib.suppress(OSError):
        facts = os.lstat(path)
        if stat.S_ISREG(facts.st_mode):
            return DiskUse(facts.st_blocks * _BLOCK_BYTES, 1)
    return NOTHING


@dataclass
class _OpenDirectory:
    """A directory on the way from the root to the present one."""

    #: Closed while it is -1: a deep tree would need more descriptors than there are.
    descriptor: int
    #: Its device and inode, by which it is recognised when it is opened again.
    identity: tuple[int, int]
    #: Directories in it that are still to be entered.
    below: list[str]

    def reopen(self, child: int) -> bool:
        """Open it again as the parent of ``child``; return whether it still is."""
        if self.descriptor < 0:
            self.descriptor = os.open("..", _DIRECTORY, dir_fd=child)
            facts = os.fstat(self.descriptor)
            return (facts.st_dev, facts.st_ino) == self.identity
        return True

    def close(self) -> None:
        """Close it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


#: Kinds of file systems whose files are no disk of this machine.
_NO_DISK: Final = frozenset(
    "tmpfs devtmpfs proc sysfs cgroup cgroup2 mqueue devpts ramfs hugetlbfs nfs nfs4 fuse".split()
)


def hidden_bytes(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Return what deleted files use that these processes have open, each file once. Blocks."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            disks = _disks((proc / str(pid) / "mountinfo").read_text())
            for name in os.listdir(proc / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    facts = os.stat(proc / str(pid) / "fd" / name)
                    is_deleted = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0
                    if is_deleted and facts.st_dev in disks:
                        found[facts.st_dev, facts.st_ino] = facts.st_blocks * _BLOCK_BYTES
    return sum(found.values())


def _disks(mountinfo: str) -> set[int]:
    """Return the devices of a process's mounts that are disks (proc(5))."""
    disks = set()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.partition(" ")[0] not in _NO_DISK:
            major, _, minor = before.split()[2].partition(":")
            disks.add(os.makedev(int(major), int(minor)))
    return disks


class _Walk:
    """A walk through a tree by descriptors: no length of a path and no link leads it astray."""

    def __init__(self) -> None:
        self.blocks = self.files = 0
        self._branch: list[_OpenDirectory] = []

    def enter(self, descriptor: int) -> None:
        """Count the entries of an open directory, which is closed later."""
        facts = os.fstat(descriptor)
        place = _OpenDirectory(descriptor, (facts.st_dev, facts.st_ino), [])
        self._branch.append(place)
        if len(self._branch) > _MOST_OPEN:
            self._branch[-_MOST_OPEN - 1].close()
        with contextlib.suppress(OSError), os.scandir(descriptor) as entries:
            for number, entry in enumerate(entries, 1):
                if number % _ENTRIES_AT_ONCE == 0:
                    time.sleep(_BREATH_SECONDS)  # other threads may run
                with contextlib.suppress(OSError):  # it was removed meanwhile
                    self.blocks += entry.stat(follow_symlinks=False).st_blocks
                    self.files += 1
                    if entry.is_dir(follow_symlinks=False):
                        place.below.append(entry.name)

    def step(self) -> bool:
        """Enter the next directory, or leave the present one; return whether any is left."""
        if not self._branch:
            return False
        here = self._branch[-1]
        if here.below:
            with contextlib.suppress(OSError):
                self.enter(os.open(here.below.pop(), _DIRECTORY, dir_fd=here.descriptor))
            return True
        if len(self._branch) > 1 and not self._branch[-2].reopen(here.descriptor):
            return False  # a directory was moved, so this look ends; the next one sees it
        self._branch.pop().close()
        return True

    def close(self) -> None:
        """Close what is open."""
        while self._branch:
            self._branch.pop().close()
