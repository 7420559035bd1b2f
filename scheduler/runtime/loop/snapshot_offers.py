"""Snapshots that a standby takes, so that the leader need not.

Encoding a large state stops a loop for as long as hundreds of passes: 77 ms with 100,000 trajectories. A standby has the same state,
and nothing waits for it.

Rules
1. A standby stores a snapshot of a large state under a key of its own: it *offers* it. It writes nothing else, and offers none
   while the stored snapshot is small: the leader's own cost nothing then.
2. The leader makes an offer the stored snapshot (`Leadership.adopt`) in one step with four checks: it still leads, the offer is
   the one that it read, the snapshot begins with its entry, and the journal has that entry, unchanged. So a state with entries that Redis
   has lost is never adopted.
3. An offer of another version is not adopted: it may have members that a leader of this one cannot read, were it to start again.
4. A leader that adopts waits longer with its own, and its standby longer with the next offer. Without a standby nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, thread_time
from typing import Final, cast

import msgspec
import redis

from domain.redis_keys import Keys
from domain.version import VERSION
from scheduler.runtime.loop.leadership import HEAD_BYTES, Leadership
from scheduler.runtime.loop.stored_snapshot import (
    LARGE_BYTES,
    SnapshotPace,
    StoredSnapshot,
    encode_snapshot,
    place_in,
)

#: Applying an entry takes a standby at least such a share of the CPU time of the leader's decisions; it may take as much.
APPLYING_SHARE: Final = 0.2
#: A standby first offers before the leader's own is due.
FIRST_PATIENCE: Final = 0.9
#: Once the leader has adopted an offer, the next one comes after so many times as much: Redis serves nothing while it takes one in, 90 ms
#: for 16 MB, and beside a standby that keeps the state a snapshot is loaded only when both are lost.
OFFER_PATIENCE: Final = 10.0
#: A leader waits so many times as long with its own, by its own measure, until it has adopted none for so many seconds.
LEADER_PATIENCE: Final = 4.0
PATIENT_SECONDS: Final = 300.0


class SnapshotOffer(msgspec.Struct):
    """What an offered snapshot was taken from."""

    journal_id: str
    seq: int
    #: The journal entry there, as it is stored.
    entry: bytes
    #: CPU time of taking it.
    took_seconds: float
    version: str = VERSION


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(SnapshotOffer)


class OfferingStandby:
    """The offers of one standby, for as long as it keeps its state."""

    def __init__(self, client: redis.Redis, keys: Keys, seq: int) -> None:
        """``seq``: of the state that was loaded."""
        self._client = client
        self._keys = keys
        self._pace = SnapshotPace(seq, 0.0)
        self._patience = FIRST_PATIENCE
        self._offered_seq = -1

    def consider(
        self,
        seq: int,
        applied_seconds: float,
        entry: bytes | None,
        take: Callable[[], StoredSnapshot],
    ) -> None:
        """Offer the state at journal entry ``seq`` if a snapshot is due there. Raises redis.RedisError.

        ``applied_seconds``: CPU time of applying since the load; ``entry``: the stored form of the entry.
        """
        before, decided_seconds = self._pace, applied_seconds / APPLYING_SHARE
        if entry is None or not before.is_due(seq, decided_seconds, self._patience):
            return
        stored = place_in(self._stored(0, HEAD_BYTES - 1)).seq if self._is_large() else 0
        if self._patience == FIRST_PATIENCE and stored == self._offered_seq:
            self._patience = OFFER_PATIENCE
            return
        self._patience = FIRST_PATIENCE
        self._pace = SnapshotPace(seq, decided_seconds, before.took_seconds)
        if not stored:
            return
        if stored > before.seq:  # the leader's own, or that of another standby
            self._pace.seq = stored
            return
        with suppress(redis.exceptions.NoPermissionError):  # of a user that an earlier version made
            self._offer(take, entry)

    def _offer(self, take: Callable[[], StoredSnapshot], entry: bytes) -> None:
        began = thread_time()
        snapshot = take()
        body = encode_snapshot(snapshot)
        self._pace.took_seconds = took = thread_time() - began
        self._client.set(self._keys.offered_snapshot, body)
        offer = SnapshotOffer(snapshot.journal_id, snapshot.seq, entry, took)
        self._client.set(self._keys.snapshot_offer, _encode(offer))
        self._offered_seq = snapshot.seq

    def _is_large(self) -> bool:
        return bool(self._stored(LARGE_BYTES, LARGE_BYTES))

    def _stored(self, first: int, last: int) -> bytes:
        return cast("bytes", self._client.getrange(self._keys.snapshot, first, last))


class OfferedSnapshots:
    """The offers of standbys, as a leader reads them."""

    def __init__(self, client: redis.Redis, keys: Keys, leadership: Leadership) -> None:
        self._client = client
        self._keys = keys
        self._leadership = leadership
        self._adopted_at = float("-inf")

    @property
    def patience(self) -> float:
        """How many times as long as usual the leader waits with a snapshot of its own."""
        return LEADER_PATIENCE if monotonic() - self._adopted_at < PATIENT_SECONDS else 1.0

    def adopt(self, after: int, until: int) -> SnapshotOffer | None:
        """Make an offer behind entry ``after``, at most at ``until``, the stored snapshot; None: there is none, or it must not be.

        Raises redis.RedisError, Fenced. An idle leader reads nothing: without a new entry there is no offer to adopt.
        """
        if until <= after:
            return None
        try:
            stored = cast("bytes | None", self._client.get(self._keys.snapshot_offer))
            offer = _decoder.decode(stored) if stored is not None else None
        except (msgspec.DecodeError, redis.exceptions.NoPermissionError):  # of another version
            return None
        if (
            stored is None
            or offer is None
            or offer.version != VERSION
            or not after < offer.seq <= until
        ):
            return None
        if not self._leadership.adopt(stored, offer.journal_id, offer.entry):
            return None
        self._adopted_at = monotonic()
        return offer
