"""Making a machine from what is in Redis: the snapshot, then the journal behind it.

The journal holds decisions too. A machine that decides otherwise than the journal says (it was
written by another version) must not go on from there: nodes have been told what the journal says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import msgspec
import redis

from domain.errors import InvariantViolation
from domain.inventory import Config
from domain.keys import Keys
from scheduler.core import snapshot
from scheduler.core.machine import Machine
from scheduler.core.state import MakeLedger
from scheduler.runtime.journal import START, Journal


class StoredSnapshot(msgspec.Struct):
    """The core's state and the place in journal and inbox at which it was taken."""

    journal_id: str
    inbox_id: str
    seq: int
    state: bytes


_decoder = msgspec.msgpack.Decoder(StoredSnapshot)


@dataclass
class Recovered:
    """A machine that is level with the journal."""

    machine: Machine
    journal_id: str = START
    inbox_id: str = START
    seq: int = 0
    replayed: int = 0


def recover(
    client: redis.Redis,
    keys: Keys,
    make_ledger: MakeLedger,
    config: Config,
    progress: Callable[[], None] = lambda: None,
) -> Recovered:
    """Return a machine level with the journal; ``config`` is for the very first start.

    ``progress`` is called after every entry. Raises InvariantViolation when the journal's decisions are not the machine's.
    """
    stored = cast("bytes | None", client.get(keys.snapshot))
    if stored is None:
        recovered = Recovered(Machine(make_ledger, config))
    else:
        taken = _decoder.decode(stored)
        machine = snapshot.load(taken.state, make_ledger)
        recovered = Recovered(machine, taken.journal_id, taken.inbox_id, taken.seq)
    for stream_id, entry in Journal(client, keys).after(recovered.journal_id):
        if recovered.machine.handle(*entry.events) != entry.decisions:
            raise InvariantViolation(
                f"replay of journal entry {stream_id} (seq {entry.seq}) decides otherwise than it "
                "did: another version wrote it. Start that version once more and stop it cleanly; "
                "a clean stop leaves a snapshot and nothing to replay."
            )
        recovered.journal_id, recovered.inbox_id = stream_id, entry.inbox_id
        recovered.seq = entry.seq
        recovered.replayed += 1
        progress()
    return recovered
