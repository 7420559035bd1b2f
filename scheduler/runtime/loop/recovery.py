"""Recovery of the machine from Redis: the snapshot, then a replay of the journal behind it.

The journal holds decisions, too. A machine that decides otherwise than the journal (which another
version wrote) must not continue: nodes have already read the commands that follow from it. Nor may
it continue over a hole, which is an entry that is missing or cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import msgspec
import redis

from domain.codec import InboxPart, JournalEntry
from domain.decisions import Decision
from domain.errors import Unreadable
from domain.events import ConfigApplied
from domain.inventory import Config
from domain.redis_keys import Keys
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.core.state.supply import MakeLedger
from scheduler.runtime.loop.poison_messages import NoMessageToBlame
from scheduler.runtime.redis.journal import START, Journal


class StoredSnapshot(msgspec.Struct):
    """State of the core, and its place in the journal and in the inbox."""

    journal_id: str
    inbox_id: str
    seq: int
    state: bytes
    inbox_part: InboxPart | None = None


_decoder = msgspec.msgpack.Decoder(StoredSnapshot)


@dataclass
class Recovered:
    """A machine that is level with the journal."""

    machine: Machine
    journal_id: str = START
    inbox_id: str = START
    seq: int = 0
    replayed: int = 0
    #: The settled part of the inbox entry behind ``inbox_id``.
    inbox_part: InboxPart | None = None


def recover(
    client: redis.Redis,
    keys: Keys,
    make_ledger: MakeLedger,
    config: Config,
    progress: Callable[[], None] = lambda: None,
) -> Recovered:
    """Return a machine level with the journal; ``config`` is used at the very first start.

    A journal without a snapshot, of a loop that was killed before it stored one, begins with the configuration of its time:
    a later one would be in force for entries that were decided before it.

    ``progress`` is called after every entry. Raises Unreadable when what is stored cannot be read,
    has a hole, or when the journal's decisions are not the machine's; NoMessageToBlame when the core raises.
    """
    stored = cast("bytes | None", client.get(keys.snapshot))
    if stored is None:
        recovered = Recovered(Machine(make_ledger, config))
    else:
        taken, machine = _load(stored, make_ledger)
        recovered = Recovered(machine, taken.journal_id, taken.inbox_id, taken.seq)
        recovered.inbox_part = taken.inbox_part
    with closing(Journal(client, keys)) as journal:
        for stream_id, entry in journal.after(recovered.journal_id):
            if stored is None and recovered.seq == 0 and isinstance(entry.events[0], ConfigApplied):
                recovered.machine = Machine(make_ledger, Config())
            _replay(recovered, stream_id, entry)
            progress()
    return recovered


def _load(stored: bytes, make_ledger: MakeLedger) -> tuple[StoredSnapshot, Machine]:
    try:
        taken = _decoder.decode(stored)
        return taken, snapshot.load(taken.state, make_ledger)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"the snapshot cannot be read ({error}): it is damaged, or another version stored it. "
            "Start the version that stored it; see 'Unreadable messages' in docs/operations.md"
        ) from None


def _replay(recovered: Recovered, stream_id: str, entry: JournalEntry) -> None:
    if entry.seq != recovered.seq + 1:
        raise Unreadable(
            f"the journal has a hole before entry {stream_id}: number {recovered.seq + 1} should "
            f"follow and {entry.seq} does. The decisions in between are lost; restore the last "
            "backup (docs/operations.md)",
            entry_id=stream_id,
        )
    if _decided(recovered.machine, stream_id, entry) != entry.decisions:
        raise Unreadable(
            f"replay of journal entry {stream_id} (seq {entry.seq}) differs from its "
            "decisions: another version wrote it. Start that version once more and stop it cleanly; "
            "a clean stop leaves a snapshot and nothing to replay.",
            entry_id=stream_id,
        )
    recovered.journal_id, recovered.inbox_id = stream_id, entry.inbox_id
    recovered.inbox_part = entry.inbox_part
    recovered.seq = entry.seq
    recovered.replayed += 1


def _decided(machine: Machine, stream_id: str, entry: JournalEntry) -> list[Decision]:
    try:
        return machine.handle(*entry.events)
    except MemoryError:
        raise
    except Exception as error:
        raise NoMessageToBlame(error, f" at replaying journal entry {stream_id}") from error
