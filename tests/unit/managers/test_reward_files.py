"""Files of a reward are as they were placed when its command starts, or it does not start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.ports import RunReport
from managers.cpu.reward_files import FilesChanged, RewardFiles

SCORE = "out/score.json"


def forged(workspace: Path) -> None:
    (workspace / "out").mkdir(exist_ok=True)
    (workspace / SCORE).write_text('{"score": 1}')


def linked(workspace: Path) -> None:
    (workspace / "tests" / "it").unlink()
    (workspace / "tests" / "it").symlink_to("/etc/passwd")


def rewritten(workspace: Path) -> None:
    (workspace / "tests" / "it").write_text("forged")


@pytest.mark.parametrize("change", [forged, linked, rewritten])
async def test_a_change_before_the_seal_is_found_after_it(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    started = []

    @asynccontextmanager
    async def sealed() -> AsyncIterator[None]:
        change(tmp_path)
        yield

    async def command() -> RunReport:
        started.append(1)
        return RunReport(Outcome.COMPLETED, 0.0)

    files = RewardFiles(SCORE, 1000, given={"tests/it": "genuine"})
    with pytest.raises(FilesChanged):
        await files.around(command, tmp_path, sealed=sealed)
    assert not started
    assert not (tmp_path / "tests").exists()


async def test_evidence_is_read_while_the_environment_is_sealed(tmp_path: Path) -> None:
    @asynccontextmanager
    async def sealed() -> AsyncIterator[None]:
        yield
        (tmp_path / SCORE).write_text('{"score": 1}')

    async def command() -> RunReport:
        (tmp_path / "out").mkdir()
        (tmp_path / SCORE).write_text('{"score": 0}')
        return RunReport(Outcome.COMPLETED, 0.0)

    report = await RewardFiles(SCORE, 1000).around(command, tmp_path, sealed=sealed)
    assert report.reward_file is not None
    assert report.reward_file.content == b'{"score": 0}'
