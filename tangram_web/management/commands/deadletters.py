"""``manage.py deadletters``: what could not be read or taken in, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from time import time
from typing import Any, Final, cast

import msgspec
import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from domain.codec import JOURNAL_FIELD, decode_command, read_entry
from domain.dead_letters import (
    INBOX,
    JOURNAL,
    DeadLetter,
    dead_letter,
    decode_letter,
    encode_letter,
)
from domain.errors import InvalidRequest, Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect
from tangram_web.lib import bus

#: KEYS letters, inbox · ARGV name, message. Whoever deletes the letter, and nobody else, delivers it.
_DELIVER: Final = """
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', '0', ARGV[2])
return 1
"""


class Command(BaseCommand):
    """Show dead letters; deliver, drop or make one."""

    help = (
        "Show messages that could not be read or taken in. Deliver those that can be by now, or drop"
        " one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what to do; nothing: show them."""
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--deliver", action="store_true",
            help="put those that came to the inbox back, if this version can read them",
        )  # fmt: skip
        what.add_argument("--drop", metavar="NAME", help="delete one for good")
        what.add_argument(
            "--pass-entry", metavar="ID",
            help="lay an entry of the journal aside that nobody can read: what makes rows and"
            " frames goes on without it",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        client, keys = connect(settings.TANGRAM_REDIS_URL), bus.keys()
        try:
            if options["drop"]:
                self._drop(client, keys, options["drop"])
            elif options["pass_entry"]:
                self._lay_aside(client, keys, options["pass_entry"])
            else:
                self._go_through(client, keys, deliver=options["deliver"])
        except (InvalidRequest, redis.RedisError) as error:
            raise CommandError(str(error)) from error

    def _go_through(self, client: redis.Redis, keys: Keys, *, deliver: bool) -> None:
        for letter in _letters(client, keys):
            done = ""
            if deliver and letter.settled:
                done = "[settled: its action has ended]"
            elif deliver and letter.source == INBOX:
                done = self._deliver(client, keys, letter)
            at = datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds")
            told = " ".join(filter(None, (letter.kind, letter.action_id, letter.reason, done)))
            self.stdout.write(f"{letter.name}  {at}  version {letter.version}  {told}")

    def _deliver(self, client: redis.Redis, keys: Keys, letter: DeadLetter) -> str:
        try:
            decode_command(letter.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "[this version cannot read it either]"
        arguments: list[Any] = [keys.dead_letters, keys.inbox, letter.name, letter.body]
        return "[delivered]" if client.eval(_DELIVER, 2, *arguments) else "[somebody was quicker]"

    def _drop(self, client: redis.Redis, keys: Keys, name: str) -> None:
        if not client.hdel(keys.dead_letters, name):
            raise InvalidRequest(f"there is no dead letter {name!r}")
        self.stdout.write(f"{name} is dropped")

    def _lay_aside(self, client: redis.Redis, keys: Keys, entry_id: str) -> None:
        found = cast("list[Any]", client.xrange(keys.journal, entry_id, entry_id))
        if not found:
            raise InvalidRequest(f"the journal has no entry {entry_id}")
        fields = found[0][1]
        try:
            read_entry(entry_id, fields)
        except Unreadable as error:
            body, place = fields.get(JOURNAL_FIELD, b""), JOURNAL_FIELD.decode()
            letter = dead_letter(JOURNAL, entry_id, place, body, error, time())
            client.hsetnx(keys.dead_letters, letter.name, encode_letter(letter))
            self.stdout.write(f"{letter.name} is laid aside; rows lack what it holds")
        else:
            raise InvalidRequest(f"journal entry {entry_id} can be read: nothing is wrong with it")


def _letters(client: redis.Redis, keys: Keys) -> Iterator[DeadLetter]:
    stored = cast("dict[bytes, bytes]", client.hgetall(keys.dead_letters))
    yield from sorted(map(decode_letter, stored.values()), key=lambda letter: letter.at)
