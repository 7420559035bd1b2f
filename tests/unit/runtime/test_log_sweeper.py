"""Sweeps of rollout logs reach every log, whatever else is in the folder."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from domain.errors import InvalidRequest, Unavailable
from rollout.ports import Record
from scheduler.runtime.rollouts import log_sweeper
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.log_sweeper import LogSweeper

IDS = [f"rol_{number:028x}" for number in range(5)]


class Queries:
    """The core, as the sweeper sees it."""

    def __init__(self, live: Collection[str] = ()) -> None:
        self.live = live
        self.errors: dict[str, Exception] = {}

    async def rollouts(self, *, rollout_id: str) -> Any:
        if (error := self.errors.get(rollout_id)) is not None:
            raise error
        return SimpleNamespace(rollouts=[rollout_id] if rollout_id in self.live else [])


@pytest.fixture
def logs(tmp_path: Path) -> RolloutLogs:
    logs = RolloutLogs(tmp_path)
    logs.create([(each, Record("request", {})) for each in IDS])
    return logs


def left(logs: RolloutLogs) -> list[str]:
    return sorted(path.name for path in logs.folder.iterdir())


async def test_logs_that_are_kept_do_not_hold_up_the_others(
    logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sweeper, "MOST", 2)
    queries: Any = Queries(live=IDS[:4])
    sweeper = LogSweeper(logs, queries, -60.0)

    assert [await sweeper.sweep() for _ in range(3)] == [0, 0, 1]
    queries.live = IDS[1:4]
    assert await sweeper.sweep() == 1
    assert left(logs) == IDS[1:4]


async def test_a_log_that_cannot_be_asked_for_is_left_out(logs: RolloutLogs) -> None:
    queries: Any = Queries()
    queries.errors = {IDS[1]: InvalidRequest("no id")}

    assert await LogSweeper(logs, queries, -60.0).sweep() == 4
    assert left(logs) == [IDS[1]]


async def test_a_sweep_without_an_answer_of_the_core_ends(logs: RolloutLogs) -> None:
    """A thousand questions without an answer would take hours."""
    queries: Any = Queries()
    queries.errors = {IDS[2]: Unavailable("no leader")}
    sweeper = LogSweeper(logs, queries, -60.0)

    with pytest.raises(Unavailable):
        await sweeper.sweep()
    assert left(logs) == IDS[2:]


async def test_stray_files_are_neither_counted_nor_swept(logs: RolloutLogs) -> None:
    before = logs.used_bytes
    (logs.folder / "lost+found").mkdir()
    (logs.folder / "notes.txt").write_text("x")
    (logs.folder / f"rol_{9:028x}").write_text("no folder")
    queries: Any = Queries()

    assert logs.used_bytes == before
    assert await asyncio.to_thread(logs.untouched, 3600.0) == []
    assert await LogSweeper(logs, queries, -60.0).sweep() == 5
    assert left(logs) == ["lost+found", "notes.txt", f"rol_{9:028x}"]
