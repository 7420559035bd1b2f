"""What an environment uses of the disk is measured as du does, and seldom where nothing grows."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.errors import InvalidRequest
from managers.cpu import disk_use
from managers.cpu.disk_use import DiskUse, exceeds, measure
from managers.cpu.disk_watch import DiskQuotas, DiskWatch, excess

MIB = 2**20


def test_blocks_are_counted_and_not_lengths(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(100 * MIB)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "full").write_bytes(b"x" * MIB)
    use = measure(tmp_path)
    assert MIB <= use.used_bytes < 2 * MIB
    assert use.files == 3


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/usr")
    (tmp_path / "round").symlink_to(tmp_path)
    assert measure(tmp_path).files == 2


def test_a_single_file_is_measured_and_what_is_no_file_uses_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"x" * MIB)
    (tmp_path / "link").symlink_to(tmp_path / "hosts")
    assert measure(tmp_path / "hosts").used_bytes >= MIB
    assert measure(tmp_path / "link") == DiskUse(0, 0)


def test_a_missing_environment_uses_nothing(tmp_path: Path) -> None:
    assert measure(tmp_path / "missing") == DiskUse(0, 0)


def test_trees_exceed_bytes_and_files_together(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("a", "b", "missing")]
    for root in roots[:2]:
        root.mkdir()
        (root / "full").write_bytes(b"x" * MIB)
    assert not exceeds(roots, 3 * MIB, 2)
    assert exceeds(roots, 2 * MIB - 1, 2)
    assert exceeds(roots, 3 * MIB, 1)


def test_no_depth_of_a_tree_hides_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "_MOST_OPEN", 2)
    for name in ("a", "b"):
        deep = tmp_path / name / "1/2/3/4/5"
        deep.mkdir(parents=True)
        (deep.parent / "file").write_bytes(b"x" * MIB)
        (deep / "file").write_bytes(b"x" * MIB)
    use = measure(tmp_path)
    assert use.files == 2 * (6 + 2)
    assert use.used_bytes >= 4 * MIB


def test_a_directory_that_is_moved_meanwhile_leads_the_walk_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_use, "_MOST_OPEN", 1)
    (tmp_path / "outside").mkdir()
    for number in range(50):
        (tmp_path / f"outside/{number}").mkdir()
    (tmp_path / "root/1/2").mkdir(parents=True)
    scandir = os.scandir

    def moving(descriptor: int) -> object:
        if (tmp_path / "root/1/2").exists() and "root/1/2" in os.readlink(
            f"/proc/self/fd/{descriptor}"
        ):
            (tmp_path / "root/1/2").rename(tmp_path / "outside/2x")
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", moving)
    assert measure(tmp_path / "root").files == 2


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    measure(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_excess_names_the_quota_and_the_cure() -> None:
    assert excess(DiskUse(11, 2), 10, 5) == (
        "disk quota of 10 bytes exceeded: the environment uses 11;"
        " declare a higher environment.disk_bytes, or delete files"
    )
    assert "quota of 5 files exceeded: the environment has 6" in excess(DiskUse(1, 6), 10, 5)
    assert excess(DiskUse(10, 5), 10, 5) == ""


def test_a_quota_is_declared_or_a_share_of_the_disk(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    total = space.f_blocks * space.f_frsize
    quotas = DiskQuotas.parse({}, tmp_path)
    assert quotas.of_environment(0) == min(16 * 2**30, total // 4)
    assert quotas.of_environment(5) == 5
    assert quotas.of_environment(2**62) == max(quotas.default_bytes, total // 2)
    assert DiskQuotas.parse({"environment_disk_bytes": "7"}, tmp_path).of_environment(0) == 7
    with pytest.raises(InvalidRequest, match="environment_disk_bytes is '0'"):
        DiskQuotas.parse({"environment_disk_bytes": "0"}, tmp_path)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_an_environment_above_its_quota_is_stopped_for_its_own_fault(tmp_path: Path) -> None:
    stopped: list[Outcome] = []
    watch = DiskWatch(DiskQuotas())
    watch.begin(tmp_path, MIB, lambda outcome, _: stopped.append(outcome))
    (tmp_path / "big").write_bytes(b"x" * 2 * MIB)
    usage = await watch.usage()
    assert stopped == [Outcome.CANCELLED]
    assert usage[0].grown_bytes == usage[0].used_bytes >= 2 * MIB


async def test_an_action_may_delete_files_of_an_environment_above_its_quota(tmp_path: Path) -> None:
    stopped: list[str] = []
    watch = DiskWatch(DiskQuotas())
    watch.begin(tmp_path, MIB, lambda _, why: stopped.append(why))
    (tmp_path / "big").write_bytes(b"x" * 2 * MIB)
    watch.end(tmp_path)
    await watch.usage()
    watch.begin(tmp_path, MIB, lambda _, why: stopped.append(why))
    await watch.usage()
    assert stopped == []
    (tmp_path / "more").write_bytes(b"x" * MIB)
    await watch.usage()
    assert len(stopped) == 1


async def test_growth_is_counted_from_the_last_calm(tmp_path: Path) -> None:
    watch = DiskWatch(DiskQuotas())
    watch.begin(tmp_path, 0, lambda *_: None)
    (tmp_path / "old").write_bytes(b"x" * MIB)
    await watch.usage()
    watch.calm()
    (tmp_path / "new").write_bytes(b"x" * 2 * MIB)
    assert 2 * MIB <= (await watch.usage())[0].grown_bytes < 3 * MIB


async def test_environments_of_a_predecessor_are_measured_and_dropped_ones_are_not(
    tmp_path: Path,
) -> None:
    watch = DiskWatch(DiskQuotas())
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "big").write_bytes(b"x" * MIB)
    watch.adopt([tmp_path / "left"])
    found = (await watch.usage())[0]
    assert (found.recent, found.grown_bytes >= MIB) == (False, True)
    watch.drop("left")
    assert await watch.usage() == []


async def test_an_environment_is_measured_less_often_while_nothing_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks = Clock(), list[float]()

    def look(_: Path) -> DiskUse:
        looks.append(clock.now)
        return DiskUse(1, 1)

    async def tick(seconds: float) -> None:
        clock.now += seconds
        if clock.now > 140:
            raise asyncio.CancelledError

    monkeypatch.setattr(disk_use, "measure", look)
    monkeypatch.setattr(asyncio, "sleep", tick)
    watch = DiskWatch(DiskQuotas(), clock)
    watch.begin(tmp_path, 0, lambda *_: None)
    with pytest.raises(asyncio.CancelledError):
        await watch.run()
    gaps = [round(b - a, 2) for a, b in itertools.pairwise(looks)]
    assert gaps[:5] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert set(gaps[5:]) == {8.0}


async def test_an_environment_with_a_disk_of_its_own_is_measured_and_not_stopped(
    tmp_path: Path,
) -> None:
    watch = DiskWatch(DiskQuotas(default_bytes=MIB, files=10))
    stopped: list[str] = []
    watch.begin(tmp_path, MIB, lambda _, why: stopped.append(why), has_disk=True)
    (tmp_path / "big").write_bytes(b"x" * 2 * MIB)
    [use] = await watch.usage()
    assert use.used_bytes >= 2 * MIB
    assert stopped == []
