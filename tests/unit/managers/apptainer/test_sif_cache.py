"""Cache of SIF files: one for each use, for each content, or for all workers; and one that cannot be written."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from managers.cpu.apptainer.cache import CachePlace, FailedBuilds, SifCache
from managers.cpu.apptainer.definitions import Definition, parse_definition
from managers.cpu.apptainer.settings import CacheMode
from managers.cpu.tree.images import ImageMissing


def definition(folder: Path, text: str = "one", image: str = "swe:1") -> Definition:
    return parse_definition(image, f"Bootstrap: scratch\n%post\n{text}\n", folder)


def build(place: CachePlace, content: str) -> None:
    assert not place.is_ready
    place.draft.write_text(content)
    place.keep()


async def use(cache: SifCache, of: Definition, content: str) -> tuple[bool, str]:
    """Return whether the file was there, and what it holds."""
    async with cache.place(of) as place:
        was_ready = place.is_ready
        if not was_ready:
            build(place, content)
        return was_ready, place.file.read_text()


async def test_a_versioned_file_is_used_until_its_definition_changes(tmp_path):
    cache = SifCache(tmp_path / "cache", CacheMode.VERSIONED)
    assert await use(cache, definition(tmp_path), "first") == (False, "first")
    assert await use(cache, definition(tmp_path), "second") == (True, "first")
    assert await use(cache, definition(tmp_path, "two"), "third") == (False, "third")


async def test_a_scratch_file_is_of_one_use_and_deleted_with_it(tmp_path):
    cache = SifCache(tmp_path / "cache", CacheMode.SCRATCH)
    async with (
        cache.place(definition(tmp_path)) as first,
        cache.place(definition(tmp_path)) as second,
    ):
        build(first, "1")
        build(second, "2")
        assert first.file != second.file
    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_locked_file_is_built_once_and_not_again_when_its_definition_changes(tmp_path):
    cache = SifCache(tmp_path / "cache", CacheMode.LOCK)
    assert await use(cache, definition(tmp_path), "first") == (False, "first")
    assert await use(cache, definition(tmp_path, "two"), "second") == (True, "first")


async def test_users_of_a_locked_file_wait_for_the_first_one(tmp_path):
    caches = [SifCache(tmp_path / "cache", CacheMode.LOCK) for _ in range(2)]
    order = []

    async def other() -> None:
        async with caches[1].place(definition(tmp_path)) as place:
            order.append(("second", place.is_ready))

    async with caches[0].place(definition(tmp_path)) as place:
        waiting = asyncio.create_task(other())
        for _ in range(5):
            await asyncio.sleep(0)
        order.append(("first", place.is_ready))
        build(place, "1")
    await waiting
    assert order == [("first", False), ("second", True)]


async def test_the_lock_of_a_user_that_failed_passes_to_the_next(tmp_path):
    cache = SifCache(tmp_path / "cache", CacheMode.LOCK)

    async def fail() -> None:
        async with cache.place(definition(tmp_path)) as place:
            place.draft.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await use(cache, definition(tmp_path), "whole") == (False, "whole")
    assert not list((tmp_path / "cache").glob("*.draft"))


async def test_the_first_of_two_files_with_one_content_stays(tmp_path):
    cache = SifCache(tmp_path / "cache", CacheMode.VERSIONED)
    async with (
        cache.place(definition(tmp_path)) as first,
        cache.place(definition(tmp_path)) as second,
    ):
        build(first, "1")
        inode = first.file.stat().st_ino
        build(second, "2")
        assert second.file.stat().st_ino == inode


@pytest.mark.parametrize("mode", list(CacheMode))
async def test_a_cache_that_cannot_be_written_is_named_with_the_cure(tmp_path, mode):
    cache = SifCache(Path("/sys/kernel/tangram"), mode)  # the kernel permits no folder there
    with pytest.raises(
        ImageMissing,
        match=r"/sys/kernel/tangram, which cannot be written .*TANGRAM_APPTAINER_CACHE",
    ):
        async with cache.place(definition(tmp_path)):
            pytest.fail("a place in a cache that cannot be written")


@pytest.mark.parametrize("mode", [CacheMode.VERSIONED, CacheMode.LOCK])
async def test_a_cache_that_cannot_be_written_serves_what_it_has(tmp_path, mode, monkeypatch):
    cache = SifCache(tmp_path / "cache", mode)
    await use(cache, definition(tmp_path), "first")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    for name in ("mkdir", "touch", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    monkeypatch.setattr(os, "open", refuse)
    async with cache.place(definition(tmp_path)) as place:
        assert place.is_ready


@pytest.mark.parametrize("mode", list(CacheMode))
async def test_what_a_killed_build_left_is_deleted_once_no_other_worker_can_be_writing_it(
    tmp_path, mode
):
    now = 1_000_000.0
    cache = SifCache(tmp_path, mode, clock=lambda: now)
    async with cache.place(definition(tmp_path)) as place:
        place.draft.write_text("half")
        os.utime(place.draft, (now, now))
        os.link(place.draft, tmp_path / ".swe-0123456789abcdef.scratch.sif")
        (tmp_path / "swe-1.sif").write_text("whole")
        cache.clean(60)
        assert place.draft.exists()
        now += 61
        cache.clean(60)
        assert not place.draft.exists()
    assert [path.name for path in tmp_path.glob("*.sif")] == ["swe-1.sif"]
    assert not list(tmp_path.glob(".*scratch*"))


def test_no_draft_or_scratch_file_has_the_name_of_an_image(tmp_path):
    cache = SifCache(tmp_path, CacheMode.SCRATCH)
    assert cache.file_of(definition(tmp_path)).name.startswith(".swe")


async def test_files_of_the_least_recent_use_are_surplus(tmp_path):
    now = 1_000_000.0
    folder = tmp_path / "cache"
    cache = SifCache(folder, CacheMode.VERSIONED, most_bytes=350, clock=lambda: now)
    made = {}
    for tag in ("a", "b", "c", "d"):
        await use(cache, definition(tmp_path, image=f"swe:{tag}"), "x" * 100)
        made[tag] = cache.file_of(definition(tmp_path, image=f"swe:{tag}"))
        os.utime(made[tag], (now, now))
        now += 1000
    changed = made["a"].stat().st_mtime_ns
    await use(cache, definition(tmp_path, image="swe:a"), "not built")
    assert made["a"].stat().st_mtime_ns == changed, "it is the same image"

    found = []
    for path in cache.surplus():
        found.append(path)
        if path != made["b"]:  # one that an environment uses
            path.unlink()
    assert found == [made["b"], made["c"]]
    full = SifCache(folder, CacheMode.VERSIONED, most_bytes=1, clock=lambda: now)
    assert list(full.surplus()) == [made["b"], made["d"]], "the other was used just now"


def test_a_cache_has_a_limit_without_a_setting(tmp_path, monkeypatch):
    (tmp_path / "swe.sif").write_bytes(b"x" * 100)
    os.utime(tmp_path / "swe.sif", (0, 0))
    cache = SifCache(tmp_path, CacheMode.VERSIONED)
    usage = shutil.disk_usage(tmp_path)
    assert list(cache.surplus()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(total=199))
    assert list(cache.surplus()) == [tmp_path / "swe.sif"]


def test_a_failed_build_is_remembered_for_a_minute():
    now = 0.0
    failed = FailedBuilds(lambda: now)
    failed.add("swe", "no mirror")
    now = 59.0
    assert (failed.of("swe"), failed.of("math")) == ("no mirror", "")
    now = 60.0
    assert failed.of("swe") == ""
