"""Answers that are read while they are still being given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from domain.errors import Conflict as ClaimedByAnother
from domain.ids import ActionId
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.response_streams import (
    MOST_ENTRIES,
    PIECE_BYTES,
    RedisResponseStreams,
    ResponseStreamReader,
)
from tangram_client.aio import AsyncClient
from tangram_client.errors import ConflictError, NotFoundError, Unreachable
from tangram_client.payloads import call_action
from tests.api_server import answer
from tests.integration.runtime.call_rig import SECRET, CallRig

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@asynccontextmanager
async def trainer(rig: CallRig, **declared: Any) -> AsyncIterator[AsyncClient]:
    """Start everything; return a client over a real socket."""
    rig.start_loop(**declared)
    await rig.start_node()
    async with rig.served() as client:
        yield client


async def asked(client: AsyncClient, **fields: Any) -> str:
    action = call_action("t", "api:search", "/tokens", json={}, stream=True, **fields)
    return (await client.submit(action)).id


async def test_pieces_arrive_before_the_answer_is_whole(calls: CallRig) -> None:
    read = asyncio.Event()

    async def in_two_parts(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: one\n\n"))
        await asyncio.wait_for(read.wait(), 120)  # nothing more before the trainer has this
        writer.write(chunk(b"data: two\n\n") + chunk(b""))

    calls.api.behave = in_two_parts
    async with trainer(calls) as client:
        name = await asked(client)
        pieces = []
        async for piece in client.stream(name):
            pieces.append(piece)
            read.set()
        done = await client.wait(name)
    assert pieces == [b"data: one\n\n", b"data: two\n\n"]
    assert done.outcome == "completed"
    assert done.result["body"] == "data: one\n\ndata: two\n\n"


async def test_a_secret_that_is_repeated_is_masked_also_where_it_is_cut(calls: CallRig) -> None:
    async def repeats(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"key=" + SECRET[:5].encode()))
        await writer.drain()
        writer.write(chunk(SECRET[5:].encode() + b"!") + chunk(b""))

    calls.api.behave = repeats
    async with trainer(calls, secret="search-key", secret_header="X-Key") as client:
        name = await asked(client)
        text = b"".join([piece async for piece in client.stream(name)])
    assert text == b"key=[secret]!"


async def test_a_slow_reader_slows_the_api_and_nothing_piles_up(calls: CallRig) -> None:
    size, count = PIECE_BYTES, 8 * MOST_ENTRIES
    written = 0

    async def much(_: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(CHUNKED)
        for _number in range(count):
            writer.write(chunk(b"x" * size))
            await writer.drain()
            written += 1
        writer.write(chunk(b""))

    calls.api.behave = much
    key = calls.keys.response_stream("*")
    async with trainer(calls) as client:
        name = await asked(client)
        async with asyncio.timeout(120):
            while not (found := list(calls.redis.scan_iter(key))):
                await asyncio.sleep(0.005)
            while calls.redis.xlen(found[0]) < MOST_ENTRIES:
                await asyncio.sleep(0.005)
        # The client does not read yet: what the API has sent is here or in buffers of the network.
        most = calls.redis.xlen(found[0])
        assert written < count
        got = 0
        async for piece in client.stream(name):
            got += len(piece)
            most = max(most, calls.redis.xlen(found[0]))
        done = await client.wait(name)
    assert (got, most) == (size * count, MOST_ENTRIES)
    assert done.outcome == "completed"
    assert done.result["truncated"], "only so much is kept"
    assert not calls.redis.exists(found[0])


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(calls: CallRig) -> None:
    async def breaks(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: one\n\n"))
        await writer.drain()
        writer.transport.abort()

    calls.api.behave = breaks
    async with trainer(calls) as client:
        name = await asked(client)
        with pytest.raises(Unreachable):
            [piece async for piece in client.stream(name)]
        done = await client.wait(name)
    assert done.outcome == "unknown"


async def test_a_call_that_cannot_be_streamed_is_refused_with_the_reason(calls: CallRig) -> None:
    calls.api.says(answer(404, b"none"))
    async with trainer(calls) as client:
        refused = await asked(client)
        await client.wait(refused)
        with pytest.raises(ConflictError, match="without a response to stream"):
            await anext(aiter(client.stream(refused)))
        with pytest.raises(NotFoundError):
            await anext(aiter(client.stream("act_nope")))


async def test_an_answer_has_one_reader(calls: CallRig) -> None:
    read = asyncio.Event()

    async def in_two_parts(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one"))
        await asyncio.wait_for(read.wait(), 120)
        writer.write(chunk(b""))

    calls.api.behave = in_two_parts
    async with trainer(calls) as client:
        name = await asked(client)
        first = aiter(client.stream(name))
        assert await anext(first) == b"one"
        with pytest.raises(ConflictError, match="another request"):
            await anext(aiter(client.stream(name)))
        read.set()
        assert [piece async for piece in first] == []


async def test_a_late_reader_takes_nothing_from_its_successor(
    calls: CallRig,
) -> None:
    """1. A reader's client takes nothing until its claim ends. 2. Another one reads. 3. It goes on."""
    client = connect_async(calls.url)
    response_streams = RedisResponseStreams(client, calls.keys)
    writing = response_streams.open(ActionId("act_1"))
    await writing.begin(200, {})
    await writing.write(b"one")
    late, successor, third = (ResponseStreamReader(client, calls.keys, "act_1") for _ in range(3))
    await late.claim()
    calls.redis.delete(f"{calls.keys.response_stream('act_1')}:reader")
    await successor.claim()
    with pytest.raises(ClaimedByAnother):
        await anext(late.read())
    await late.close()
    assert [piece async for piece in successor.read()][1:] == [b"one"]
    with pytest.raises(ClaimedByAnother):
        await third.claim()
    await third.close()
    await successor.close()
    assert not calls.redis.exists(calls.keys.response_stream("act_1"))
    response_streams.close()
    await client.aclose()
