"""One request to an engine: bounded in bytes and time, and its errors say what to do next."""

from __future__ import annotations

import pytest

from rollout.llm.engine_client import (
    BackendBusy,
    BackendFailed,
    EngineClient,
    ExchangeLimits,
    RequestRefused,
)
from rollout.llm.sampling_options import ContextOverflow
from tests.api_server import LocalApi, answer, local_api

LIMITS = ExchangeLimits(call_seconds=20, watch_seconds=20)


async def asked(api: LocalApi, most_tokens: int = 4) -> bytes:
    client = EngineClient(LIMITS)
    try:
        return await client.generate(
            f"http://127.0.0.1:{api.port}", "/generate", {"prompt_ids": [1]}, most_tokens
        )
    finally:
        await client.close()


async def test_an_answer_is_returned_as_it_is():
    async with local_api() as api:
        api.says(answer(200, b'{"response_ids": [1]}'))

        assert await asked(api) == b'{"response_ids": [1]}'
        assert (api.asked[0].method, api.asked[0].path) == ("POST", "/generate")
        assert api.asked[0].body == b'{"prompt_ids":[1]}'


@pytest.mark.parametrize(
    ("response", "kind", "said"),
    [
        (answer(400, b'{"error": "bad top_p"}'), RequestRefused, "bad top_p"),
        (answer(400, b"maximum context length is 8 tokens"), ContextOverflow, "8 tokens"),
        (answer(500, b"out of memory"), BackendFailed, "HTTP 500: out of memory"),
        (answer(302, b"", "Location: http://127.0.0.1:1/\r\n"), BackendFailed, "HTTP 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", BackendFailed, "RemoteProtocolError"),
        (b"SSH-2.0-x\r\n\r\n", BackendFailed, "RemoteProtocolError"),
    ],
    ids=["refused", "too long", "failed", "elsewhere", "cut", "another protocol"],
)
async def test_an_error_says_whether_another_backend_may_answer(response, kind, said):
    async with local_api() as api:

        async def behave(_, writer):
            writer.write(response)
            writer.close()

        api.behave = behave
        with pytest.raises(kind, match=said):
            await asked(api)


@pytest.mark.parametrize(
    ("stated", "seconds"), [("7", 7.0), ("1e9", 60.0), ("-1", 0.0), ("soon", 1.0), ("nan", 0.0)]
)
async def test_a_busy_engine_states_when_to_ask_again(stated, seconds):
    async with local_api() as api:
        api.says(answer(503, b"{}", f"Retry-After: {stated}\r\n"))
        with pytest.raises(BackendBusy) as busy:
            await asked(api)
    assert busy.value.retry_after_seconds == seconds


async def test_an_endless_answer_is_cut():
    async with local_api() as api:
        sent = 0

        async def behave(_, writer):
            nonlocal sent
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing() and sent < 64:
                writer.write(b"10000\r\n" + b"7" * 65_536 + b"\r\n")
                await writer.drain()
                sent += 1

        api.behave = behave
        with pytest.raises(BackendFailed, match="more than"):
            await asked(api)


async def test_an_engine_without_a_page_for_its_health_is_healthy():
    client = EngineClient(LIMITS)
    try:
        async with local_api() as api:
            address = f"http://127.0.0.1:{api.port}"
            api.says(answer(404, b"{}"), answer(500, b"{}"))
            assert await client.healthy(address)
            assert not await client.healthy(address)
        assert not await client.healthy(address)
    finally:
        await client.close()
