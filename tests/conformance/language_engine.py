"""What Tangram asks of a server of a language model, as tests: derive from `LanguageEngineConformance` and give a fixture ``engine``.

Fakes and real engines pass the same tests, so that what is shown with a fake holds for the real one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import httpx
import pytest

from rollout.llm.engine_client import EngineClient, RequestRefused
from rollout.llm.probing import probe
from rollout.llm.sampler import SampleRequest, TurnSampler
from rollout.llm.sampling_options import ContextOverflow, SamplingOptions
from rollout.ports import Seat
from tests.scripted_backends import TestBinding

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
MESSAGES = [{"role": "user", "content": "How many files are there?"}]
OPTIONS = SamplingOptions(temperature=1.0, max_tokens=6, seed=3)


class ServedModel(NamedTuple):
    """A server under test."""

    url: str
    #: ``openai`` or ``vllm``: what a probe finds.
    dialect: str
    vocabulary: int
    #: Tokens of a prompt that is too long.
    too_long: int
    #: It keeps what it computed for a trajectory, or for a prefix.
    caches: bool = True


class LanguageEngineConformance:
    """What every server does."""

    async def test_a_probe_finds_its_dialect_and_its_model(self, engine: ServedModel) -> None:
        client = EngineClient()
        try:
            found = await probe(client, engine.url)
            assert found.dialect == engine.dialect
            assert found.models
            assert await client.healthy(engine.url)
        finally:
            await client.close()

    async def test_a_rollout_samples_tokens_with_their_log_probabilities(
        self, engine: ServedModel
    ) -> None:
        one, two = await sampled(engine, OPTIONS), await sampled(engine, OPTIONS)
        assert 0 < len(one.ids) <= 6
        assert one.logprobs is not None
        assert one.ids.tolist() == two.ids.tolist(), "the same seed"

    async def test_a_stream_of_a_completion_is_its_whole_answer_in_pieces(
        self, engine: ServedModel
    ) -> None:
        body = asked(prompt=PROMPT)
        whole = (await post(engine, "/v1/completions", body))["choices"][0]
        events = await streamed(engine, "/v1/completions", body)
        choices = [each for event in events for each in event["choices"]]
        assert "".join(each["text"] for each in choices) == whole["text"]
        ids = [each for choice in choices for each in choice.get("token_ids") or ()]
        assert ids == whole["token_ids"]
        assert finish_of(choices) == whole["finish_reason"]

    async def test_a_stream_of_a_chat_is_its_whole_answer_in_pieces(
        self, engine: ServedModel
    ) -> None:
        body = asked(messages=MESSAGES)
        whole = (await post(engine, "/v1/chat/completions", body))["choices"][0]
        events = await streamed(engine, "/v1/chat/completions", body)
        choices = [each for event in events for each in event["choices"]]
        deltas = [each["delta"] for each in choices]
        assert deltas[0]["role"] == whole["message"]["role"] == "assistant"
        text = "".join(each.get("content") or "" for each in deltas)
        assert text == whole["message"]["content"]
        assert finish_of(choices) == whole["finish_reason"]

    async def test_usage_counts_prompt_and_answer(self, engine: ServedModel) -> None:
        answer = await post(engine, "/v1/completions", asked(prompt=PROMPT))
        usage, ids = answer["usage"], answer["choices"][0]["token_ids"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), len(ids))
        assert usage["total_tokens"] == len(PROMPT) + len(ids)

    async def test_a_stream_ends_with_its_usage_when_that_is_asked_for(
        self, engine: ServedModel
    ) -> None:
        body = asked(prompt=PROMPT, stream_options={"include_usage": True})
        events = await streamed(engine, "/v1/completions", body)
        usages = [event["usage"] for event in events if event.get("usage")]
        assert usages[-1]["prompt_tokens"] == len(PROMPT)

    async def test_a_prompt_that_is_too_long_is_refused_as_such(self, engine: ServedModel) -> None:
        with pytest.raises(ContextOverflow):
            await sampled(engine, OPTIONS, [7] * engine.too_long)

    async def test_a_wrong_request_is_refused_and_the_next_one_is_served(
        self, engine: ServedModel
    ) -> None:
        client = EngineClient()
        try:
            with pytest.raises(RequestRefused):
                await client.generate(engine.url, "/v1/completions", {"prompt": 7}, 1)
        finally:
            await client.close()
        await sampled(engine, OPTIONS)

    async def test_the_next_step_of_a_trajectory_reports_what_was_cached(
        self, engine: ServedModel
    ) -> None:
        body = asked(prompt=PROMPT * 40, tangram={"trajectory": "cached"})
        first = await post(engine, "/v1/completions", body)
        longer = [*body["prompt"], *first["choices"][0]["token_ids"], *PROMPT]
        again = await post(engine, "/v1/completions", {**body, "prompt": longer})
        details = again["usage"].get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens", 0)
        # Engines that keep blocks lose a part of one.
        assert (cached >= len(body["prompt"]) - 32) == engine.caches


def asked(**members: Any) -> dict[str, Any]:
    """Return a request whose answer is the same each time."""
    fixed = {"max_tokens": 6, "temperature": 1.0, "seed": 3, "return_token_ids": True}
    return {**fixed, **members}


async def sampled(engine: ServedModel, options: SamplingOptions, prompt: Any = PROMPT) -> Any:
    """Return the tokens that a rollout's turn gets."""
    client = EngineClient()
    try:
        binding = TestBinding(Seat("policy", "b1", engine.url, 1, ""))
        request = SampleRequest(list(prompt), options, engine.vocabulary)
        return (await TurnSampler(client).sample(binding, request)).tokens
    finally:
        await client.close()


async def post(engine: ServedModel, path: str, body: Any) -> Any:
    """Return the JSON of a good answer."""
    async with httpx.AsyncClient(trust_env=False, timeout=180) as client:
        answer = await client.post(engine.url + path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def streamed(engine: ServedModel, path: str, body: Any) -> list[Any]:
    """Return the events of a good answer, which is complete."""
    async with (
        httpx.AsyncClient(trust_env=False, timeout=180) as client,
        client.stream("POST", engine.url + path, json={**body, "stream": True}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def finish_of(choices: list[Any]) -> Any:
    """Return how a streamed answer ended."""
    return [each["finish_reason"] for each in choices if each.get("finish_reason")][-1]
