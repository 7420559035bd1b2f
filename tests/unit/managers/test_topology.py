"""Threads of one core stay together."""

from __future__ import annotations

from pathlib import Path

import pytest

from managers.cpu.topology import physical_cores


@pytest.fixture
def two_threads_each(tmp_path: Path) -> Path:
    """Four cores of two threads: 0 and 4, 1 and 5, …"""
    for thread in range(8):
        folder = tmp_path / f"cpu{thread}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{thread % 4},{thread % 4 + 4}\n")
    return tmp_path


def test_a_core_is_known_by_its_lowest_thread(two_threads_each: Path) -> None:
    assert physical_cores(range(8), two_threads_each) == {n: {n, n + 4} for n in range(4)}


def test_threads_that_may_not_be_used_are_left_out(two_threads_each: Path) -> None:
    assert physical_cores((1, 4, 5), two_threads_each) == {1: {1, 5}, 4: {4}}


def test_a_machine_that_does_not_say_has_cores_of_one_thread(tmp_path: Path) -> None:
    assert physical_cores((0, 3), tmp_path) == {0: {0}, 3: {3}}
