"""``manage.py deadletters`` shows what could not be read, and delivers it once it can be."""

from __future__ import annotations

from io import StringIO
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command

from domain.codec import decode_command, encode
from domain.dead_letters import DeadLetter, dead_letter, encode_letter
from domain.events import ActionCancelRequested
from domain.ids import ActionId
from domain.redis_keys import Keys

KEYS = Keys()
CANCEL = ActionCancelRequested(action_id=ActionId("act_7"), project="default")
OF_TOMORROW = msgspec.msgpack.encode({"event": "ActionFolded", "action_id": "act_8"})


def reported(*arguments: str) -> str:
    out = StringIO()
    call_command("deadletters", *arguments, stdout=out)
    return out.getvalue()


def lay(client: Any, source: str, entry_id: str, body: bytes) -> DeadLetter:
    letter = dead_letter(source, entry_id, "0", body, ValueError("no such kind"), 1_700_000_000.0)
    client.hset(KEYS.dead_letters, letter.name, encode_letter(letter))
    return letter


def test_letters_are_shown_with_what_can_be_read_of_them(redis_bus: Any) -> None:
    lay(redis_bus, "inbox", "5-0", OF_TOMORROW)
    line = reported()
    for part in ("inbox|5-0|0", "2023-11-14T22:13:20", "ActionFolded", "act_8", "no such kind"):
        assert part in line


def test_a_letter_that_is_readable_now_is_delivered_once(redis_bus: Any) -> None:
    """An older version set it aside; this one knows what it is. The others stay."""
    lay(redis_bus, "inbox", "5-0", encode(CANCEL))
    lay(redis_bus, "inbox", "6-0", OF_TOMORROW)
    lay(redis_bus, "node/n1", "7-0", encode(CANCEL))
    assert "[delivered]" in reported("--deliver")
    assert "[delivered]" not in reported("--deliver")
    ((_, fields),) = redis_bus.xrange(KEYS.inbox)
    assert decode_command(fields[b"0"]) == CANCEL
    assert sorted(redis_bus.hkeys(KEYS.dead_letters)) == [b"inbox|6-0|0", b"node/n1|7-0|0"]


def test_a_settled_letter_is_not_delivered(redis_bus: Any) -> None:
    """Its action has ended: it would end a second time."""
    letter = dead_letter("inbox", "5-0", "0", encode(CANCEL), ValueError("poison"), 1_700_000_000.0)
    letter.settled = True
    redis_bus.hset(KEYS.dead_letters, letter.name, encode_letter(letter))
    assert "[settled: its action has ended]" in reported("--deliver")
    assert not redis_bus.exists(KEYS.inbox)
    assert redis_bus.hlen(KEYS.dead_letters) == 1


def test_a_letter_is_dropped_by_name(redis_bus: Any) -> None:
    letter = lay(redis_bus, "inbox", "5-0", OF_TOMORROW)
    reported("--drop", letter.name)
    assert not redis_bus.exists(KEYS.dead_letters)
    with pytest.raises(CommandError, match="there is no dead letter"):
        reported("--drop", letter.name)


def test_only_an_unreadable_entry_is_set_aside(redis_bus: Any) -> None:
    damaged = redis_bus.xadd(KEYS.journal, {"e": b"\xc1"}).decode()
    empty = redis_bus.xadd(KEYS.journal, {"other": b""}).decode()
    reported("--pass-entry", damaged)
    reported("--pass-entry", empty)
    names = {f"journal|{damaged}|e".encode(), f"journal|{empty}|e".encode()}
    assert set(redis_bus.hkeys(KEYS.dead_letters)) == names
    with pytest.raises(CommandError, match="has no entry"):
        reported("--pass-entry", "9-9")
