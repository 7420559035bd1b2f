"""The modelled engine over HTTP: what our clients see of it, its priorities, its caches and its faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import Behaviour, EngineServer
from managers.llm.fake.engine_spec import EngineSpec
from managers.llm.fake.paced_engine import PacedEngine
from managers.llm.fake.word_tokens import VOCABULARY, chat_ids, ids_of, text_of
from rollout.llm.dialects import DIALECTS, AskedFor
from rollout.llm.engine_client import BackendBusy, EngineClient, RequestRefused
from rollout.llm.probing import ProbedBackend, probe
from rollout.llm.sampling_options import ContextOverflow, SamplingOptions

#: 10 ms a token and 1 ms for each token of a prompt, in virtual time.
SPEC = EngineSpec("plain", 5e9, 1.0, memory_bytes=1e10 + 1e6, bandwidth=1e12, flops=1e30,
                  prefill_rate=1000.0, host_bytes=1e6, host_bandwidth=1e9)  # fmt: skip
#: A virtual second takes a real millisecond.
SPEED = 1000.0


@asynccontextmanager
async def served(
    slots: int = 4, **behaviour: Any
) -> AsyncIterator[tuple[EngineServer, EngineClient]]:
    server = EngineServer(PacedEngine(EngineModel(SPEC, 1, slots), SPEED), Behaviour(**behaviour))
    client = EngineClient(transport=httpx.ASGITransport(app=server, raise_app_exceptions=False))
    try:
        yield server, client
    finally:
        await client.close()
        await server.engine.close()


async def post(client: EngineClient, path: str, **body: Any) -> dict[str, Any]:
    return json.loads(await client.generate("http://engine", path, body, 4096))


async def completed(client: EngineClient, tokens: int, **body: Any) -> dict[str, Any]:
    prompt = body.pop("prompt", list(range(40)))
    return await post(client, "/v1/completions", prompt=prompt, max_tokens=tokens,
                      ignore_eos=True, return_token_ids=True, **body)  # fmt: skip


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_our_client_probes_it_and_reads_its_tokens(dialect: str):
    async with served(dialect=dialect, context=5000, model="m") as (_server, client):
        assert await probe(client, "http://engine") == ProbedBackend(dialect, ("m",), 5000)
        prompt = list(range(1, 60))
        options = SamplingOptions(max_tokens=30, seed=3)
        request = DIALECTS[dialect].request(prompt, options, 30, "m")
        data = await client.generate("http://engine", request.path, request.body, 30)

    found = DIALECTS[dialect].read(data, AskedFor(prompt, 30, VOCABULARY))
    assert 1 <= len(found.ids) <= 30
    assert found.logprobs is not None


async def test_an_answer_has_the_tokens_that_were_asked_for_and_takes_their_time():
    async with served() as (server, client):
        answer = await completed(client, 200)
        took = server.engine.now()

    assert len(answer["choices"][0]["token_ids"]) == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 200
    assert took >= 2.04


async def test_a_chat_that_goes_on_finds_its_cache():
    messages = [{"role": "user", "content": "Count the files below src, please. " * 4}]
    async with served() as (_server, client):
        first = await post(
            client, "/v1/chat/completions", messages=messages, max_tokens=64, ignore_eos=True
        )
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
        second = await post(client, "/v1/chat/completions", messages=messages, max_tokens=8)

    known = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert known >= 16 * ((first["usage"]["total_tokens"]) // 16)


async def test_a_stream_has_the_same_tokens_piece_by_piece():
    async with served() as (server, client):
        whole = await completed(client, 300)
        server.engine.set_speed(50.0)
        body = {"prompt": list(range(40)), "max_tokens": 300, "ignore_eos": True, "stream": True,
                "return_token_ids": True, "stream_options": {"include_usage": True}}  # fmt: skip
        data = (await client.generate("http://engine", "/v1/completions", body, 4096)).decode()

    events = [line.removeprefix("data: ") for line in data.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    parsed = [json.loads(each) for each in events]
    assert parsed.pop()["usage"]["completion_tokens"] == 300
    assert len(parsed) > 2
    ids = [number for each in parsed for number in each["choices"][0]["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    assert [each["choices"][0]["finish_reason"] for each in parsed][-1] == "length"


@pytest.mark.parametrize(
    ("priorities", "first"), [("lower", "low"), ("greater", "high"), ("ignored", "high")]
)
async def test_which_priority_is_served_first_is_a_setting(priorities: str, first: str):
    ended: list[str] = []
    async with served(slots=1, priorities=priorities) as (server, client):
        server.engine.set_speed(0.01)

        async def ask(name: str, priority: int) -> None:
            await completed(client, 100, prompt=[len(ended), priority], priority=priority)
            ended.append(name)

        running = [asyncio.create_task(ask("running", 5))]
        await _until(lambda: server.engine.model.running == 1)
        for name, priority in (("high", 9), ("low", 1)):
            running.append(asyncio.create_task(ask(name, priority)))
            await _until(lambda: server.engine.model.generations == len(running))
        server.engine.set_speed(SPEED)
        await asyncio.gather(*running)

    assert ended[:2] == ["running", first]


async def test_an_engine_that_refuses_priorities_says_so_in_its_own_words():
    async with served(priorities="refused") as (_, client):
        with pytest.raises(RequestRefused, match="Priority scheduling is not enabled"):
            await completed(client, 10, priority=3)
        await completed(client, 10, priority=0)
    async with served(priorities="refused", dialect="sglang") as (_, client):
        with pytest.raises(BackendBusy, match="Using priority is disabled"):
            await completed(client, 10, priority=3)


async def test_a_prompt_that_is_too_long_is_an_overflow_for_our_client():
    async with served(context=100) as (_, client):
        with pytest.raises(ContextOverflow):
            await completed(client, 10, prompt=list(range(120)))


async def test_a_client_that_leaves_ends_its_generation():
    async with served(slots=1) as (server, _client):
        server.engine.set_speed(1.0)
        scope = {"type": "http", "method": "POST", "path": "/v1/completions"}
        leaves = asyncio.Event()
        messages = [
            {
                "type": "http.request",
                "body": b'{"prompt": [1], "max_tokens": 4000, "ignore_eos": true}',
            }
        ]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            raise AssertionError(message)

        call = asyncio.create_task(server(scope, receive, send))
        await _until(lambda: server.engine.model.running == 1)
        leaves.set()
        await call

        assert server.engine.model.generations == 0


async def test_a_sleeping_engine_has_no_caches_and_takes_nothing_until_it_wakes():
    async with served() as (_server, client):
        await completed(client, 100)
        await client.get_json("http://engine/sleep")
        with pytest.raises(BackendBusy, match="asleep"):
            await completed(client, 10)
        await client.get_json("http://engine/wake_up")
        answer = await completed(client, 10)

    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/completions", {"prompt": [1], "max_tokens": 0.5}, "max_tokens"),
        ("/v1/completions", {"prompt": {"no": 1}}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "messages"),
        ("/v1/completions", {"prompt": [1], "priority": "high"}, "priority"),
    ],
)
async def test_bad_input_is_refused_by_the_name_of_its_member(path, body, named):
    async with served() as (_, client):
        with pytest.raises(RequestRefused, match=named):
            await post(client, path, **body)


async def test_an_engine_fails_as_often_as_it_is_set_to():
    async with served(failing=1, failing_status=503) as (_, client):
        with pytest.raises(BackendBusy):
            await completed(client, 5)
        assert (await completed(client, 5))["usage"]["completion_tokens"] == 5


def test_words_encode_to_the_ids_that_they_are_the_text_of():
    ids = [0, 1, 675, 676, 17_575]

    assert ids_of(text_of(ids)) == ids
    assert all(0 <= each < VOCABULARY for each in chat_ids([{"role": "user", "content": "Größe?"}]))


async def _until(true: Any) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0)
