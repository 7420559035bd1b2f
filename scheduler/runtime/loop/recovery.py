"""Recovery of the machine from Redis: the snapshot, then a replay of the journal behind it.

A leader does that at once (`recover`), a standby ahead of time (`StandbyState`): what is left when it leads are the
entries of the last moments.

The journal holds decisions, too. A machine that decides otherwise than the journal (which another
version wrote) must not continue: nodes have already read the commands that follow from it. Nor may
it continue over a hole, which is an entry that is missing or cannot be read.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Final, cast

import msgspec
import redis

from domain.codec import JOURNAL_FIELD, InboxPart, JournalEntry, read_entry
from domain.decisions import Decision
from domain.errors import Unreadable
from domain.events import ConfigApplied
from domain.inventory import Config
from domain.redis_keys import Keys
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.core.state.supply import MakeLedger
from scheduler.runtime.loop.leadership import HEAD_BYTES
from scheduler.runtime.loop.poison_messages import NoMessageToBlame
from scheduler.runtime.loop.snapshot_offers import OfferingStandby
from scheduler.runtime.loop.stored_snapshot import StoredSnapshot, decode_snapshot, place_in
from scheduler.runtime.redis.connection import Entries
from scheduler.runtime.redis.journal import START, Journal, id_parts

log = logging.getLogger(__name__)

#: A standby that is level reads the journal once in so many seconds.
FOLLOW_SECONDS: Final = 0.5
#: It applies entries for so long before it asks for the leadership again.
SLICE_SECONDS: Final = 0.15
#: Journal entries that it reads at once.
PAGE: Final = 100
#: From the load of a state that had to be dropped to the next load: a standby of another version may drop each soon.
LOAD_SECONDS: Final = 60.0
#: The same for one that is too far behind, as a multiple of the time that its load took.
LOADS: Final = 10.0


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
    #: No snapshot was stored.
    from_nothing: bool = False
    #: What replaying the entries behind the stored snapshot takes, as far as a standby has measured it.
    replay_seconds: float = 0.0

    def stored(self) -> StoredSnapshot:
        """Return the state as a snapshot."""
        state = snapshot.dump(self.machine)
        return StoredSnapshot(self.journal_id, self.inbox_id, self.seq, state, self.inbox_part)


def recover(
    client: redis.Redis,
    keys: Keys,
    make_ledger: MakeLedger,
    config: Config,
    progress: Callable[[], None] = lambda: None,
) -> Recovered:
    """Return a machine level with the journal; ``config`` is used at the very first start.

    ``progress`` is called after every entry. Raises Unreadable when what is stored cannot be read,
    has a hole, or when the journal's decisions are not the machine's; NoMessageToBlame when the core raises.
    """
    stored = cast("bytes | None", client.get(keys.snapshot))
    recovered = _restored(stored, make_ledger, config)
    with closing(Journal(client, keys)) as journal:
        for stream_id, entry in journal.after(recovered.journal_id):
            _replay(recovered, stream_id, entry, make_ledger)
            progress()
    return recovered


def _restored(stored: bytes | None, make_ledger: MakeLedger, config: Config) -> Recovered:
    """Return the machine of a stored snapshot."""
    if stored is None:
        return Recovered(Machine(make_ledger, config), from_nothing=True)
    taken, machine = _load(stored, make_ledger)
    part = taken.inbox_part
    return Recovered(machine, taken.journal_id, taken.inbox_id, taken.seq, inbox_part=part)


def _load(stored: bytes, make_ledger: MakeLedger) -> tuple[StoredSnapshot, Machine]:
    try:
        taken = decode_snapshot(stored)
        return taken, snapshot.load(taken.state, make_ledger)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"the snapshot cannot be read ({error}): it is damaged, or another version stored it. "
            "Start the version that stored it; see 'Unreadable messages' in docs/operations.md"
        ) from None


def _replay(
    recovered: Recovered, stream_id: str, entry: JournalEntry, make_ledger: MakeLedger
) -> None:
    """Apply the next entry.

    A journal without a snapshot, of a loop that was killed before it stored one, begins with the configuration of its time:
    a later one would be in force for entries that were decided before it.
    """
    if entry.seq != recovered.seq + 1:
        raise Unreadable(
            f"the journal has a hole before entry {stream_id}: number {recovered.seq + 1} should "
            f"follow and {entry.seq} does. The decisions in between are lost; restore the last "
            "backup (docs/operations.md)",
            entry_id=stream_id,
        )
    first = recovered.from_nothing and recovered.seq == 0
    if first and entry.events and isinstance(entry.events[0], ConfigApplied):
        recovered.machine = Machine(make_ledger, Config())
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


class StandbyState:
    """The machine of a standby, level with the journal but for its last moments.

    Theory of operation. A standby restores the latest snapshot and applies the journal behind it as it grows, exactly as a
    recovery does: nothing is decided, and nothing is written but offers of snapshots (`snapshot_offers`). The journal has only
    what leaders committed, since writes of a lost epoch are refused. But Redis itself may lose the newest entries (a replica was promoted, a file ends early), and
    others then follow in their place. So each read begins at the last entry that was applied, and that entry has to be
    there, unchanged; a journal that was trimmed beyond it fails the same test. Whatever is wrong (also an entry that cannot
    be read, or about which this version decides otherwise), the state is dropped, and the loop recovers from the
    snapshot: a standby without a state leads later, never otherwise.
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, make_ledger: MakeLedger, config: Config
    ) -> None:
        self._client = client
        self._keys = keys
        self._make_ledger = make_ledger
        self._config = config
        self._journal = Journal(client, keys)
        self._recovered: Recovered | None = None
        #: The stored form of the last entry that was applied; None before the first.
        self._applied: bytes | None = None
        #: The beginning of the snapshot that was loaded.
        self._head = b""
        self._count = PAGE
        #: What loading took, and what applying took until now.
        self._load_seconds = self._apply_seconds = self._apply_cpu_seconds = 0.0
        self._entries = 0
        self._loaded_at = self._read_at = self._load_at = float("-inf")
        #: Why there is no state; empty before the first one.
        self.why = ""

    def follow(self) -> bool:
        """Go on for `SLICE_SECONDS`; return whether more can be done at once. Raises redis.RedisError."""
        if self._recovered is None:
            return monotonic() >= self._load_at and self._guarded(self._load)
        return monotonic() >= self._read_at and self._guarded(self._slice)

    def take(self, progress: Callable[[], None] = lambda: None) -> Recovered | None:
        """Return the machine level with the journal, which only this loop may write to now, and forget it.

        None: recover from the snapshot. ``progress`` is called after every entry. Raises redis.RedisError.
        """
        recovered = self._recovered
        self._journal.close()  # the next read is of the server that elected this loop
        if recovered is None or not self._guarded(lambda: self._finish(progress)):
            return None
        recovered.replayed = max(0, recovered.seq - place_in(self._stored_head()).seq)
        recovered.replay_seconds = self._seconds_for(recovered.replayed)
        self._forget("")
        self._load_at = float("-inf")
        return recovered

    def seconds_behind(self) -> float | None:
        """Return the time between the last entry that was applied and the newest; None without a state."""
        if self._recovered is None:
            return None
        at, newest = self._recovered.journal_id, self._journal.last_id()
        return 0.0 if at == START else max(0, id_parts(newest)[0] - id_parts(at)[0]) / 1000

    def _forget(self, why: str) -> None:
        self._journal.close()
        self._recovered, self._applied, self.why = None, None, why

    def _guarded(self, work: Callable[[], bool]) -> bool:
        """Do ``work``; whatever it raises but for a RedisError drops the state."""
        try:
            return work()
        except redis.RedisError:
            self._journal.close()
            raise
        except (Unreadable, NoMessageToBlame) as error:
            self._forget(str(error))
        except Exception as error:  # of what another version stored
            log.exception("a standby cannot apply what is stored")
            self._forget(f"{type(error).__name__}: {error}")
        log.warning("this standby keeps no state, and would lead later: %s", self.why)
        free_machines()
        return False

    def _load(self) -> bool:
        began = monotonic()
        stored = cast("bytes | None", self._client.get(self._keys.snapshot))
        self._loaded_at, self._load_at = began, began + LOAD_SECONDS
        self._head = (stored or b"")[:HEAD_BYTES]
        self._recovered = _restored(stored, self._make_ledger, self._config)
        self._offers = OfferingStandby(self._client, self._keys, self._recovered.seq)
        self._load_seconds, self._apply_seconds, self._entries = monotonic() - began, 0.0, 0
        self._apply_cpu_seconds = 0.0
        log.info("standby at entry %d after %.2f s", self._recovered.seq, self._load_seconds)
        return True

    def _slice(self) -> bool:
        until = monotonic() + SLICE_SECONDS
        while monotonic() < until:
            if not self._apply(until):
                self._offer_snapshot()
                self._read_at = monotonic() + FOLLOW_SECONDS
                return False
        if monotonic() >= self._loaded_at + LOADS * self._load_seconds and self._is_far_behind():
            self._forget("the stored snapshot is far ahead")
            free_machines()
            self._load_at = float("-inf")
        return True

    def _offer_snapshot(self) -> None:
        recovered = self._recovered
        assert recovered is not None
        self._offers.consider(
            recovered.seq, self._apply_cpu_seconds, self._applied, recovered.stored
        )

    def _finish(self, progress: Callable[[], None]) -> bool:
        if self._is_far_behind():
            raise Unreadable("the stored snapshot is far ahead")
        while self._apply(float("inf"), progress):
            pass
        return True

    def _apply(self, until: float, progress: Callable[[], None] = lambda: None) -> bool:
        """Apply a page of entries, or its first ones until a time; return whether there may be more. Raises Unreadable."""
        recovered, applied, began, cpu_began = self._recovered, 0, monotonic(), thread_time()
        assert recovered is not None
        page = self._behind(recovered, self._journal.stored(recovered.journal_id, self._count + 1))
        for stream_id, fields in page:
            _replay(recovered, stream_id, read_entry(stream_id, fields), self._make_ledger)
            self._applied = fields[JOURNAL_FIELD]
            applied += 1
            progress()
            if monotonic() >= until:
                break
        self._apply_seconds += monotonic() - began
        self._apply_cpu_seconds += thread_time() - cpu_began
        self._entries += applied
        all_of_it = applied == len(page)
        more = not all_of_it or applied >= self._count
        self._count = PAGE if all_of_it else 2 * applied
        return more

    def _behind(self, recovered: Recovered, found: Entries) -> Entries:
        """Return what follows the state, of what was read from its place on. Raises Unreadable when it is not the same journal."""
        if found and found[0][0] == recovered.journal_id:
            stored = found[0][1].get(JOURNAL_FIELD)
            if self._applied is None and read_entry(*found[0]).seq == recovered.seq:
                self._applied = stored
            if self._applied is not None and self._applied == stored:
                return found[1:]
        elif self._applied is None and self._head == self._stored_head():
            return found  # a journal that begins, or was emptied, behind the snapshot
        raise Unreadable(f"entry {recovered.journal_id} was trimmed, or another one took its place")

    def _stored_head(self) -> bytes:
        return cast("bytes", self._client.getrange(self._keys.snapshot, 0, HEAD_BYTES - 1))

    def _is_far_behind(self) -> bool:
        """Whether the stored snapshot can be loaded sooner than the entries up to it can be applied."""
        assert self._recovered is not None
        entries = place_in(self._stored_head()).seq - self._recovered.seq
        return entries > PAGE and self._seconds_for(entries) > self._load_seconds

    def _seconds_for(self, entries: int) -> float:
        return entries * self._apply_seconds / max(self._entries, 1)


def free_machines() -> None:
    """Free machines that are not used any more: they have cycles, and are large.

    `tangram_web.lib.garbage` leaves alone what was there early, which may be one of them.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
