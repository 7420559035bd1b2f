"""Log of forks: the records of all children of one fork in one file, until each is on disk.

A fork answers once its children outlive a power failure. A sync of each record would wait for the disk as often as there
are children. So their records are first in one file that is synced, before the first child is in its place; each is
synced afterwards in the background, and then the file is deleted. A driver that opens writes the records that a power
failure has damaged from the file (`recover`). A child is recognised by its inode: a later environment with its name
is another one.

Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import InvalidRequest
from managers.common.start_log import sync_directory
from managers.cpu.tree.layers import ENVIRONMENTS, RECORD, TreeRecord
from managers.cpu.tree.records import load_record, store_record

#: Directory of logs, below the state directory.
LOGS: Final = "forks"


class LoggedChild(msgspec.Struct, frozen=True):
    """A child that may have no record on disk yet."""

    #: Name of its folder, and the folder's inode.
    name: str
    inode: int
    record: TreeRecord


_children = msgspec.json.Decoder(list[LoggedChild])


def write_log(state: Path, name: str, children: Iterable[LoggedChild]) -> Path:
    """Write a log, which is on disk afterwards; return its path. Raises OSError."""
    path = state / LOGS / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with open(path, "wb") as file:
        file.write(msgspec.json.encode(list(children)))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return path


def finish(state: Path, log: Path) -> None:
    """Sync the records that a log names, and delete it. Raises OSError; then the log stays."""
    for child in _children.decode(log.read_bytes()):
        folder = state / ENVIRONMENTS / child.name
        with contextlib.suppress(FileNotFoundError):  # it was removed
            _sync(folder / RECORD)
            sync_directory(folder)
    log.unlink()


def recover(state: Path) -> None:
    """Write the records that are missing or damaged, and delete all logs. Raises OSError.

    A log that cannot be read was not complete, so none of its children was in its place.
    """
    (state / LOGS).mkdir(mode=0o700, parents=True, exist_ok=True)
    for log in (state / LOGS).iterdir():
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            for child in _children.decode(log.read_bytes()):
                _restore(state / ENVIRONMENTS / child.name, child)
        log.unlink()


def _restore(folder: Path, child: LoggedChild) -> None:
    try:
        if os.lstat(folder).st_ino != child.inode:
            return
    except FileNotFoundError:
        return
    with contextlib.suppress(InvalidRequest):
        if load_record(folder) != TreeRecord():
            return
    store_record(folder, child.record)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
