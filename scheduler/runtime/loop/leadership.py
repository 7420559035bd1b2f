"""Leadership: one leader, fenced by an epoch.

The epoch in Redis only grows. The process that raised it last is the leader; its writes carry the
epoch and are refused once another process has raised it. The *leader* key only shows that the
leader is alive: it expires, and a standby then raises the epoch. A leader that was stopped and
continues later is fenced by its first write.

A pass over a hundred thousand deadlines, the replay of a long journal or the decoding of a large
snapshot may take longer than the lease. Without a renewal meanwhile, a standby would take over,
begin the same work and lose the lease in its turn. So a thread renews it (`LeaseRenewal`), unless
the loop makes no progress for ``hung_after_seconds``: a loop that hangs is replaced, too. Safety
does not rest on the lease, but on the epoch.

Where replicas must confirm what is decided (`Confirmation`), a commit has two steps. What it would write is *held* in one key, where
nothing reads it; once replicas have that, it is released into the journal and the streams of nodes. So nothing acts on a decision
that a promoted replica does not have, and a leader that finds something held releases it, with the same ids (docs/decisions/0333).

A loop that must not lead waits: `LeadershipRefused` while this version cannot read or replay what is stored
(repeated attempts would keep the leadership from a loop of another version), `LeadershipPaused` after the core
raised and no message is to blame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Final

import redis
from redis.commands.core import Script

from domain.confirmation import NONE_NEEDED, Confirmation
from domain.dead_letters import DeadLetter, encode_letter
from domain.errors import Fenced, Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.redis.connection import Argument, RedisConnection
from scheduler.runtime.redis.lua_scripts import (
    ADOPT,
    COMMIT,
    COMMIT_ASIDE,
    ELECT,
    HOLD,
    PUT,
    RELEASE,
    RENEW,
    RESIGN,
    SET_ASIDE,
    STATE_QUEUED,
)

#: Period in which a standby checks whether the leader is gone.
STANDBY_SECONDS = 0.2


#: Longest that one pass, or one step of a recovery, may take before the loop counts as hung.
HUNG_AFTER_SECONDS: Final = 60.0

#: A stored snapshot begins with its place in the journal: these bytes tell it from another.
HEAD_BYTES: Final = 256

log = logging.getLogger(__name__)


@dataclass
class Leadership:
    """The right to write, and the writes that need it. All raise Fenced once another process leads."""

    client: redis.Redis
    keys: Keys
    name: str
    lease_seconds: float = 2.0
    epoch: int = 0
    #: Least epoch of a Redis that lost its data, stored elsewhere (the database).
    epoch_floor: Callable[[], int] = lambda: 0
    #: Called with each epoch that was won, to store it there.
    epoch_won: Callable[[int], None] = lambda _: None
    #: What a decision needs before anything acts on it.
    confirmation: Confirmation = NONE_NEEDED

    def __post_init__(self) -> None:
        #: Instant of the newest write, each of which renews the lease.
        self.renewed_at = float("-inf")
        self._connection = RedisConnection(self.client)
        self._aside: AsideWrite | None = None
        self._elect = self.client.register_script(ELECT)
        self._renew = self.client.register_script(RENEW)
        self._commit = self.client.register_script(COMMIT)
        self._commit_aside = self.client.register_script(COMMIT_ASIDE)
        self._hold = self.client.register_script(HOLD)
        self._release = self.client.register_script(RELEASE)
        self._put = self.client.register_script(PUT)
        self._adopt = self.client.register_script(ADOPT)
        self._set_aside = self.client.register_script(SET_ASIDE)
        self._state_queued = self.client.register_script(STATE_QUEUED)
        self._resign = self.client.register_script(RESIGN)

    def try_elect(self) -> bool:
        """Become leader unless another one is alive."""
        keys = [self.keys.epoch, self.keys.leader]
        self.epoch = int(self._elect(keys=keys, args=[*self._mine()[1:], self.epoch_floor()]))
        if self.epoch > 0:
            self.epoch_won(self.epoch)
        return self.epoch > 0

    def wait(self, stop: Event, waiting: Callable[[], bool] = lambda: False) -> bool:
        """Wait as a standby until elected; False when ``stop`` is set.

        ``waiting`` is called in each round; the next one begins at once when it returns that it has more to do.
        """
        while not self.try_elect():
            if stop.wait(0.0 if waiting() else STANDBY_SECONDS):
                return False
        return True

    def disconnect(self) -> None:
        """Close the connection: after an outage it is dead, and would end the next term too."""
        self._connection.close()

    def renew(self) -> None:
        """Renew the lease."""
        self._fenced(self._renew, [self.keys.epoch, self.keys.leader], [])

    def renew_aside(self) -> None:
        """Renew the lease from another thread than the loop's."""
        began = monotonic()
        try:
            self._renew(keys=[self.keys.epoch, self.keys.leader], args=self._mine())
            self.renewed_at = began
        except redis.ResponseError as error:
            raise self._judged(error) from error

    def put(self, key: str, value: bytes) -> None:
        """Set ``key``."""
        self._fenced(self._put, [self.keys.epoch, self.keys.leader, key], [value])

    def put_aside(self, key: str, value: bytes) -> AsideWrite:
        """Set ``key`` in a thread, after what was set so before; `finish_aside` waits for it."""
        self.finish_aside()
        keys = [self.keys.epoch, self.keys.leader, key]
        # Of this epoch: once another process leads, it is refused however late it arrives.
        write = partial(self._put, keys=keys, args=[*self._mine(), value])
        self._aside = AsideWrite(write, self._judged)
        self._aside.start()
        return self._aside

    def adopt(self, offer: bytes, journal_id: str, entry: bytes) -> bool:
        """Make an offered snapshot the stored one (`snapshot_offers`); return whether it was."""
        keys = self.keys
        offered = [keys.snapshot_offer, keys.offered_snapshot, keys.snapshot, keys.journal]
        names = [keys.epoch, keys.leader, *offered]
        return bool(self._fenced(self._adopt, names, [offer, journal_id, entry]))

    def finish_aside(self) -> None:
        """Wait for what a thread writes: an older snapshot must not replace a later one."""
        if self._aside is not None:
            self._aside.join()
            self._aside = None

    def set_aside(self, letter: DeadLetter) -> None:
        """Store a message that cannot be read, once."""
        keys = [self.keys.epoch, self.keys.leader, self.keys.dead_letters]
        self._fenced(self._set_aside, keys, [letter.name, encode_letter(letter)])

    def state_queued(self, args: Sequence[Argument]) -> int:
        """State what is queued of some projects (`queue_accounts`); return what `STATE_QUEUED` does."""
        loads, inbox = self.keys.project_loads, self.keys.inbox
        keys = [self.keys.epoch, self.keys.leader, loads, inbox, self.keys.arrivals]
        return int(self._fenced(self._state_queued, keys, args))

    def commit(
        self,
        entry: bytes,
        inbox_id: str,
        commands: Sequence[tuple[str, bytes]],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[str]:
        """Write one journal entry and its commands to nodes; return its id, and that of each command's entry.

        ``meanwhile`` is called while Redis is at it.
        """
        if self.confirmation.replicas:
            return self._commit_confirmed(entry, inbox_id, commands, ("", b""), meanwhile)
        keys = [
            self.keys.epoch,
            self.keys.leader,
            self.keys.journal,
            self.keys.inbox,
            *(stream for stream, _ in commands),
        ]
        args: list[Argument] = [entry, inbox_id, *(body for _, body in commands)]
        return _texts(self._fenced(self._commit, keys, args, meanwhile))

    def commit_aside(
        self,
        entry: bytes,
        inbox_id: str,
        commands: Sequence[tuple[str, bytes]],
        letter: DeadLetter,
    ) -> list[str]:
        """Commit, and store the message that the entry sets aside."""
        if self.confirmation.replicas:
            kept_aside = letter.name, encode_letter(letter)
            return self._commit_confirmed(entry, inbox_id, commands, kept_aside)
        keys = [
            self.keys.epoch,
            self.keys.leader,
            self.keys.journal,
            self.keys.inbox,
            self.keys.dead_letters,
            *(stream for stream, _ in commands),
        ]
        kept: list[Argument] = [letter.name, encode_letter(letter)]
        args: list[Argument] = [entry, inbox_id, *kept, *(body for _, body in commands)]
        return _texts(self._fenced(self._commit_aside, keys, args))

    def _commit_confirmed(
        self,
        entry: bytes,
        inbox_id: str,
        commands: Sequence[tuple[str, bytes]],
        letter: tuple[str, bytes],
        meanwhile: Callable[[], None] | None = None,
    ) -> list[str]:
        """Hold what a commit writes, and release it once replicas have it. Raises NotConfirmed."""
        keys = [self.keys.epoch, self.keys.leader, self.keys.journal, self.keys.held]
        pairs: list[Argument] = [each for pair in commands for each in pair]
        self._fenced(self._hold, keys, [entry, inbox_id, *letter, *pairs], meanwhile)
        return self._released()

    def release_held(self) -> None:
        """Release what a predecessor held, also one of another master. The first thing that a new leader writes.

        Raises Fenced, NotConfirmed.
        """
        if self.client.exists(self.keys.held):
            self.renew()  # a confirmation needs a write
            self._released()

    def _released(self) -> list[str]:
        self._connection.confirm(self.confirmation)
        keys = self.keys
        names = [keys.epoch, keys.leader, keys.journal, keys.inbox, keys.dead_letters, keys.held]
        return _texts(self._fenced(self._release, names, []))

    def resign(self) -> None:
        """Let a standby take over at once."""
        self._resign(keys=[self.keys.leader], args=[self.name])

    def _mine(self) -> list[Argument]:
        return [self.epoch, self.name, int(self.lease_seconds * 1000)]

    def _fenced(
        self,
        script: Script,
        keys: list[str],
        args: Sequence[Argument],
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        began = monotonic()
        try:
            done = self._connection.run(script, keys, [*self._mine(), *args], meanwhile)
            self.renewed_at = began
            return done
        except redis.ResponseError as error:
            raise self._judged(error) from error

    def _judged(self, error: redis.ResponseError) -> Exception:
        if "FENCED" in str(error):
            return Fenced(f"epoch {self.epoch} is over: another leader writes")
        return error


class AsideWrite(Thread):
    """Writes one large value while the loop goes on: it takes Redis as long as hundreds of passes."""

    def __init__(
        self,
        write: Callable[[], object],
        judged: Callable[[redis.ResponseError], Exception],
    ) -> None:
        """``judged``: what a refusal by Redis means."""
        super().__init__(name="aside-write", daemon=True)
        self._write = write
        self._judged = judged
        self._error: BaseException | None = None

    def run(self) -> None:
        """Write it."""
        try:
            self._write()
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise what the write raised, a refusal as `Leadership` does. Call it once the thread has ended."""
        if isinstance(self._error, redis.ResponseError):
            raise self._judged(self._error) from self._error
        if self._error is not None:
            raise self._error


def _texts(ids: list[bytes]) -> list[str]:
    return [each.decode() for each in ids]


#: Shares of a lease: the thread renews it when nothing was written for the first, then again after each second one.
_UNWRITTEN_SHARE: Final = 0.55
_RENEWED_SHARE: Final = 0.25


class LeaseRenewal:
    """Renews a lease in a thread while the loop makes progress (a context manager).

    An idle loop renews it by its own housekeeping, and the thread only looks.
    """

    def __init__(
        self, leadership: Leadership, hung_after_seconds: float = HUNG_AFTER_SECONDS
    ) -> None:
        self._leadership = leadership
        self._hung_after_seconds = hung_after_seconds
        self._progress_at = monotonic()
        self._over = Event()
        self._thread = Thread(target=self._renew, name="lease-renewal", daemon=True)

    def __enter__(self) -> LeaseRenewal:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Joined, so that no late renewal undoes a resignation.
        self._over.set()
        self._thread.join()

    def progress(self) -> None:
        """Record that the loop makes progress."""
        self._progress_at = monotonic()

    def _renew(self) -> None:
        lease = self._leadership.lease_seconds
        pause = _RENEWED_SHARE * lease
        while not self._over.wait(pause):
            unwritten = monotonic() - self._leadership.renewed_at
            pause = max(_UNWRITTEN_SHARE * lease - unwritten, 0.0) or _RENEWED_SHARE * lease
            if unwritten < _UNWRITTEN_SHARE * lease:
                continue
            if monotonic() - self._progress_at > self._hung_after_seconds:
                log.error(
                    "no progress for %.0f s: this loop renews its lease no more, so that another leads",
                    self._hung_after_seconds,
                )
                return
            with suppress(redis.RedisError):  # the loop meets the same error and starts over
                try:
                    self._leadership.renew_aside()
                except Fenced:
                    return  # the loop's next write is fenced


class LeadershipRefused:
    """A loop that cannot read what is stored: it waits until that is replaced."""

    def __init__(self, client: redis.Redis, keys: Keys, error: Unreadable) -> None:
        self.reason = str(error)
        self._client = client
        self._keys = keys
        self._entry_id = error.entry_id
        self._read = self._stored()

    def over(self) -> bool:
        """Whether another snapshot or entry is stored now."""
        return self._stored() != self._read

    def _stored(self) -> tuple[Any, Any]:
        head = self._client.getrange(self._keys.snapshot, 0, HEAD_BYTES - 1)
        if not self._entry_id:
            return head, None
        return head, self._client.xrange(self._keys.journal, self._entry_id, self._entry_id)


class LeadershipPaused:
    """A loop that stands back for some seconds."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        self._until = monotonic() + seconds

    def over(self) -> bool:
        """Whether the loop may lead again."""
        return monotonic() >= self._until
