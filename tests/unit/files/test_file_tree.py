"""Operations on files of an environment do what is asked inside its tree, and change nothing outside."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import UNSET

from domain.errors import Conflict, InvalidRequest, NotFound, StorageFull
from domain.ports import FileKind
from managers.cpu.files.file_tree import FileDownload, FileTree, read_whole, write_whole
from managers.cpu.files.place import NoQuota, TreePlace
from managers.cpu.files.resolution import PathScope

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def tree(root: Path) -> FileTree:
    """The whole tree."""
    return FileTree(TreePlace.folder(root, None, NoQuota(), PathScope.ROOT))


@pytest.fixture
def folder(root: Path) -> FileTree:
    """The workspace alone, as an environment without an image has it."""
    return FileTree(TreePlace.folder(root / "workspace", None, NoQuota()))


def read(tree: FileTree, path: str) -> bytes:
    return read_whole(tree, path, 1000)


def test_relative_paths_are_below_the_workspace_and_absolute_ones_below_the_root(tree: FileTree):
    assert read(tree, "file") == read(tree, "/workspace/file") == b"content"
    assert read(tree, "/etc/hosts") == b"inside"


def test_a_workspace_alone_has_no_other_absolute_paths(folder: FileTree):
    assert read(folder, "/workspace/./file") == b"content"
    for path in ("/etc/hosts", "/workspacex/file", "/"):
        with pytest.raises(InvalidRequest, match="outside the workspace"):
            read(folder, path)


@pytest.mark.parametrize("path", ["../x", "a/../x", "/workspace/..", "x\0y"])
def test_a_path_that_climbs_is_refused(tree: FileTree, folder: FileTree, path: str):
    for each in (tree, folder):
        for operation in (each.stat, each.entries, each.remove, each.make_directory):
            with pytest.raises(InvalidRequest):
                operation(path)


def test_a_file_is_written_with_its_directories_and_mode(tree: FileTree, root: Path):
    write_whole(tree, "/opt/new/script", b"#!/bin/sh\n")
    there = root / "opt/new/script"
    assert there.read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE(there.stat().st_mode) == 0o644
    written = tree.write_file("/opt/new/script", mode=0o755)
    written.write(b"x")
    assert there.read_bytes() == b"#!/bin/sh\n", "the old file stays until the new one is complete"
    assert written.commit().mode == "0755"
    assert there.read_bytes() == b"x"
    write_whole(tree, "/opt/new/script", b"y")
    assert stat.S_IMODE(there.stat().st_mode) == 0o755, "a replaced file keeps its mode"
    assert os.listdir(there.parent) == ["script"]


def test_a_file_has_the_attributes_of_its_last_write(tree: FileTree, root: Path):
    written = tree.write_file("noted", mode=0o400, attributes={"e2b.author": "me"})
    assert written.commit().mode == "0400"
    os.setxattr(root / "workspace/noted", "user.overlay.opaque", b"y")

    assert tree.stat("noted").attributes is UNSET
    assert tree.stat("noted", attributes=True).attributes == {"e2b.author": "me"}
    listed = {each.name: each.attributes for each in tree.entries("", attributes=True).entries}
    assert listed == {"deep": {}, "file": {}, "noted": {"e2b.author": "me"}}
    tree.write_file("noted").commit()
    assert tree.stat("noted", attributes=True).attributes == {}


def test_a_link_shows_no_attributes_of_what_is_outside(tree: FileTree, root: Path):
    outside = root.parent / "outside" / "secret"
    os.setxattr(outside, "user.secret", b"x")
    (root / "workspace" / "link").symlink_to(outside)

    assert tree.stat("link", follow=False, attributes=True).attributes == {}
    (link,) = (each for each in tree.entries("", attributes=True).entries if each.name == "link")
    assert link.attributes in (UNSET, {})


def test_an_attribute_that_cannot_be_stored_leaves_the_old_file(tree: FileTree, root: Path):
    with pytest.raises((InvalidRequest, StorageFull)):
        tree.write_file("file", attributes={"large": "x" * 70_000})
    assert (root / "workspace/file").read_text() == "content"
    assert sorted(os.listdir(root / "workspace")) == ["deep", "file"]


def test_an_upload_that_breaks_off_leaves_the_old_file(tree: FileTree, root: Path):
    written = tree.write_file("file")
    written.write(b"half")
    written.abort()
    written.abort()
    assert (root / "workspace/file").read_text() == "content"
    assert sorted(os.listdir(root / "workspace")) == ["deep", "file"]


def test_a_link_at_the_place_of_a_file_is_replaced_and_its_target_stays(tree: FileTree, root: Path):
    (root / "workspace" / "link").symlink_to("/etc/hosts")
    assert read(tree, "link") == b"inside"
    write_whole(tree, "link", b"new")
    assert (root / "workspace" / "link").read_bytes() == b"new"
    assert (root / "etc/hosts").read_text() == "inside"


def test_a_directory_is_no_file(tree: FileTree):
    for path in ("deep", "/", "", "deep/", "/workspace"):
        with pytest.raises(InvalidRequest):
            write_whole(tree, path, b"x")
        with pytest.raises(InvalidRequest):
            read(tree, path)


def test_special_files_are_not_opened(tree: FileTree, root: Path):
    os.mkfifo(root / "workspace" / "pipe")
    assert tree.stat("pipe").kind is FileKind.OTHER
    with pytest.raises(InvalidRequest, match="not a regular file"):
        tree.open_file("pipe")


def test_entries_are_pages_by_name(tree: FileTree, root: Path):
    (root / "workspace" / "link").symlink_to("nowhere")
    names, after = [], ""
    for _ in range(3):
        page = tree.entries("", after=after, limit=1)
        names += [(each.name, each.kind, each.target) for each in page.entries]
        after = page.next or ""
    assert names == [
        ("deep", FileKind.DIRECTORY, None),
        ("file", FileKind.FILE, None),
        ("link", FileKind.LINK, "nowhere"),
    ]
    assert after == ""
    assert tree.entries("").entries[1].size_bytes == len("content")


def test_a_name_that_is_no_text_is_shown(tree: FileTree, root: Path):
    with open(os.fsencode(root / "workspace") + b"/\xff", "wb"):
        pass
    assert tree.entries("").entries[-1].name == "\\xff"


def test_facts_of_a_link_are_its_own_or_those_of_its_target(tree: FileTree, root: Path):
    (root / "workspace" / "link").symlink_to("/etc/hosts")
    assert tree.stat("link").size_bytes == len("inside")
    assert tree.stat("link", follow=False).target == "/etc/hosts"
    with pytest.raises(NotFound):
        tree.stat("missing")


def test_directories_are_made_once_or_with_their_parents(tree: FileTree, root: Path):
    assert tree.make_directory("a/b/c", mode=0o700).mode == "0700"
    assert tree.make_directory("a/b/c").kind is FileKind.DIRECTORY
    with pytest.raises(Conflict):
        tree.make_directory("a/b/c", parents=False)
    with pytest.raises(NotFound):
        tree.make_directory("x/y", parents=False)
    with pytest.raises(InvalidRequest):
        tree.make_directory("file")


def test_a_move_replaces_only_where_that_is_wanted(tree: FileTree, root: Path):
    write_whole(tree, "other", b"other")
    with pytest.raises(Conflict):
        tree.move("other", "/etc/hosts")
    tree.move("other", "/etc/hosts", replace=True)
    assert (root / "etc/hosts").read_text() == "other"
    with pytest.raises(NotFound):
        tree.move("other", "third")
    with pytest.raises(NotFound):
        tree.move("file", "missing/third")
    tree.move("deep", "/etc/deep")
    assert (root / "etc/deep").is_dir()


def test_only_what_is_empty_is_removed_alone(tree: FileTree, root: Path):
    (root / "workspace/link").symlink_to("/etc/hosts")
    for path in ("link", "file", "deep"):
        tree.remove(path)
    with pytest.raises(Conflict, match="recursive"):
        tree.remove("/etc")
    for path in ("/", "/workspace", ""):
        with pytest.raises(InvalidRequest):
            tree.remove(path)
    assert (root / "etc/hosts").exists()


def test_permissions_are_those_of_the_target(tree: FileTree, root: Path):
    (root / "workspace" / "link").symlink_to("/etc/hosts")
    assert tree.set_mode("link", 0o600).mode == "0600"
    assert stat.S_IMODE((root / "etc/hosts").stat().st_mode) == 0o600


def test_a_range_of_a_file_is_read(tree: FileTree):
    opened = tree.open_file("file")
    assert opened.facts.size_bytes == 7
    assert opened.read(3, 2) == b"te"
    assert opened.read(7, 10) == b""
    opened.close()
    opened.close()


class SmallRoom(NoQuota):
    """Room for ten bytes."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, size_bytes: int, files: int = 0) -> None:
        if self.taken + size_bytes > 10:
            raise StorageFull("ten bytes")
        self.taken += size_bytes

    def give_back(self, size_bytes: int, files: int = 0) -> None:
        self.taken -= size_bytes


