"""What the journal says of a generation reaches the task that serves it, wherever that waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.action import Outcome, Timing
from domain.codec import JournalEntry
from domain.decisions import Abort, Finish, Grant, Requeue
from scheduler.runtime.fleet_router.held_generations import (
    LEFT,
    MISSED,
    HeldGeneration,
    HeldGenerations,
    Interrupted,
)
from tests.builders import a_generation

A = a_generation("a")
GRANT = Grant(A.id, None, ())


def held_with(cancelled: list[int]) -> HeldGenerations:
    return HeldGenerations(lambda _, attempt: cancelled.append(attempt))


def entry(*decisions: Any) -> JournalEntry:
    return JournalEntry(1, 1, 0.0, 0.0, "0-1", [], list(decisions))


def finish(outcome: Outcome = Outcome.UNKNOWN) -> Finish:
    return Finish(A.id, A.project, A.task, outcome, Timing(0.0, 0.0, 0.0, 0.0))


async def wait_for_ever(held: HeldGeneration) -> None:
    async with held.served():
        await asyncio.Event().wait()


@pytest.mark.parametrize("change", [Abort(A.id, "", "enough"), Requeue(A.id, "silent"), finish()])
async def test_a_decision_interrupts_the_serving(change: Any) -> None:
    generations = held_with([])
    held = generations.open(A)
    generations.reduce(entry(GRANT))
    assert await held.change() == GRANT
    serving = asyncio.create_task(wait_for_ever(held))
    await asyncio.sleep(0)
    generations.reduce(entry(change))

    with pytest.raises(Interrupted) as interrupted:
        await serving
    assert interrupted.value.change == change
    assert not serving.cancelling()


async def test_a_grant_that_follows_a_requeue_is_read_next() -> None:
    generations = held_with([])
    held = generations.open(A)
    serving = asyncio.create_task(wait_for_ever(held))
    await asyncio.sleep(0)
    again = Grant(A.id, None, (), attempt=2)
    generations.reduce(entry(Requeue(A.id, "silent"), again))

    with pytest.raises(Interrupted):
        await serving
    assert await held.change() == again
    assert generations.granted() == (A.id,)


async def test_a_cancelled_task_is_cancelled_and_not_interrupted() -> None:
    held = held_with([]).open(A)
    serving = asyncio.create_task(wait_for_ever(held))
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    held.tell(LEFT)
    assert await held.change() is LEFT


def test_a_grant_after_the_client_left_is_answered_once() -> None:
    cancelled: list[int] = []
    generations = held_with(cancelled)
    held = generations.open(A)
    held.left = "its client disconnected"
    generations.reduce(entry(GRANT))
    held.reported = 1
    generations.reduce(entry(Abort(A.id, "", "its client disconnected")))
    assert (cancelled, len(generations)) == ([1], 1)

    generations.reduce(entry(finish(Outcome.CANCELLED)))
    assert (len(generations), generations.granted()) == (0, ())


async def test_an_unreadable_entry_gives_up_those_that_wait() -> None:
    generations = held_with([])
    waits, runs = generations.open(A), generations.open(a_generation("b"))
    generations.reduce(entry(Grant(runs.action.id, None, ())))
    generations.skipped()

    assert await waits.change() is MISSED
    assert isinstance(await runs.change(), Grant)
