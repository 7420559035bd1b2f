"""Changes of a directory are reported once, in order, and under the names that programs use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.errors import InvalidRequest, NotFound
from managers.cpu.files.file_tree import FileTree, write_whole
from managers.cpu.files.place import NoQuota, TreePlace
from managers.cpu.files.watching import InotifyWatcher


@pytest.fixture
def tree(tmp_path: Path) -> FileTree:
    (tmp_path / "d").mkdir()
    return FileTree(TreePlace.folder(tmp_path, None, NoQuota()))


@pytest.fixture
def watch(tree: FileTree) -> Iterator[InotifyWatcher]:
    watcher = tree.watch("d", recursive=True)
    yield watcher
    watcher.close()


def changes(watcher: InotifyWatcher) -> list[tuple[str, str]]:
    return [(each.name, each.kind) for each in watcher.read()]


def test_programs_create_write_rename_and_remove(tmp_path: Path, watch: InotifyWatcher) -> None:
    place = tmp_path / "d" / "a"
    place.write_text("x")
    assert changes(watch) == [("a", "create"), ("a", "write")]
    place.chmod(0o600)
    place.rename(tmp_path / "d" / "b")
    (tmp_path / "d" / "b").unlink()
    assert changes(watch) == [("a", "chmod"), ("a", "rename"), ("b", "create"), ("b", "remove")]
    assert changes(watch) == []


def test_an_upload_is_a_write_under_its_own_name(tree: FileTree, watch: InotifyWatcher) -> None:
    write_whole(tree, "d/new", b"1")
    assert changes(watch) == [("new", "create"), ("new", "chmod"), ("new", "write")]
    write_whole(tree, "d/new", b"2")
    assert changes(watch) == [("new", "write")]


def test_directories_that_appear_are_watched_with_what_they_hold(
    tree: FileTree, watch: InotifyWatcher
) -> None:
    write_whole(tree, "d/new/deep/file", b"before the watch")
    found = changes(watch)
    assert ("new", "create") in found
    assert ("new/deep/file", "write") in found
    write_whole(tree, "d/new/deep/file", b"after it")
    assert ("new/deep/file", "write") in changes(watch)


def test_without_recursive_only_the_directory_itself_is_watched(
    tree: FileTree, tmp_path: Path
) -> None:
    (tmp_path / "d" / "below").mkdir()
    watcher = tree.watch("d")
    (tmp_path / "d" / "below" / "a").touch()
    (tmp_path / "d" / "b").touch()
    assert changes(watcher)[0] == ("b", "create")
    watcher.close()


def test_only_directories_are_watched(tree: FileTree, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="not a directory"):
        tree.watch("file")
    with pytest.raises(NotFound):
        tree.watch("missing")


def test_a_watcher_leaves_no_descriptor(tree: FileTree) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watcher = tree.watch("d", recursive=True)
        watcher.close()
        watcher.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_watcher_ends_with_its_directory(tmp_path: Path, watch: InotifyWatcher) -> None:
    (tmp_path / "d" / "below").mkdir()
    (tmp_path / "d" / "below").rmdir()
    changes(watch)
    assert not watch.ended
    (tmp_path / "d").rmdir()
    changes(watch)
    assert watch.ended
