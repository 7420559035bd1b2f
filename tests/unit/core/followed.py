"""A journal in memory, as a leader writes it about a world, and a standby that follows it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, Final, cast
from unittest.mock import patch

import msgspec
import redis

from domain.codec import JOURNAL_FIELD, JournalEntry, encode, read_entry
from domain.redis_keys import Keys
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.runtime.loop import recovery
from scheduler.runtime.loop.recovery import Recovered, StandbyState, recover
from scheduler.runtime.loop.stored_snapshot import StoredSnapshot
from scheduler.runtime.redis.connection import Entries
from scheduler.runtime.redis.journal import START, id_parts
from tests.builders import make_ledger
from tests.unit.core.watched import FIRST_CONFIG, Watched

KEYS: Final = Keys("followed")


class StoredThings:
    """What Redis would have: the snapshot and the journal."""

    def __init__(self) -> None:
        self.snapshot: bytes | None = None
        self.entries: Entries = []

    def get(self, _: str) -> bytes | None:
        return self.snapshot

    def getrange(self, _: str, first: int, last: int) -> bytes:
        return (self.snapshot or b"")[first : last + 1]


class JournalInMemory:
    """Reads the journal of `StoredThings`, as `Journal` does that of Redis."""

    def __init__(self, stored: StoredThings, _: Keys) -> None:
        self._stored = stored

    def stored(self, first: str, count: int) -> Entries:
        at = id_parts(first)
        return [each for each in self._stored.entries if id_parts(each[0]) >= at][:count]

    def after(self, stream_id: str) -> Iterator[tuple[str, JournalEntry]]:
        at = id_parts(stream_id)
        for name, fields in self._stored.entries:
            if id_parts(name) > at:
                yield name, read_entry(name, fields)

    def close(self) -> None:
        """Nothing is open."""


class FollowedWorld:
    """The world's journal, and a standby whose slices are as long as a test wants."""

    def __init__(self, world: Watched) -> None:
        self._world = world
        self.stored = StoredThings()
        self._client = cast("redis.Redis", self.stored)
        self._written, self._clock = 0, 0.0
        with patch.object(recovery, "Journal", JournalInMemory):
            self.standby = StandbyState(self._client, KEYS, make_ledger, FIRST_CONFIG)

    def write(self) -> None:
        """Append what was decided since the last call."""
        for batch, decisions in self._world.history[self._written :]:
            self._written += 1
            seq, at = self._written, batch[-1].at if batch else 0.0
            entry = encode(JournalEntry(seq, 1, at, 0.0, START, batch, decisions))
            self.stored.entries.append((f"{seq}-0", {JOURNAL_FIELD: entry}))

    def store_snapshot(self, trim: bool) -> None:
        """Store a snapshot as a leader does; ``trim``: the journal before it goes, also what the standby has not read."""
        self.write()
        state = snapshot.dump(self._world.machine)
        last = f"{self._written}-0" if self._written else START
        taken = StoredSnapshot(last, START, self._written, state)
        self.stored.snapshot = msgspec.msgpack.encode(taken)
        if trim:
            self.stored.entries = self.stored.entries[-1:]

    def follow(self, step: float) -> None:
        """Let the standby follow for a slice; each look at the clock takes ``step`` seconds."""
        self.write()
        self._clock += 1000.0
        ticks = count(self._clock, step)
        with patch.object(recovery, "monotonic", lambda: next(ticks)):
            self.standby.follow()  # loads, if there is no state
            self.standby.follow()

    def judge(self) -> None:
        """Raise unless the standby has the state that a leader recovers from what is stored."""
        self.write()
        warm = self.standby.take()
        with patch.object(recovery, "Journal", JournalInMemory):
            cold = recover(self._client, KEYS, make_ledger, FIRST_CONFIG)
        if warm is not None:
            assert place_of(warm) == place_of(cold)
            assert state_of(warm.machine) == state_of(cold.machine)


def place_of(recovered: Recovered) -> tuple[Any, ...]:
    """Return where a leader goes on."""
    place = recovered.journal_id, recovered.inbox_id, recovered.inbox_part, recovered.seq
    return (*place, recovered.replayed)


def state_of(machine: Machine) -> bytes:
    """Return everything that a leader decides by."""
    return snapshot.dump(machine)
