"""What a client sends is bounded on every route, before the application sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import websockets

from tangram_web.serving.limits import WebLimits
from tests.integration.serving.conftest import SMALL

Serve = Callable[..., Any]
HOST = b"Host: x\r\n"
LAST = HOST + b"Connection: close\r\n\r\n"


def problem_in(answer: bytes) -> dict[str, Any]:
    """Return the problem of a response, with its status; the connection ends with it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b"content-type: application/problem+json" in lines
    assert b"connection: close" in lines
    found: dict[str, Any] = json.loads(body)
    assert lines[0].split()[1] == str(found["status"]).encode()
    return found


async def test_a_small_request_is_served(serve: Serve):
    async with serve() as site:
        answer = await site.ask(b"POST /login/ HTTP/1.1\r\nContent-Length: 5\r\n" + LAST + b"hello")

    assert answer.startswith(b"HTTP/1.1 200")
    assert site.bodies == [5]


async def test_a_short_response_arrives_in_one_piece(serve: Serve):
    async with serve() as site:
        reader, writer = await site.open()
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await reader.read(65536)).endswith(b"\r\n\r\n0")
        writer.close()


async def test_the_head_of_a_stream_does_not_wait_for_its_body(serve: Serve):
    async with serve() as site:
        reader, writer = await site.open()
        writer.write(b"GET /stream HTTP/1.1\r\n" + LAST)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        site.goes_on.set()
        assert await reader.read() == b"body"
        writer.close()


async def test_a_header_that_never_ends_is_refused(serve: Serve):
    endless = [b"GET / HTTP/1.1\r\nX: ", *[b"a" * 65536] * 200]

    async with serve() as site:
        answer = await site.ask(*endless)

    assert problem_in(answer)["status"] == 431


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 17 + b"\r\n",
    ],
)
async def test_a_complete_head_is_measured_as_well(serve: Serve, head: bytes):
    async with serve() as site:
        answer = await site.ask(head)

    assert problem_in(answer)["status"] == 431
    assert site.bodies == []


@pytest.mark.parametrize("protocol", ["limited", "httptools", "h11"])
async def test_a_declared_body_is_refused_before_it_is_read(serve: Serve, protocol: str):
    chosen = {} if protocol == "limited" else {"http": protocol}

    async with serve(**chosen) as site:
        answer = await site.ask(b"POST /login/ HTTP/1.1\r\nContent-Length: 600000000\r\n" + LAST)

    assert problem_in(answer)["status"] == 413
    assert site.bodies == []


@pytest.mark.parametrize("protocol", ["limited", "httptools"])
async def test_a_body_without_a_length_is_cut_at_the_limit(serve: Serve, protocol: str):
    chosen = {} if protocol == "limited" else {"http": protocol}
    chunk = b"8000\r\n" + b"a" * 0x8000 + b"\r\n"

    async with serve(**chosen) as site:
        head = b"POST /login/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + LAST
        answer = await site.ask(head, *[chunk] * 4)

    assert problem_in(answer)["status"] == 413
    assert site.bodies == []
    assert site.gone == 1


async def test_extensions_of_chunks_and_trailers_are_bounded(serve: Serve):
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + LAST

    async with serve() as site:
        extended = await site.ask(head, b"1;", *[b"e" * 65536] * 20)
        trailing = await site.ask(head, b"1\r\na\r\n0\r\nX: ", *[b"t" * 65536] * 20)

    assert problem_in(extended)["status"] == problem_in(trailing)["status"] == 431


async def test_the_bodies_of_all_requests_together_are_bounded(serve: Serve):
    head = b"POST /x HTTP/1.1\r\nContent-Length: 90001\r\n" + LAST

    async with serve() as site:
        _, first = await site.open()
        first.write(head + b"a" * 90_000)
        await first.drain()
        second = await site.ask(head + b"a" * 90_000)
        first.write(b"a")
        await first.drain()
        first.close()
        await _until(lambda: site.bodies == [90_001])
        third = await site.ask(head + b"a" * 90_001)

    assert problem_in(second)["status"] == 503
    assert b"retry-after: 1" in second
    assert third.startswith(b"HTTP/1.1 200")


async def test_uploads_that_are_passed_on_hold_no_more_than_their_pieces(serve: Serve):
    """An upload may be larger than all bodies together may be."""
    path = b"/api/v1/trajectories/t/files?path=/a"
    whole = b"PUT " + path + b" HTTP/1.1\r\nContent-Length: 4000000\r\n" + LAST

    async with serve(replace(SMALL, file_bytes=4_000_000, bodies_bytes=1_000_000)) as site:
        answer = await site.ask(whole, *[b"a" * 50_000] * 80)
        other = await site.ask(
            b"POST /x HTTP/1.1\r\nContent-Length: 90001\r\n" + LAST + b"a" * 90_001
        )
        large = await site.ask(whole.replace(b"4000000", b"4000001"))

    assert answer.startswith(b"HTTP/1.1 200")
    assert site.bodies == [4_000_000, 90_001]
    assert other.startswith(b"HTTP/1.1 200")
    assert problem_in(large)["status"] == 413


