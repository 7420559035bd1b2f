"""A reserve gives Redis and SQLite room on a full disk, and is made again when there is space."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tangram_web.supervisor.children import Child, Program
from tangram_web.supervisor.reserve import Reserve
from tests.unit.supervisor.conftest import a_program

MIB = 2**20


class Disk:
    """A file system of 120 MiB with settable free space."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_mib = 100.0
        monkeypatch.setattr(os, "statvfs", self.statvfs)

    def statvfs(self, _: object) -> os.statvfs_result:
        return os.statvfs_result((MIB, MIB, 120, int(self.free_mib), int(self.free_mib), *[0] * 5))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_the_reserve_has_blocks_and_is_a_twentieth_of_a_small_disk(
    disk: Disk, tmp_path: Path, announce: Callable[[str], None]
) -> None:
    reserve = Reserve(tmp_path, announce)
    assert reserve.look()
    facts = reserve.path.stat()
    assert facts.st_size == 6 * MIB
    assert facts.st_blocks * 512 >= facts.st_size


def test_the_reserve_is_released_on_a_full_disk_and_made_again_with_enough_space(
    disk: Disk, tmp_path: Path, announce: Callable[[str], None], announced: list[str]
) -> None:
    reserve = Reserve(tmp_path, announce)
    reserve.look()
    kept = []
    for disk.free_mib in (20, 2, 1, 7, 23, 24):
        reserve.look()
        kept.append(reserve.path.exists())
    assert kept == [True, True, False, False, False, True]
    assert announced == [f"the disk of {tmp_path} is full: its reserve of 6 MiB is released"]


def test_a_reserve_of_nothing_makes_no_file(
    disk: Disk, tmp_path: Path, announce: Callable[[str], None]
) -> None:
    reserve = Reserve(tmp_path, announce, 0)
    assert not reserve.look()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free_mib", "seconds"), [(100, 0.25), (8192, 2.0), (10**6, 5.0)])
async def test_it_looks_again_before_a_fast_writer_can_have_filled_the_disk(
    disk: Disk, tmp_path: Path, announce: Callable[[str], None], free_mib: int, seconds: float
) -> None:
    reserve, disk.free_mib = Reserve(tmp_path, announce, 0), free_mib
    pauses: list[float] = []

    async def pause(given: float) -> None:
        pauses.append(given)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await reserve.keep(lambda: None, pause)
    assert pauses == [seconds]


async def test_a_reserve_that_cannot_be_made_ends_nothing(
    disk: Disk, tmp_path: Path, announce: Callable[[str], None], announced: list[str]
) -> None:
    reserve = Reserve(tmp_path, announce)
    (tmp_path / "reserve.new").mkdir()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await reserve.keep(lambda: None, pause)
    assert "cannot be managed" in announced[0]


async def test_a_dead_child_starts_at_once_when_there_is_room_again(
    tmp_path: Path, announce: Callable[[str], None]
) -> None:
    pausing = asyncio.Event()

    async def for_ever(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    source = f"open({str(tmp_path / 'starts')!r}, 'a').write('up\\n')"
    program: Program = a_program(source)
    child = Child(program, cwd=tmp_path, log=tmp_path / "log", announce=announce, pause=for_ever)
    await child.start()
    try:
        async with asyncio.timeout(120):
            await pausing.wait()
            pausing.clear()
            child.hurry()
            await pausing.wait()
    finally:
        await child.stop()
    assert (tmp_path / "starts").read_text() == "up\nup\n"
