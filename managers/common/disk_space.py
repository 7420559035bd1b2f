"""Disk space: how much the file systems of a node have left, and what the node does about it. Pure
but for `read_space`.

Levels. *Free*: everything runs. *Short*: new work is refused. *Full*: in addition the largest writer is
ended and its files are deleted. A level is left only once there is clearly more space than its floor
(hysteresis), so a node does not change its mind with every file.

A floor is a share of the file system, but never more than a fixed amount: a tenth of a small disk, 2 GiB of
a large one. Inodes have floors as well. A file system that counts no inodes has no floor of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from domain.errors import InvalidRequest
from domain.ports import EnvironmentDisk

#: A level is left at this multiple of its floor.
_HYSTERESIS: Final = 1.5
#: Growth below this names no writer: caches and logs grow as well.
LEAST_GROWTH_BYTES: Final = 2**20


class DiskLevel(IntEnum):
    """State of the disks of a node."""

    FREE = 0
    SHORT = 1
    FULL = 2


class DiskSpace(NamedTuple):
    """Space of one file system that a process without privileges may use."""

    path: str
    total_bytes: int
    free_bytes: int
    #: 0 where inodes are not counted.
    total_files: int
    free_files: int


def read_space(paths: Iterable[Path]) -> list[DiskSpace]:
    """Return the space below ``paths``, once for each file system; missing paths are left out. Blocks."""
    found: dict[int, DiskSpace] = {}
    for path in paths:
        try:
            device, space = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue
        size = space.f_frsize
        found.setdefault(
            device,
            DiskSpace(
                str(path), space.f_blocks * size, space.f_bavail * size, space.f_files,
                space.f_favail,
            ),
        )  # fmt: skip
    return list(found.values())


@dataclass(frozen=True)
class DiskFloors:
    """Least free space of each level: a share of the file system, at most a fixed amount."""

    short_bytes: int = 2 * 2**30
    full_bytes: int = 2**30
    short_files: int = 50_000
    full_files: int = 20_000
    short_share: float = 0.10
    full_share: float = 0.05

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> DiskFloors:
        """Parse the settings ``disk_short_bytes`` and ``disk_full_bytes``. Raises InvalidRequest."""
        short = _number(given, "disk_short_bytes", cls.short_bytes)
        full = _number(given, "disk_full_bytes", min(cls.full_bytes, short))
        if full > short:
            raise InvalidRequest(
                f"disk_full_bytes is {full}: give at most disk_short_bytes, {short}"
            )
        return cls(short, full)

    def level(self, space: DiskSpace, before: DiskLevel) -> DiskLevel:
        """Return the level of one file system that had the level ``before``."""
        return max(
            self._level(
                space.free_bytes,
                min(self.short_bytes, space.total_bytes * self.short_share),
                min(self.full_bytes, space.total_bytes * self.full_share),
                before,
            ),
            self._level(
                space.free_files,
                min(self.short_files, space.total_files * self.short_share),
                min(self.full_files, space.total_files * self.full_share),
                before,
            ),
        )

    @staticmethod
    def _level(free: int, short: float, full: float, before: DiskLevel) -> DiskLevel:
        if free < full or (before is DiskLevel.FULL and free < full * _HYSTERESIS):
            return DiskLevel.FULL
        if free < short or (before >= DiskLevel.SHORT and free < short * _HYSTERESIS):
            return DiskLevel.SHORT
        return DiskLevel.FREE


class DiskVerdict(NamedTuple):
    """Level of a node, and the file system that decides it."""

    level: DiskLevel
    #: Sentence for people; empty while everything is free.
    reason: str = ""


class DiskJudge:
    """Judges looks at the file systems of a node, one after another."""

    def __init__(self, floors: DiskFloors) -> None:
        self._floors = floors
        self._levels: dict[str, DiskLevel] = {}

    def judge(self, spaces: Sequence[DiskSpace]) -> DiskVerdict:
        """Return the worst level."""
        worst = DiskVerdict(DiskLevel.FREE)
        for space in spaces:
            before = self._levels.get(space.path, DiskLevel.FREE)
            level = self._levels[space.path] = self._floors.level(space, before)
            if level > worst.level:
                worst = DiskVerdict(level, _describe(space))
        return worst

    def is_near(self, spaces: Sequence[DiskSpace]) -> bool:
        """Say whether a file system may be short soon, so that looks should be frequent."""
        return any(self.floor_bytes(space) > space.free_bytes / 4 for space in spaces)

    def room_bytes(self, spaces: Sequence[DiskSpace]) -> float:
        """Return what can be written until looks should be frequent: the least over the file systems."""
        return min((each.free_bytes - 4 * self.floor_bytes(each) for each in spaces), default=0.0)

    def floor_bytes(self, space: DiskSpace) -> float:
        """Return the free space below which a file system is short."""
        return min(self._floors.short_bytes, space.total_bytes * self._floors.short_share)


def _describe(space: DiskSpace) -> str:
    files = f", {space.free_files} of {space.total_files} files" if space.total_files else ""
    free, total = _mib(space.free_bytes), _mib(space.total_bytes)
    return f"the disk of {space.path} has {free} of {total} MiB free{files}"


def _mib(count: int) -> int:
    return count // 2**20


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise InvalidRequest(f"{name} is {text!r}: give a whole number of bytes")
    return int(text)


def largest_writer(environments: Iterable[EnvironmentDisk]) -> EnvironmentDisk | None:
    """Return the environment to end when a disk is full; None: none has grown.

    Recent ones before all others, then the one that grew most.
    """
    grown = [each for each in environments if each.grown_bytes >= LEAST_GROWTH_BYTES]
    return max(grown, key=lambda each: (each.recent, each.grown_bytes), default=None)
