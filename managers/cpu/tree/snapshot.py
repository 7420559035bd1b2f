"""Snapshots of one driver: stacks of sealed layers under names, kept until they are removed.

A snapshot is the record of an environment whose upper layer was sealed, in ``snapshots/NAME.json``; its layers
are on disk before the record is (`sync_tree`). Environments that begin from it share its layers.

An *archive* brings a snapshot to another node: one line of JSON, then the layers as `tar` writes them, with
whiteouts and extended attributes. The image below is not part of it. Two archives of a snapshot are equal (`tar_streams`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import InvalidRequest, Unavailable
from managers.common.start_log import sync_directory
from managers.cpu.tree.layers import LAYERS, LayerStack, TreeRecord
from managers.cpu.tree.tar_streams import extract_tar, tar_stream
from managers.cpu.workspaces import safe_name

SNAPSHOTS: Final = "snapshots"
#: Files that are written to disk one by one; with more, the whole file system is.
_MOST_SINGLE: Final = 4096
_THREADS: Final = 16
_MOST_HEAD_BYTES: Final = 1024 * 1024
#: Uids of one family of environments, as `managers.cpu.process.uid_ranges` has them.
RANGE_UIDS: Final = 65536


class KeptSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot on this node."""

    project: str
    name: str
    record: TreeRecord
    size_bytes: int
    #: Namespace of the marks of its overlays: ``user`` or ``trusted``.
    marks: str = "user"
    #: Host uid of root in its files; -1: that of the worker.
    first_uid: int = -1
    #: It came from another node, which may have another one of that name by now.
    imported: bool = False


class SnapshotStore:
    """The snapshots below one state directory; its methods block."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._folder = state / SNAPSHOTS

    def open(self) -> None:
        """Make the directory."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, snapshot: KeptSnapshot) -> None:
        """Store a snapshot; it is on disk afterwards."""
        place = self._place(snapshot.project, snapshot.name)
        draft = place.with_suffix(".draft")
        with open(draft, "wb") as file:
            file.write(msgspec.json.encode(snapshot))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(place)
        sync_directory(self._folder)

    def find(self, project: str, name: str) -> KeptSnapshot | None:
        """Return a snapshot; None when this node does not have it."""
        try:
            content = self._place(project, name).read_bytes()
        except FileNotFoundError:
            return None
        return decode_snapshot(content)

    def remove(self, project: str, name: str) -> None:
        """Remove a snapshot; its layers are deleted when unused layers are. An unknown one is ignored."""
        self._place(project, name).unlink(missing_ok=True)

    def all(self) -> list[KeptSnapshot]:
        """Return all snapshots. Raises InvalidRequest when one cannot be read."""
        with contextlib.suppress(FileNotFoundError):
            found = sorted(self._folder.glob("*.json"))
            return [decode_snapshot(each.read_bytes()) for each in found]
        return []

    def records(self) -> list[TreeRecord]:
        """Return their records, whose images and bases are in use."""
        return [each.record for each in self.all()]

    def stacks(self) -> list[LayerStack]:
        """Return their stacks, whose layers are in use."""
        return [each.stack for each in self.records()]

    def _place(self, project: str, name: str) -> Path:
        return self._folder / f"{safe_name(f'{project}/{name}')}.json"


def decode_snapshot(content: bytes) -> KeptSnapshot:
    """Return the snapshot in ``content``. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(content, type=KeptSnapshot)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"a snapshot cannot be read: {error}") from None


def sync_tree(tree: Path) -> None:
    """Write the files of a tree to disk. Raises OSError."""
    paths = list(_files(tree))
    if len(paths) > _MOST_SINGLE:
        subprocess.run(["sync", "--file-system", str(tree)], check=True)
        return
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(_sync, paths))


def _files(tree: Path) -> Iterator[str]:
    pending = [str(tree)]
    while pending:
        directory = pending.pop()
        yield directory
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path


def _sync(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:  # of a worker that is not root; the directory entry is on disk
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


async def export(state: Path, snapshot: KeptSnapshot) -> AsyncIterator[bytes]:
    """Yield the archive of a snapshot. Raises Unavailable when it cannot be read to its end."""
    yield msgspec.json.encode(snapshot) + b"\n"
    sealed = snapshot.record.stack.sealed
    async with aclosing(
        tar_stream(state / LAYERS, sealed, what="the archive of the snapshot")
    ) as pieces:
        async for piece in pieces:
            yield piece


async def import_archive(
    state: Path,
    draft: Path,
    pieces: AsyncIterator[bytes],
    marks: str,
    first_uid: Callable[[], int],
    keep: Callable[[Iterable[str]], None],
    known: KeptSnapshot | None = None,
) -> KeptSnapshot:
    """Unpack an archive into ``layers``; return the snapshot, which is not stored yet.

    ``draft``: an empty directory on the same file system. ``first_uid``: takes a range of uids, or returns
    -1. ``keep`` is called with the layers before they are in their place. ``known``: what an earlier import
    brought; it is returned if the archive has the same layers.
    Raises InvalidRequest, Unavailable, OSError; then no layer is left.
    """
    head, rest = await _read_head(pieces)
    snapshot = decode_snapshot(head)
    if known is not None and known.record.stack.sealed == snapshot.record.stack.sealed:
        return known
    if snapshot.marks != marks:
        raise InvalidRequest(
            "the node of the snapshot mounts overlays in another way than this one"
        )
    await extract_tar(draft, rest, pieces)
    missing = [each for each in snapshot.record.stack.sealed if not (draft / each).is_dir()]
    if missing:
        raise Unavailable("the archive of the snapshot is not complete")
    keep(snapshot.record.stack.sealed)
    return await asyncio.to_thread(_place_layers, state, draft, snapshot, first_uid())


def _place_layers(state: Path, draft: Path, snapshot: KeptSnapshot, first_uid: int) -> KeptSnapshot:
    for layer in snapshot.record.stack.sealed:
        if first_uid >= 0 and snapshot.first_uid >= 0:
            _shift_owners(draft / layer, snapshot.first_uid, first_uid)
        sync_tree(draft / layer)
        if not (state / LAYERS / layer).exists():
            (draft / layer).rename(state / LAYERS / layer)
    return msgspec.structs.replace(snapshot, first_uid=first_uid, imported=True)


def _shift_owners(tree: Path, former: int, first_uid: int) -> None:
    """Move the owners of a tree to another range of uids; each of several links of one file counts once."""
    pending = [str(tree)]
    while pending:
        path = pending.pop()
        facts = os.lstat(path)
        if stat.S_ISDIR(facts.st_mode):
            pending += [entry.path for entry in os.scandir(path)]
        uid, gid = (
            first_uid + each - former if each in range(former, former + RANGE_UIDS) else each
            for each in (facts.st_uid, facts.st_gid)
        )
        if (uid, gid) != (facts.st_uid, facts.st_gid):
            os.chown(path, uid, gid, follow_symlinks=False)
            if not stat.S_ISLNK(facts.st_mode):
                os.chmod(path, stat.S_IMODE(facts.st_mode))  # chown clears the bits of set-user-id


async def _read_head(pieces: AsyncIterator[bytes]) -> tuple[bytes, bytes]:
    head = b""
    async for piece in pieces:
        head += piece
        line, end, rest = head.partition(b"\n")
        if end:
            return line, rest
        if len(head) > _MOST_HEAD_BYTES:
            break
    raise Unavailable("the archive of the snapshot cannot be read")
