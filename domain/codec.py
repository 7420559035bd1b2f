"""Encoding of events and decisions: msgpack of tagged structs, one `JournalEntry` per cycle.

A stream entry of the inbox holds its messages in the fields ``"0"``, ``"1"``, …; one of a node
holds a list of `NodeCommand` in the field ``"c"``; one of the journal one `JournalEntry` in ``"e"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from domain.decisions import (
    Abort,
    Decision,
    EndMove,
    Evict,
    Forget,
    ForkEnvironment,
    MoveEnvironment,
    ReceiveEnvironment,
    RemoveEnvironment,
    Resize,
    TransferFile,
)
from domain.errors import Unreadable
from domain.events import Command, Event
from domain.inventory import Config
from domain.ports import PrepareOrder, RunOrder
from domain.ports.images import WarmOrder

JOURNAL_FIELD = b"e"
COMMANDS_FIELD = b"c"


class InboxPart(msgspec.Struct, frozen=True, array_like=True):
    """The first messages of one inbox entry."""

    entry_id: str
    messages: int


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """One cycle: the events and the decisions of the core."""

    #: Counts all cycles of this system, over all leaders.
    seq: int
    epoch: int
    #: Journal time, seconds: never runs backward, starts as wall clock.
    at: float
    #: Wall clock minus journal time when this was written, for display.
    wall_offset_seconds: float
    #: Last inbox entry that is part of this or an earlier entry.
    inbox_id: str
    events: list[Event]
    decisions: list[Decision]
    #: Handled part of the inbox entry after ``inbox_id``; None: nothing of it.
    inbox_part: InboxPart | None = None


class NodeCommand(msgspec.Struct, omit_defaults=True):
    """One message to a node; exactly one of the fields is set."""

    epoch: int
    run: RunOrder | None = None
    abort: Abort | None = None
    remove: RemoveEnvironment | None = None
    transfer: TransferFile | None = None
    fork: ForkEnvironment | None = None
    resize: Resize | None = None
    evict: Evict | None = None
    prepare: PrepareOrder | None = None
    warm: WarmOrder | None = None
    move: MoveEnvironment | None = None
    receive: ReceiveEnvironment | None = None
    end_move: EndMove | None = None
    #: The last command of a node: the worker exits, and restarts under another identity.
    forget: Forget | None = None


NO_BODY = msgspec.Raw(b"")


class Reply(msgspec.Struct, omit_defaults=True):
    """Reply to a query of a web process."""

    request_id: str
    ok: bool = True
    code: str = ""
    detail: str = ""
    #: Empty when there is none.
    body: msgspec.Raw = NO_BODY


_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_entries = msgspec.msgpack.Decoder(JournalEntry)
_node_commands = msgspec.msgpack.Decoder(list[NodeCommand])
_configs = msgspec.msgpack.Decoder(Config)
_replies = msgspec.msgpack.Decoder(Reply)

encode = _encoder.encode
decode_command = _commands.decode
decode_entry = _entries.decode
decode_node_commands = _node_commands.decode
decode_config = _configs.decode
decode_reply = _replies.decode


def read_entry(stream_id: str, fields: Mapping[bytes, bytes]) -> JournalEntry:
    """Decode a stream entry of the journal. Raises Unreadable."""
    try:
        return decode_entry(fields[JOURNAL_FIELD])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError) as error:
        raise Unreadable(
            f"journal entry {stream_id} cannot be read ({type(error).__name__}: {error}): it is "
            "damaged, or a newer version wrote it. Start the version that wrote it; if that cannot "
            "read it either, see 'Unreadable messages' in docs/operations.md",
            entry_id=stream_id,
        ) from None


def pack_fields(messages: Iterable[bytes]) -> list[str | bytes]:
    """Return messages as the fields and values of one stream entry."""
    packed: list[str | bytes] = []
    for number, message in enumerate(messages):
        packed += (str(number), message)
    return packed


def unpack_fields(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the messages of one stream entry in their order."""
    return list(fields.values())
