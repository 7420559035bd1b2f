"""A backup may be of a moment at which half of a request was taken in: that half is not met twice."""

from __future__ import annotations

from typing import Any

from domain.action import Action, Kind
from domain.codec import InboxPart, encode
from domain.events import ActionSubmitted
from domain.ids import ActionId
from domain.redis_keys import Keys
from tangram_web.management.commands.restore import _submitted_after


def a_submission(name: str) -> bytes:
    action = Action(id=ActionId(name), project="default", task="t", kind=Kind.NOOP)
    return encode(ActionSubmitted(action=action))


def test_only_what_the_loop_has_not_seen_is_yielded(redis_bus: Any) -> None:
    inbox = Keys().inbox
    redis_bus.xadd(inbox, {"0": a_submission("a")}, id="1-0")
    redis_bus.xadd(inbox, {str(n): a_submission(name) for n, name in enumerate("bcd")}, id="2-0")
    redis_bus.xadd(inbox, {"0": a_submission("e")}, id="3-0")

    def found(part: InboxPart | None) -> list[str]:
        return [action.id for action in _submitted_after(redis_bus, "1-0", part)]

    assert found(None) == ["b", "c", "d", "e"]
    assert found(InboxPart("2-0", 2)) == ["d", "e"]
    assert found(InboxPart("1-0", 2)) == ["b", "c", "d", "e"]