async def test_a_slow_head_is_cut(serve: Serve):
    async with serve() as site:
        silent, partial = await asyncio.gather(site.ask(b""), site.ask(b"GET / HTTP/1.1\r\nX: a"))

    assert problem_in(silent)["status"] == problem_in(partial)["status"] == 408


async def test_a_slow_body_is_cut_even_after_a_fast_start(serve: Serve):
    async with serve() as site:
        head = b"POST / HTTP/1.1\r\nContent-Length: 90000\r\n" + LAST
        answer = await site.ask(head + b"a" * 60_000)

    assert problem_in(answer)["status"] == 408
    assert site.gone == 1


async def test_a_waiting_request_is_not_slow(serve: Serve):
    async with serve(replace(SMALL, header_seconds=0.1, body_grace_seconds=0.1)) as site:
        reader, writer = await site.open()
        writer.write(b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 2.5)
        writer.close()


async def test_a_client_that_does_not_read_is_cut(serve: Serve):
    async with serve() as site:
        _, writer = await site.open()
        writer.write(b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n")
        await writer.drain()
        await _until(lambda: site.bodies == [0] and not site.server.server_state.connections)
        writer.close()


async def test_one_address_has_so_many_connections(serve: Serve):
    async with serve(replace(SMALL, connections_per_address=3)) as site:
        held = [await site.open() for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n")
        await _until(lambda: len(site.bodies) == 3)
        refused = await site.ask(b"")
        held[0][1].close()
        await _until(lambda: len(site.server.server_state.connections) == 2)
        served = await site.ask(b"GET / HTTP/1.1\r\n" + LAST)
        for _, writer in held:
            writer.close()

    assert problem_in(refused)["status"] == 429
    assert b"retry-after: 1" in refused
    assert served.startswith(b"HTTP/1.1 200")


async def test_silent_connections_never_keep_a_request_out(serve: Serve):
    async with serve(replace(SMALL, connections=3, header_seconds=60)) as site:
        silent = [await site.open() for _ in range(5)]
        served = await site.ask(b"GET / HTTP/1.1\r\n" + LAST)
        for _, writer in silent:
            writer.close()

    assert served.startswith(b"HTTP/1.1 200")


async def test_a_full_process_says_so(serve: Serve):
    async with serve(replace(SMALL, connections=2)) as site:
        held = [await site.open() for _ in range(2)]
        for _, writer in held:
            writer.write(b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n")
        await _until(lambda: len(site.bodies) == 2)
        refused = await site.ask(b"")
        for _, writer in held:
            writer.close()

    assert problem_in(refused)["status"] == 503
    assert b"retry-after: 1" in refused


async def test_pipelined_requests_are_bounded(serve: Serve):
    async with serve() as site:
        request = b"GET /hold HTTP/1.1\r\n" + HOST + b"\r\n"
        answer = await site.ask(request * 60)

    assert problem_in(answer)["status"] == 429


async def test_no_http_is_a_problem(serve: Serve):
    async with serve() as site:
        answer = await site.ask(b"\x16\x03\x01 hello\r\n\r\n")

    assert problem_in(answer)["status"] == 400


async def test_messages_of_a_websocket_are_bounded(serve: Serve):
    async with serve() as site:
        address = f"ws://127.0.0.1:{site.port}/ws/live"
        async with websockets.connect(address, compression=None) as socket:
            await socket.send("a" * 1000)
            await _until(lambda: len(site.messages) == 1)
            await socket.send("a" * 1001)
            with pytest.raises(websockets.ConnectionClosed) as large:
                await socket.recv()
        async with websockets.connect(address, compression=None) as socket:
            with contextlib.suppress(websockets.ConnectionClosed):
                await socket.send("" for _ in range(1000))
            with pytest.raises(websockets.ConnectionClosed):
                await socket.recv()

    assert large.value.rcvd is not None
    assert large.value.rcvd.code == 1009
    assert len(site.messages) == 1


async def test_a_websocket_counts_as_a_connection(serve: Serve):
    async with serve(replace(SMALL, connections_per_address=1)) as site:
        address = f"ws://127.0.0.1:{site.port}/ws/live"
        async with websockets.connect(address, compression=None):
            refused = await site.ask(b"")
        await _until(lambda: not site.server.server_state.connections)
        served = await site.ask(b"GET / HTTP/1.1\r\n" + LAST)

    assert problem_in(refused)["status"] == 429
    assert served.startswith(b"HTTP/1.1 200")


async def test_a_path_that_means_another_one_is_refused(serve: Serve):
    async with serve() as site:
        answer = await site.ask(b"GET /search/..;/x HTTP/1.1\r\n" + LAST)

    assert problem_in(answer)["code"] == "ambiguous_path"
    assert site.bodies == []


async def test_clients_of_a_proxy_are_not_counted_as_one(serve: Serve):
    limits = WebLimits(connections_per_address=1, proxies=frozenset({"127.0.0.1"}))

    async with serve(limits) as site:
        held = [await site.open() for _ in range(3)]
        served = await site.ask(b"GET / HTTP/1.1\r\n" + LAST)
        for _, writer in held:
            writer.close()

    assert served.startswith(b"HTTP/1.1 200")


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)
