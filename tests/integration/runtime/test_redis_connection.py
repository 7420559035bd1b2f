"""Lanes over a real Redis: order, errors, broken connections, lost patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import uvloop

from scheduler.runtime.redis.clients import connect, connect_async
from scheduler.runtime.redis.connection import (
    AsyncRedisConnection,
    RedisConnection,
    read_stream,
    read_stream_async,
)
from tests.redis_server import RedisServer


@pytest.fixture
async def client(runtime_redis: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    client = connect_async(runtime_redis.url)
    yield client
    await client.aclose()


@pytest.fixture
async def connection(client: redis.asyncio.Redis) -> AsyncIterator[AsyncRedisConnection]:
    connection = AsyncRedisConnection(client)
    yield connection
    connection.close()


async def test_replies_are_in_the_order_of_their_commands(
    connection: AsyncRedisConnection,
) -> None:
    answers = await asyncio.gather(*(connection.call("ECHO", str(n)) for n in range(500)))
    assert answers == [str(n).encode() for n in range(500)]


async def test_an_error_reply_fails_its_own_command_alone(connection: AsyncRedisConnection) -> None:
    wrong, right = (asyncio.ensure_future(connection.call(*c)) for c in (("LLEN",), ("ECHO", "on")))
    with pytest.raises(redis.ResponseError):
        await wrong
    assert await right == b"on"


async def test_the_reply_of_a_cancelled_command_reaches_no_other_command(
    connection: AsyncRedisConnection,
) -> None:
    await connection.call("PING")
    cancelled = asyncio.ensure_future(connection.call("ECHO", "old"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await connection.call("ECHO", "new") == b"new"
    assert cancelled.cancelled()


async def test_a_broken_connection_fails_what_is_under_way_and_the_next_command_connects(
    connection: AsyncRedisConnection, client: redis.asyncio.Redis
) -> None:
    number = await connection.call("CLIENT", "ID")
    waiting = asyncio.ensure_future(
        connection.call("XREAD", "BLOCK", 30_000, "STREAMS", "nothing", "$")
    )
    await asyncio.sleep(0)
    await client.client_kill_filter(_id=str(number))
    with pytest.raises(redis.ConnectionError):
        await waiting
    assert await connection.call("ECHO", "again") == b"again"


def test_a_connection_that_closes_while_it_is_opened_is_a_failure_of_redis(
    runtime_redis: RedisServer,
) -> None:
    # uvloop refuses to write then, with an error that is none of redis-py.
    async def write_on_what_closed() -> None:
        client = connect_async(runtime_redis.url)
        opened: Any = client.connection_pool.make_connection()
        await opened.connect()
        opened._writer.transport.abort()
        await asyncio.sleep(0)
        with pytest.raises(redis.ConnectionError, match="closed"):
            await opened.send_command("PING")

    async def take_over_what_closed() -> None:
        client = connect_async(runtime_redis.url)
        pool: Any = client.connection_pool
        opened = pool.make_connection()
        await opened.connect()
        opened._writer.transport.abort()
        pool.make_connection = lambda: opened
        opened.connect = lambda: asyncio.sleep(0)
        with pytest.raises(redis.ConnectionError, match="while it was opened"):
            await AsyncRedisConnection(client).call("PING")

    for case in (write_on_what_closed, take_over_what_closed):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(case())


async def test_a_redis_that_does_not_answer_is_given_up(client: redis.asyncio.Redis) -> None:
    connection = AsyncRedisConnection(client, patience_seconds=0.05)
    with pytest.raises(redis.ConnectionError, match=r"within 0\.05 s"):
        await connection.call("XREAD", "BLOCK", 30_000, "STREAMS", "nothing", "$")
    connection.close()


async def test_a_script_that_redis_forgot_is_sent_again(
    connection: AsyncRedisConnection, client: redis.asyncio.Redis
) -> None:
    script = client.register_script("return {KEYS[1], ARGV[1]}")
    await client.script_flush()
    assert await connection.run(script, ["k"], [7]) == [b"k", b"7"]
    assert await connection.run(script, ["k"], [8]) == [b"k", b"8"]


async def test_both_kinds_of_lane_read_the_same_entries(
    connection: AsyncRedisConnection, runtime_redis: RedisServer
) -> None:
    with connect(runtime_redis.url) as blocking:
        first = blocking.xadd("both", {b"0": b"a", b"1": b"b"}).decode()
        blocking.xadd("both", {b"0": b"c"})
        entries = read_stream(RedisConnection(blocking), "both", "0-0", 10, None)
        assert entries == await read_stream_async(connection, "both", "0-0", 10, 0.1)
        assert entries[0] == (first, {b"0": b"a", b"1": b"b"})
        assert [len(fields) for _, fields in entries] == [2, 1]
        assert read_stream(RedisConnection(blocking), "both", entries[-1][0], 10, 0.01) == []


def test_a_blocking_lane_survives_its_server(tmp_path: Path) -> None:
    server = RedisServer(tmp_path).start()
    with connect(server.url) as client:
        connection = RedisConnection(client)
        assert connection.call("SET", "key", "kept") == b"OK"
        server.kill()
        with pytest.raises(redis.ConnectionError):
            connection.call("GET", "key")
        server.start()
        assert connection.call("GET", "key") == b"kept"
        connection.close()
    server.stop()
