"""A snapshot as it is stored, and when the next one is due."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from domain.codec import InboxPart
from scheduler.runtime.redis.journal import START

#: A snapshot is due after this many entries, or once the entries behind the last one took this long to decide, so that a
#: successor takes over quickly.
SNAPSHOT_ENTRIES = 5000
REPLAY_SECONDS = 0.3
#: Deciding takes at least this many times as long as taking snapshots.
SNAPSHOT_SHARE = 10.0

#: One of more bytes is no work of a moment: it takes a loop, or Redis, as long as hundreds of passes.
LARGE_BYTES = 1_000_000


class StoredSnapshot(msgspec.Struct):
    """State of the core, and its place in the journal and in the inbox."""

    journal_id: str
    inbox_id: str
    seq: int
    state: bytes
    inbox_part: InboxPart | None = None


class SnapshotPlace(msgspec.Struct):
    """The first members of a `StoredSnapshot`."""

    journal_id: str = START
    inbox_id: str = START
    seq: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(StoredSnapshot)


def encode_snapshot(snapshot: StoredSnapshot) -> bytes:
    """Return the stored form."""
    return _encode(snapshot)


def decode_snapshot(stored: bytes) -> StoredSnapshot:
    """Return a snapshot from its stored form. Raises msgspec.DecodeError."""
    return _decoder.decode(stored)


def place_in(head: bytes) -> SnapshotPlace:
    """Return the place of a snapshot that begins so."""
    before, name, rest = head.partition(b"\xa3seq")
    if not name:
        return SnapshotPlace()
    size = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(rest[0], 1)  # of a number in msgpack
    three_members = b"\x83" + before[1:] + name + rest[:size]
    return msgspec.msgpack.decode(three_members, type=SnapshotPlace)


@dataclass
class SnapshotPace:
    """The last snapshot of a process, which says when the next one is due."""

    #: Its journal entry.
    seq: int
    #: What the process had spent on decisions until then.
    decided_seconds: float
    #: What taking it took.
    took_seconds: float = 0.0

    def is_due(self, seq: int, decided_seconds: float, patience: float = 1.0) -> bool:
        """Whether the next one is due; ``patience``: only after so many times as much as usual."""
        if seq - self.seq >= patience * SNAPSHOT_ENTRIES:
            return True
        decided = decided_seconds - self.decided_seconds
        return decided >= patience * max(REPLAY_SECONDS, SNAPSHOT_SHARE * self.took_seconds)
