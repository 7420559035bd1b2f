"""``manage.py deadletters``: list, deliver and drop messages that the scheduler could not process."""

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
from domain.errors import InvalidRequest, Unavailable, Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect
from tangram_web.lib import bus

#: KEYS letters, inbox · ARGV name, message. Only the caller that deletes the letter delivers it.
_DELIVER: Final = """
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', '0', ARGV[2])
return 1
"""


class Command(BaseCommand):
    """List, deliver, drop or create dead letters."""

    help = (
        "List messages that the scheduler could not read or process. Deliver those that this version"
        " can read, or drop one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the verbs; without one the letters are listed."""
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--deliver", action="store_true",
            help="put messages back into the inbox if this version can read them",
        )  # fmt: skip
        what.add_argument("--drop", metavar="NAME", help="delete one letter")
        what.add_argument(
            "--pass-entry", metavar="ID",
            help="skip a journal entry that cannot be read: rows and frames continue without it",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        client, keys = connect(settings.TANGRAM_REDIS_URL), bus.keys()
        try:
            if options["drop"]:
                self._drop(client, keys, options["drop"])
            elif options["pass_entry"]:
                self._skip_entry(client, keys, options["pass_entry"])
            else:
                self._list(client, keys, deliver=options["deliver"])
        except (InvalidRequest, Unavailable, redis.RedisError) as error:
            raise CommandError(str(error)) from error

    def _list(self, client: redis.Redis, keys: Keys, *, deliver: bool) -> None:
        for letter in _letters(client, keys):
            done = ""
            if deliver and letter.settled:
                done = "[settled: its action has ended]"
            elif deliver and letter.source == INBOX:
                done = self._deliver(client, keys, letter)
            at = datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds")
            facts = " ".join(filter(None, (letter.kind, letter.action_id, letter.reason, done)))
            self.stdout.write(f"{letter.name}  {at}  version {letter.version}  {facts}")

    def _deliver(self, client: redis.Redis, keys: Keys, letter: DeadLetter) -> str:
        try:
            decode_command(letter.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "[this version cannot read it]"
        arguments: list[Any] = [keys.dead_letters, keys.inbox, letter.name, letter.body]
        return (
            "[delivered]"
            if bus.write("EVAL", _DELIVER, 2, *arguments)
            else "[already delivered or dropped]"
        )

    def _drop(self, client: redis.Redis, keys: Keys, name: str) -> None:
        if not bus.write("HDEL", keys.dead_letters, name):
            raise InvalidRequest(f"there is no dead letter {name!r}")
        self.stdout.write(f"{name} is dropped")

    def _skip_entry(self, client: redis.Redis, keys: Keys, entry_id: str) -> None:
        found = cast("list[Any]", client.xrange(keys.journal, entry_id, entry_id))
        if not found:
            raise InvalidRequest(f"the journal has no entry {entry_id}")
        fields = found[0][1]
        try:
            read_entry(entry_id, fields)
        except Unreadable as error:
            body, place = fields.get(JOURNAL_FIELD, b""), JOURNAL_FIELD.decode()
            letter = dead_letter(JOURNAL, entry_id, place, body, error, time())
            bus.write("HSETNX", keys.dead_letters, letter.name, encode_letter(letter))
            self.stdout.write(f"{letter.name} is skipped; rows and frames lack its content")
        else:
            raise InvalidRequest(f"journal entry {entry_id} can be read; it is not skipped")


def _letters(client: redis.Redis, keys: Keys) -> Iterator[DeadLetter]:
    stored = cast("dict[bytes, bytes]", client.hgetall(keys.dead_letters))
    yield from sorted(map(decode_letter, stored.values()), key=lambda letter: letter.at)
