"""Records of facades that expire: two web processes cannot both change one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis

from domain.errors import CapacityError
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.facade_records import MOST_BYTES, TimedRecords
from tests.redis_server import RedisServer


@pytest.fixture
async def records(runtime_redis: RedisServer, keys: Keys) -> AsyncIterator[TimedRecords]:
    async with connect_async(runtime_redis.url) as client:
        yield TimedRecords(client, keys, "door")


async def test_one_of_many_adds_a_record(records: TimedRecords) -> None:
    made = await asyncio.gather(*(records.add("p", "n", {"by": n}, 60) for n in range(8)))
    assert made.count(True) == 1
    assert await records.get("p", "n") == {"by": made.index(True)}
    assert await records.get("other", "n") is None


async def test_a_record_is_replaced_and_removed_from_the_state_that_was_read_alone(
    records: TimedRecords,
) -> None:
    await records.add("p", "n", {"a": 1}, 60)
    done = await asyncio.gather(
        *(records.replace("p", "n", {"a": 1}, {"a": n}, 60) for n in (2, 3))
    )
    assert done.count(True) == 1
    assert not await records.remove("p", "n", {"a": 1})
    assert await records.remove("p", "n", {"a": 2 if done[0] else 3})
    assert await records.get("p", "n") is None


async def test_a_record_expires_and_may_not_be_too_large(
    records: TimedRecords, redis_client: redis.Redis, keys: Keys
) -> None:
    await records.add("p", "n", {}, 60)
    assert 0 < redis_client.ttl(keys.facade_timed("door", "p/n")) <= 60
    await records.replace("p", "n", {}, {"a": 1}, 300)
    assert redis_client.ttl(keys.facade_timed("door", "p/n")) > 60
    with pytest.raises(CapacityError):
        await records.add("p", "large", {"a": "x" * MOST_BYTES}, 60)
