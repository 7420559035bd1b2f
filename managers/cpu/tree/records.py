"""Records of trees on disk: each environment's, read and replaced as a whole.

A record is replaced by rename after its bytes are on disk, so a crash leaves the earlier or the later one.
A folder without a record has the stack of earlier versions: no layer below.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from managers.common.start_log import sync_directory
from managers.cpu.tree.layers import (
    ENVIRONMENTS,
    RECORD,
    LayerStack,
    TreeRecord,
    decode_record,
    encode_record,
)


def load_record(folder: Path) -> TreeRecord:
    """Return the record of an environment's folder. Raises InvalidRequest when it cannot be read."""
    try:
        return decode_record((folder / RECORD).read_bytes())
    except FileNotFoundError:
        return TreeRecord()


def store_record(folder: Path, record: TreeRecord, *, durable: bool = True) -> None:
    """Replace the record of an environment's folder; a ``durable`` one is on disk afterwards. Blocks."""
    draft = folder / f"{RECORD}.draft"
    with open(draft, "wb") as file:
        file.write(encode_record(record))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    draft.rename(folder / RECORD)
    if durable:
        sync_directory(folder)


def write_record(folder: Path, record: TreeRecord, *, durable: bool = True) -> None:
    """Write the first record of a folder that nothing reads yet; a ``durable`` one is on disk afterwards. Blocks.

    Without a rename one commit of the file system has both file and name.
    """
    with open(folder / RECORD, "wb") as file:
        file.write(encode_record(record))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    if durable:
        sync_directory(folder)


def all_records(state: Path) -> dict[str, TreeRecord]:
    """Return the record of each environment below a state directory, by the name of its folder. Blocks."""
    records = {}
    with contextlib.suppress(FileNotFoundError):
        for folder in (state / ENVIRONMENTS).iterdir():
            with contextlib.suppress(NotADirectoryError):
                records[folder.name] = load_record(folder)
    return records


def all_stacks(state: Path) -> dict[str, LayerStack]:
    """Return the stack of each environment below a state directory, by the name of its folder. Blocks."""
    return {name: record.stack for name, record in all_records(state).items()}
