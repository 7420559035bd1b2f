"""Requests that wait at the tail of the journal get each end once, however long they wait."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import redis.asyncio

from domain.codec import JournalEntry
from domain.decisions import Finish, FinishRollout, Grant
from domain.redis_keys import Keys
from scheduler.runtime.gateway.journal_tail import JournalTail
from scheduler.runtime.rollouts.rollout_ends import RolloutEnds

FINISH = msgspec.msgpack.decode(
    msgspec.msgpack.encode(
        {
            "action_id": "act_1",
            "project": "default",
            "task": "t",
            "outcome": "completed",
            "decision": "Finish",
            "timing": {
                "queue_seconds": 0.0,
                "overhead_seconds": 0.0,
                "execution_seconds": 0.0,
                "act_seconds": 0.0,
            },
        }
    ),
    type=Finish,
)


@pytest.fixture
def tail() -> JournalTail:
    return JournalTail(redis.asyncio.Redis.from_url("unix:///nowhere"), Keys(), lambda: None)


def finished(tail: JournalTail) -> None:
    """Let the tail read that the action has ended."""
    tail.reduce(JournalEntry(1, 1, 1.0, 0.0, "1-0", [], [FINISH]))


async def test_a_wait_that_is_postponed_goes_on_in_its_successor(tail):
    quick = tail.finish_of("act_1")
    tail.postpone("act_1", quick)

    later: asyncio.Future[Any] = quick.result()
    assert not later.done()
    finished(tail)
    assert later.result().id == "act_1"


async def test_a_wait_that_ended_is_not_postponed(tail):
    quick = tail.finish_of("act_1")
    finished(tail)
    tail.postpone("act_1", quick)

    assert quick.result().id == "act_1"


def test_an_entry_is_only_for_reducers_that_take_part_of_it():
    ends = RolloutEnds()

    assert ends.concerns({Grant, FinishRollout})
    assert not ends.concerns({Grant, Finish})
