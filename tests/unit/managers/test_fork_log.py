"""The log of a fork gives its children their records back, and nothing else a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from managers.cpu.tree.fork_log import LOGS, LoggedChild, finish, recover, write_log
from managers.cpu.tree.layers import ENVIRONMENTS, RECORD, LayerStack, TreeRecord
from managers.cpu.tree.records import load_record, write_record

CHILD = TreeRecord(LayerStack("base", sealed=("a", "b")), "lab/child", parent="source")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    for name in (LOGS, ENVIRONMENTS):
        (tmp_path / name).mkdir()
    return tmp_path


def placed(state: Path, name: str = "child") -> Path:
    folder = state / ENVIRONMENTS / name
    folder.mkdir()
    return folder


def logged(state: Path, folder: Path) -> Path:
    return write_log(state, "log", [LoggedChild(folder.name, folder.stat().st_ino, CHILD)])


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_a_damaged_record_is_written_from_the_log(state: Path, damage: str):
    folder = placed(state)
    log = logged(state, folder)
    if damage == "empty":
        (folder / RECORD).write_bytes(b"")
    recover(state)
    assert load_record(folder) == CHILD
    assert not log.exists()


def test_a_record_that_is_there_stays(state: Path):
    folder = placed(state)
    log = logged(state, folder)
    later = TreeRecord(LayerStack("base", sealed=("a", "b", "c")), "lab/child")
    write_record(folder, later)
    recover(state)
    assert load_record(folder) == later
    assert not log.exists()


def test_a_later_environment_of_the_name_and_a_removed_one_get_no_record(state: Path):
    gone, other = placed(state), placed(state, "other")
    log = write_log(
        state, "log",
        [LoggedChild("child", gone.stat().st_ino, CHILD), LoggedChild("other", 1, CHILD)],
    )  # fmt: skip
    gone.rmdir()
    recover(state)
    assert list(other.iterdir()) == []
    assert not gone.exists()
    assert not log.exists()


def test_a_log_that_was_not_complete_is_deleted(state: Path):
    log = logged(state, placed(state))
    log.write_bytes(log.read_bytes()[:-7])
    recover(state)
    assert list((state / LOGS).iterdir()) == []
    assert not (state / ENVIRONMENTS / "child" / RECORD).exists()


def test_a_log_is_deleted_when_its_records_are_on_disk(state: Path):
    folder = placed(state)
    log = logged(state, folder)
    write_record(folder, CHILD, durable=False)
    finish(state, log)
    assert not log.exists()
    assert load_record(folder) == CHILD


def test_a_log_of_a_removed_child_is_finished(state: Path):
    folder = placed(state)
    log = logged(state, folder)
    folder.rmdir()
    finish(state, log)
    assert not log.exists()
