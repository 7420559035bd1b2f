"""Processes of many ended commands are found by shared scans of the process list."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from managers.cpu.process import process_table
from managers.cpu.process.process_table import ProcessTable
from managers.cpu.process.process_tag import ProcessTagger

ALIVE = 3  # scans until the last process is gone


class CountedTable(ProcessTable):
    """A table whose processes, one of each tag, are gone after some scans."""

    scans = 0

    def find_all(self, besides: Collection[int] = ()) -> dict[int, list[int]]:
        self.scans += 1
        tags = set(range(500)).difference(besides) if self.scans <= ALIVE else ()
        return {tag: [2**22 + tag] for tag in tags}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> CountedTable:
    monkeypatch.setattr(process_table, "_children", list)
    return CountedTable(ProcessTagger(b"key"))


async def test_commands_that_end_together_share_the_scans(table: CountedTable) -> None:
    endings = await asyncio.gather(*(table.end(tag, 60) for tag in range(500)))

    assert all(not ending.remaining for ending in endings)
    # One for each of them would be 2,000; their pauses end at moments of their own on a busy machine.
    assert table.scans <= 50


async def test_what_a_predecessor_left_is_ended_by_as_many_scans_as_it_lives(
    table: CountedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts again finds thousands of processes of thousands of commands."""
    looks: list[str] = []

    def look() -> list[int]:
        looks.append("look")
        return []

    monkeypatch.setattr(process_table, "_children", look)

    endings = await table.end_all({1, 2}, 60)

    assert set(endings) == set(range(500)) - {1, 2}
    assert all(not ending.remaining for ending in endings.values())
    assert table.scans == ALIVE + 1
    assert len(looks) == 1


async def test_what_a_predecessor_left_and_cannot_be_ended_is_named(
    table: CountedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "find_all", lambda besides: {7: [2**22]})
    endings = await table.end_all((), 0.0)
    assert endings[7].ended == 0
    assert endings[7].remaining == ("process 4194304 (, state X)",)


async def test_a_cancelled_end_leaves_the_scan_to_the_others(table: CountedTable) -> None:
    first, second = (asyncio.ensure_future(table.end(tag, 60)) for tag in (1, 2))
    await asyncio.sleep(0)
    first.cancel()

    assert not (await second).remaining
    assert first.cancelled() or first.done()


async def test_a_scan_that_fails_fails_all_who_wait_for_it(
    table: CountedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor() -> dict[int, list[int]]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(table, "find_all", no_descriptor)
    ends = await asyncio.gather(table.end(1, 60), table.end(2, 60), return_exceptions=True)

    assert [type(each) for each in ends] == [OSError, OSError]