def test_a_file_above_the_quota_leaves_the_old_one_and_its_room(root: Path):
    room = SmallRoom()
    tree = FileTree(TreePlace.folder(root, None, room, PathScope.ROOT))
    with pytest.raises(StorageFull):
        tree.write_file("file", size_bytes=11)
    written = tree.write_file("file")
    written.write(b"12345")
    with pytest.raises(StorageFull):
        written.write(b"678901")
    written.abort()
    assert (room.taken, (root / "workspace/file").read_text()) == (0, "content")
    write_whole(tree, "file", b"1234567890")
    assert room.taken == 10


def test_no_operation_leaves_a_descriptor_open(tree: FileTree, root: Path):
    before = len(os.listdir("/proc/self/fd"))
    write_whole(tree, "a/b", b"x")
    for path in ("missing/x", "file/x", "deep"):
        for operation in (
            tree.stat,
            tree.remove,
            tree.entries,
            tree.open_file,
            tree.make_directory,
        ):
            try:
                found = operation(path)
            except InvalidRequest:
                continue
            if isinstance(found, FileDownload):
                found.close()
        with pytest.raises(InvalidRequest):
            tree.write_file(f"{path}/")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_files_of_the_users_of_an_environment_are_read_and_those_of_others_are_not(root: Path):
    """The environment's root is uid 70000; its users are the uids up to 70099."""
    for path in (root.parent.parent, root.parent, root):
        path.chmod(0o755)
    workspace = root / "workspace"
    for name, uid in (("of_a_user", 70_005), ("of_another_environment", 70_100), ("of_root", 0)):
        (workspace / name).write_text(name)
        (workspace / name).chmod(0o600)
        os.chown(workspace / name, uid, uid)
    tree = FileTree(TreePlace.folder(workspace, 70_000, NoQuota()))
    users = FileTree(replace(tree.place, uids=100))
    assert read(users, "of_a_user") == b"of_a_user"
    for each, name in (
        (tree, "of_a_user"),
        (users, "of_another_environment"),
        (users, "of_root"),
    ):
        with pytest.raises(InvalidRequest, match="Permission denied"):
            read(each, name)
