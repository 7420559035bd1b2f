"""Starting marks survive anything that leaves a prefix of their file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managers.common.start_log import StartLog
from tests.tiers import by_tier

MARKS = st.integers(0, 9).map(lambda number: f"act_{number}#1")
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.lists(MARKS, max_size=4)))


def read(path: Path) -> list[str]:
    marks = StartLog(path)
    found = marks.open()
    marks.close()
    return found


@settings(deadline=None, max_examples=by_tier(12, 50, 500))
@given(STEPS)
def test_added_entries_are_found_until_removed(steps: list[tuple[str, list[str]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "marks.log"
        marks = StartLog(path)
        marks.open()
        expected: dict[str, None] = {}
        for verb, names in steps:
            if verb == "add":
                marks.add(names)
                expected.update(dict.fromkeys(names))
            else:
                marks.remove(names)
                for name in names:
                    expected.pop(name, None)
        marks.close()
        assert set(read(path)) == set(expected)
        assert set(read(path)) == set(expected)


@pytest.mark.parametrize("torn", [b"+ act_2#", b"+ act_2#1", b"- act_1#1", b"+", b"\xff\xfe"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "marks.log"
    path.write_bytes(b"+ act_1#1\n" + torn)
    assert read(path) == ["act_1#1"]
    assert read(path) == ["act_1#1"]


def test_lines_that_are_no_marks_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "marks.log"
    path.write_bytes(b"\xff\n+ act\n+ act#x\n* act#1\n\n+ act_1#2\n")
    assert read(path) == ["act_1#2"]


def test_the_file_stays_small_after_many_entries(tmp_path: Path) -> None:
    path = tmp_path / "marks.log"
    marks = StartLog(path)
    marks.open()
    marks.add(["act_kept#1"])
    for start in range(0, 6000, 500):
        names = [f"act_{start + offset}#1" for offset in range(500)]
        marks.add(names)
        marks.remove(names)
    marks.close()
    assert path.stat().st_size < 64_000
    assert read(path) == ["act_kept#1"]


def test_a_failed_write_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in the middle of a line; later it has room again."""
    path = tmp_path / "marks.log"
    marks = StartLog(path)
    marks.open()
    marks.add(["act_1#1"])
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))
        with pytest.raises(OSError, match="5 of"):
            marks.add(["act_2#1"])
    marks.add(["act_3#1"])
    marks.close()
    assert read(path) == ["act_1#1", "act_3#1"]
