"""The inbox holds what is not handled yet, and nothing else for long."""

from __future__ import annotations

import asyncio
from typing import cast

from domain.codec import InboxPart, encode
from domain.events import StatusQueried, TimeAdvanced
from domain.redis_keys import Keys
from scheduler.runtime.local_nodes.leader_side import LocalNodes
from scheduler.runtime.loop.inbox import BATCH_MESSAGES, MOST_MESSAGES, Inbox
from scheduler.runtime.loop.leadership import Leadership
from tests.integration.runtime.rig import Rig

NOOP = {"task": "t", "kind": "noop"}


async def test_questions_alone_do_not_pile_up(rig: Rig) -> None:
    """They leave nothing in the journal, so no commit trims them."""
    async with rig.client() as client:
        for _ in range(30):
            assert (await client.get("/actions/act_0")).status_code == 404
        async with asyncio.timeout(120):
            while rig.redis.xlen(rig.keys.inbox) > 1:
                await asyncio.sleep(0.05)


async def test_a_submission_between_questions_is_not_trimmed_away(rig: Rig) -> None:
    async with rig.client() as client:
        for _ in range(20):
            asked, submitted = await asyncio.gather(
                client.get("/status"), client.post("/actions?wait=60", json=NOOP)
            )
            assert asked.status_code == 200
            assert submitted.json()["outcome"] == "completed"


class NoLeadership:
    """Of an inbox without unreadable messages."""


def test_a_question_about_the_system_waits_for_one_pass_of_submissions(rig: Rig) -> None:
    keys = Keys(f"{rig.keys.prefix}:alone")
    inbox = Inbox(rig.redis, keys, cast("Leadership", NoLeadership()), LocalNodes(None, keys))
    event = encode(TimeAdvanced())
    for _ in range(6):
        rig.redis.xadd(keys.inbox, {str(number): event for number in range(BATCH_MESSAGES // 2)})
    first = inbox.read(1.0)  # it does not know yet how large entries are, and takes a part of them
    for _ in range(6):
        rig.redis.xadd(keys.inbox, {str(number): event for number in range(BATCH_MESSAGES // 2)})
    rig.redis.xadd(keys.questions, {"0": encode(StatusQueried(request_id="1", reply_to="c"))})

    *messages, question = inbox.read(1.0)

    assert len(first) == MOST_MESSAGES
    assert len(messages) == BATCH_MESSAGES
    assert isinstance(question, StatusQueried)
    assert [len(inbox.read(1.0)) for _ in range(3)] == [BATCH_MESSAGES] * 3
    assert inbox.read(0.001) == []
    inbox.close()


def test_a_pass_ends_within_an_entry_that_is_larger_than_those_before(rig: Rig) -> None:
    keys = Keys(f"{rig.keys.prefix}:large")
    inbox = Inbox(rig.redis, keys, cast("Leadership", NoLeadership()), LocalNodes(None, keys))
    event = encode(TimeAdvanced())
    rig.redis.xadd(keys.inbox, {"0": event})
    assert len(inbox.read(1.0)) == 1
    large = MOST_MESSAGES + 1
    place = cast(
        "bytes", rig.redis.xadd(keys.inbox, {str(number): event for number in range(large)})
    )

    assert len(inbox.read(1.0)) == MOST_MESSAGES
    inbox.settle()
    assert inbox.settled_part == InboxPart(place.decode(), MOST_MESSAGES)
    assert len(inbox.read(1.0)) == 1
    inbox.settle()
    assert inbox.settled_id == place.decode()
    assert str(inbox.settled_part) == "None"
    inbox.close()


def test_a_new_leader_answers_the_questions_whose_callers_still_wait(rig: Rig) -> None:
    keys = Keys(f"{rig.keys.prefix}:late")
    for place, asked in (("1000-0", "old"), ("9000-0", "late"), ("9500-0", "newest")):
        message = encode(StatusQueried(request_id=asked, reply_to="c"))
        rig.redis.xadd(keys.questions, {"0": message}, id=place)
    rig.redis.xadd(keys.questions, {"0": encode(TimeAdvanced())}, id="9600-0")
    inbox = Inbox(rig.redis, keys, cast("Leadership", NoLeadership()), LocalNodes(None, keys))

    found = inbox.read(1.0)

    assert [cast("StatusQueried", each).request_id for each in found] == ["late", "newest"]
    inbox.close()
