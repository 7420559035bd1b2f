"""Claims of facades: a repeated request finds what its predecessor left, equal ones whose clients wait stay apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.facade_records import FacadeClaims
from tests.redis_server import RedisServer


@pytest.fixture
async def process(
    runtime_redis: RedisServer, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], FacadeClaims]]:
    """Return the claims of a web process of its own."""
    monkeypatch.setattr("scheduler.runtime.redis.facade_records.ALIVE_SECONDS", 0.6)
    made: list[FacadeClaims] = []

    def make() -> FacadeClaims:
        made.append(FacadeClaims(connect_async(runtime_redis.url), keys, "door"))
        return made[-1]

    yield make
    for claims in made:
        await kill(claims)
        await claims._client.aclose()


async def kill(claims: FacadeClaims) -> None:
    """End a process as ``kill -9`` does: it renews no sign of life."""
    if claims._renewing is not None:
        claims._renewing.cancel()
        with suppress(asyncio.CancelledError):
            await claims._renewing


async def test_claims_of_one_process_are_apart_until_one_is_left(process):
    claims = process()
    first, second = await claims.claim("t"), await claims.claim("t")
    assert first != second
    await claims.let_go("t", first)
    assert await claims.claim("t") == first
    assert await claims.claim("t") not in (first, second)
    assert await claims.claim("another") not in (first, second)


async def test_a_settled_slot_is_forgotten(process):
    claims = process()
    slot = await claims.claim("t")
    await claims.settle("t", slot)
    assert await claims.claim("t") != slot


async def test_the_slot_of_a_process_that_was_killed_just_now_is_adopted(process):
    killed, successor = process(), process()
    slot = await killed.claim("t")
    await kill(killed)
    assert await successor.claim("t") == slot


async def test_the_slot_of_a_living_process_is_not_adopted_however_long_it_waits(process):
    living, other = process(), process()
    slot = await living.claim("t")
    for _ in range(3):
        assert await other.claim("t") != slot


async def test_a_process_ends_its_own_claims_alone(process):
    killed, successor = process(), process()
    slot = await killed.claim("t")
    await kill(killed)
    await successor.claim("t")
    await killed.let_go("t", slot)
    await killed.settle("t", slot)
    assert await successor.claim("t") != slot


async def test_an_outage_of_redis_gives_no_slot_of_a_living_process_away(
    process, runtime_redis: RedisServer, keys: Keys
):
    """All signs of life are gone: each process shows its own at its next renewal."""
    living, other = process(), process()
    slot = await living.claim("t")
    await living._client.delete(keys.facade_claimant(living._holder))
    assert await other.claim("t") != slot
    assert await living.holds("t", slot)


async def test_a_holder_that_was_taken_for_dead_sees_that_its_slot_is_taken(process):
    hung, successor = process(), process()
    slot = await hung.claim("t")
    await kill(hung)
    assert await successor.claim("t") == slot
    assert not await hung.holds("t", slot)
    await successor.settle("t", slot)
    assert not await hung.holds("t", slot)
