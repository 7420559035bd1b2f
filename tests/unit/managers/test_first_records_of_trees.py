"""An environment gets its first record once, also when its first command and its first transfer come at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from domain.action import EnvironmentSpec
from managers.cpu.tree import trees as module
from managers.cpu.tree.layers import LayerStack, TreeRecord
from managers.cpu.tree.mounts import MountedTree
from managers.cpu.tree.records import load_record
from managers.cpu.tree.trees import Trees

#: Longest time in which a second thread would begin to read the record as well.
_LOOK_SECONDS = 0.05


def test_a_second_thread_waits_for_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    trees, again = Trees(tmp_path), threading.Event()
    monkeypatch.setattr(Trees, "has_layers", True)
    reads: list[Path] = []
    others: list[Future[TreeRecord]] = []

    def load(folder: Path) -> TreeRecord:
        reads.append(folder)
        if len(reads) > 1:
            again.set()
        else:
            others.append(threads.submit(trees.ensure, folder, EnvironmentSpec(), None))
            again.wait(_LOOK_SECONDS)
        return load_record(folder)

    monkeypatch.setattr(module, "load_record", load)
    with ThreadPoolExecutor(1) as threads:
        record = trees.ensure(tmp_path / "one", EnvironmentSpec(), None)

    assert [each.result() for each in others] == [record]
    assert len(reads) == 1


class OverlappingWay:
    """A way whose first mount begins another one of the same environment, and notes whether that began as well."""

    name, has_layers = "test", True

    def __init__(self, begin_other: Callable[[], Future[int]]) -> None:
        self._begin_other = begin_other
        self.other: Future[int] | None = None
        self.entered = threading.Event()
        self.overlapped = False

    def mount(self, folder: Path, stack: LayerStack, users: int | None) -> MountedTree:
        self.other = self._begin_other()
        self.overlapped = self.entered.wait(_LOOK_SECONDS)
        return MountedTree(())

    def open_root(self, folder: Path, stack: LayerStack, users: int | None) -> int:
        self.entered.set()
        return 7

    def close(self) -> None:
        """Nothing is held."""


def test_an_environment_is_mounted_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """A transfer mounts it beside the start of its first command, and each deletes the mark of the other."""
    (tmp_path / "one" / "layer").mkdir(parents=True)
    trees = Trees(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        way = OverlappingWay(lambda: threads.submit(trees.open_root, tmp_path / "one", None))
        trees._way = way
        trees.mount(tmp_path / "one", EnvironmentSpec(), None)

    assert way.other is not None
    assert way.other.result() == 7
    assert not way.overlapped
