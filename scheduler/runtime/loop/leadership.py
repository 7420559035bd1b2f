"""One leader, fenced for real.

The epoch in Redis only grows. Whoever raised it last is the leader; its writes carry the epoch and
are refused once somebody else has raised it. The *leader* key only says whether the leader shows
life: it expires, and a standby then raises the epoch. A leader that was stopped and goes on later
finds itself fenced by its first write, whatever it believes.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

import redis
from redis.commands.core import Script

from domain.dead_letters import DeadLetter, encode_letter
from domain.errors import Fenced
from domain.redis_keys import Keys
from scheduler.runtime.redis.connection import Argument, Lane
from scheduler.runtime.redis.lua_scripts import (
    COMMIT,
    COMMIT_ASIDE,
    ELECT,
    PUT,
    RENEW,
    RESIGN,
    SET_ASIDE,
)

#: How often a standby looks whether the leader is gone.
STANDBY_SECONDS = 0.2


def process_name(role: str) -> str:
    """Return a name that no other process has ever had."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass
class Leadership:
    """The right to write, and the writes that need it."""

    client: redis.Redis
    keys: Keys
    name: str
    lease_seconds: float = 2.0
    epoch: int = 0
    #: Epoch that a wiped Redis must not fall behind, kept elsewhere (the database).
    epoch_floor: Callable[[], int] = lambda: 0
    #: Called with each epoch that was won, to keep it there.
    epoch_won: Callable[[int], None] = lambda _: None

    def __post_init__(self) -> None:
        self._lane = Lane(self.client)
        self._elect = self.client.register_script(ELECT)
        self._renew = self.client.register_script(RENEW)
        self._commit = self.client.register_script(COMMIT)
        self._commit_aside = self.client.register_script(COMMIT_ASIDE)
        self._put = self.client.register_script(PUT)
        self._set_aside = self.client.register_script(SET_ASIDE)
        self._resign = self.client.register_script(RESIGN)

    def try_elect(self) -> bool:
        """Become leader unless another one shows life."""
        keys = [self.keys.epoch, self.keys.leader]
        self.epoch = int(self._elect(keys=keys, args=[*self._mine()[1:], self.epoch_floor()]))
        if self.epoch > 0:
            self.epoch_won(self.epoch)
        return self.epoch > 0

    def wait(self, stop: Event, waiting: Callable[[], None] = lambda: None) -> bool:
        """Wait as a standby until elected, ``waiting`` each round; False when ``stop`` was set."""
        while not self.try_elect():
            waiting()
            if stop.wait(STANDBY_SECONDS):
                return False
        return True

    def let_go(self) -> None:
        """Give the connection up: after an outage it is dead, and would end the next term too."""
        self._lane.close()

    def renew(self) -> None:
        """Show life. Raises Fenced when another leader has taken over."""
        self._fenced(self._renew, [self.keys.epoch, self.keys.leader], [])

    def renew_aside(self) -> None:
        """Do what `renew` does, from another thread than the loop's. Raises Fenced."""
        try:
            self._renew(keys=[self.keys.epoch, self.keys.leader], args=self._mine())
        except redis.ResponseError as error:
            raise self._judged(error) from error

    def put(self, key: str, value: bytes) -> None:
        """Set ``key`` as leader. Raises Fenced."""
        self._fenced(self._put, [self.keys.epoch, self.keys.leader, key], [value])

    def set_aside(self, letter: DeadLetter) -> None:
        """Keep a message that cannot be read, once, as leader. Raises Fenced."""
        keys = [self.keys.epoch, self.keys.leader, self.keys.dead_letters]
        self._fenced(self._set_aside, keys, [letter.name, encode_letter(letter)])

    def commit(self, entry: bytes, inbox_id: str, commands: Sequence[tuple[str, bytes]]) -> str:
        """Write one journal entry and its commands to nodes; return the entry's id. Raises Fenced."""
        keys = [
            self.keys.epoch,
            self.keys.leader,
            self.keys.journal,
            self.keys.inbox,
            *(stream for stream, _ in commands),
        ]
        args: list[Argument] = [entry, inbox_id, *(body for _, body in commands)]
        result: bytes = self._fenced(self._commit, keys, args)
        return result.decode()

    def commit_aside(
        self,
        entry: bytes,
        inbox_id: str,
        commands: Sequence[tuple[str, bytes]],
        letter: DeadLetter,
    ) -> str:
        """Do what `commit` does, and keep the message that the entry sets aside. Raises Fenced."""
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
        result: bytes = self._fenced(self._commit_aside, keys, args)
        return result.decode()

    def resign(self) -> None:
        """Let a standby take over at once."""
        self._resign(keys=[self.keys.leader], args=[self.name])

    def _mine(self) -> list[Argument]:
        return [self.epoch, self.name, int(self.lease_seconds * 1000)]

    def _fenced(self, script: Script, keys: list[str], args: Sequence[Argument]) -> bytes:
        try:
            done: bytes = self._lane.run(script, keys, [*self._mine(), *args])
            return done
        except redis.ResponseError as error:
            raise self._judged(error) from error

    def _judged(self, error: redis.ResponseError) -> Exception:
        if "FENCED" in str(error):
            return Fenced(f"epoch {self.epoch} is over: another leader writes")
        return error
