"""A web process that ends is held up by no stream, and leaves nothing running behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import redis

from scheduler.runtime.gateway import http
from scheduler.runtime.gateway.endpoints import event_feeds
from tests.integration.runtime.gpu_rig import GpuRig, running
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_openai_door import a_chat
from tests.integration.runtime.test_streams import CHUNKED, chunk

Messages = list[dict[str, Any]]


def a_request(method: str, path: str, token: str, body: bytes = b"") -> tuple[Any, Any]:
    """Return scope and receive of a request whose client stays."""
    unread = [body]

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop()}
        await asyncio.Event().wait()
        raise AssertionError

    headers = [(b"authorization", f"Bearer {token}".encode())]
    return {"type": "http", "method": method, "path": path, "headers": headers}, receive


def taking_all(messages: Messages) -> Callable[[Any], Awaitable[None]]:
    async def send(message: Any) -> None:
        messages.append(message)

    return send


async def until_sent(messages: Messages, count: int) -> None:
    async with asyncio.timeout(120):
        while len(messages) < count:
            await asyncio.sleep(0.005)


async def test_a_stream_of_events_ends_in_good_order(rig: Rig) -> None:
    sent: Messages = []
    async with rig.gateway() as gateway:
        serving = asyncio.ensure_future(
            gateway(*a_request("GET", "/api/v1/events", "reader"), taking_all(sent))
        )
        await until_sent(sent, 2)
        serving.cancel()
        await asyncio.wait_for(serving, 120)
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert sent[-1] == {"type": "http.response.body", "body": b""}


async def test_a_client_that_takes_nothing_holds_no_ending_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is full: whatever is sent to it waits for ever."""
    monkeypatch.setattr(http, "SHUTDOWN_SEND_SECONDS", 0.05)
    full: Messages = []

    async def send(message: Any) -> None:
        full.append(message)
        if message["type"] != "http.response.start":
            await asyncio.Event().wait()

    async with rig.gateway() as gateway:
        request = a_request("GET", "/api/v1/events", "reader")
        serving = asyncio.ensure_future(gateway(*request, send))
        await until_sent(full, 2)
        serving.cancel()
        done, _ = await asyncio.wait({serving}, timeout=120)
        assert done


async def test_a_stream_of_events_breaks_no_protocol_when_redis_goes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(event_feeds, "read_stream_async", away)
    sent: Messages = []
    async with rig.gateway() as gateway:
        request = a_request("GET", "/api/v1/events", "reader")
        await asyncio.wait_for(gateway(*request, taking_all(sent)), 120)
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert sent[-1] == {"type": "http.response.body", "body": b""}


async def test_a_process_that_ends_cancels_streams_that_have_begun(gpus: GpuRig) -> None:
    async def for_ever(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: 3\n\n"))
        await asyncio.Event().wait()

    gpus.api.behave = for_ever
    sent: Messages = []
    async with running(gpus, "a") as client:
        assert isinstance(client._transport, httpx.ASGITransport)
        chat = json.dumps(a_chat(stream=True)).encode()
        request = a_request("POST", "/v1/chat/completions", "trainer", chat)
        serving = asyncio.ensure_future(client._transport.app(*request, taking_all(sent)))
        await until_sent(sent, 2)
        serving.cancel()
        await asyncio.wait({serving}, timeout=120)
        assert gpus.loop is not None
        async with asyncio.timeout(120):
            while gpus.loop.loop.term.machine.state.actions:
                await asyncio.sleep(0.005)
    assert [message["type"] for message in sent].count("http.response.start") == 1
    assert all(message.get("more_body") for message in sent[1:]), (
        "an answer that broke off has no end"
    )
