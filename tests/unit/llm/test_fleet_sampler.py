"""Turns that a fleet samples: tokens as at a registered backend, and another generation where one has no answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from domain.rollouts import Rollout
from rollout.llm.engine_client import RequestRefused
from rollout.llm.fleet_sampler import FleetSampler
from rollout.llm.sampler import (
    NoBackendAnswers,
    SampleRequest,
    SamplerLimits,
    VersionSpanExceeded,
)
from rollout.llm.sampling_options import ContextOverflow, SamplingOptions
from rollout.ports import FleetAnswer
from tests.chat_models import tokenizer
from tests.scripted_backends import PROMPT, FaultyBackend
from tests.unit.rollout.builders import a_rollout

ASKED = SampleRequest(PROMPT, SamplingOptions(max_tokens=40, seed=1), tokenizer().vocabulary_size)
#: What becomes of a generation: None, it is answered; an answer instead of that; or a change of the answer's JSON.
Fate = FleetAnswer | Callable[[dict[str, Any]], Any] | None


class FleetOf:
    """A fleet with one scripted engine, whose generations end as a test says."""

    def __init__(self, engine: str, *fates: Fate, version: int = 0) -> None:
        self.rollout: Rollout = a_rollout(llm="fleet:m")
        self._engine = engine
        self._backend = FaultyBackend("sglang" if engine == "sglang" else "vllm")
        self._fates: list[Fate] = list(fates)
        self._version = version
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def engine(self) -> str:
        return self._engine

    async def generate(self, path: str, body: Mapping[str, Any]) -> FleetAnswer:
        self.asked.append((path, body))
        fate = self._fates.pop(0) if self._fates else None
        if isinstance(fate, FleetAnswer):
            return fate
        status, answer = await self._backend.served.answer(path, dict(body))
        if fate is not None:
            fate(answer)
        return FleetAnswer(status, json.dumps(answer).encode(), "w1", self._version)


def sampler_of(fleet: FleetOf, attempts: int = 3) -> tuple[FleetSampler, list[float]]:
    """Return a sampler, and the pauses that it makes."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    return FleetSampler(fleet, SamplerLimits(attempts, busy=2), pause=pause), pauses


@pytest.mark.parametrize(
    ("engine", "path", "prompt"),
    [
        ("vllm", "/v1/completions", "prompt"),
        ("sglang", "/generate", "input_ids"),
        ("torch", "/v1/completions", "prompt"),
    ],
)
async def test_a_turn_is_asked_for_in_ids_and_is_where_it_was_sampled(
    engine: str, path: str, prompt: str
) -> None:
    fleet = FleetOf(engine, version=7)

    found = await sampler_of(fleet)[0].sample(ASKED)

    [(asked, body)] = fleet.asked
    assert (asked, body[prompt]) == (path, PROMPT)
    assert "model" not in body  # the fleet names it
    assert found.tokens.logprobs is not None
    assert len(found.tokens.ids) == len(found.tokens.logprobs) > 0
    assert (found.seat.pool, found.seat.backend, found.seat.weights_version) == ("fleet:m", "w1", 7)


def _without_ids(answer: dict[str, Any]) -> None:
    del answer["choices"][0]["token_ids"]
    answer["choices"][0].pop("logprobs", None)


async def test_a_generation_without_an_answer_or_with_a_wrong_one_is_sampled_again() -> None:
    fleet = FleetOf("vllm", FleetAnswer(failed="worker w1 of fleet m broke off"), _without_ids)
    sampler, pauses = sampler_of(fleet)

    found = await sampler.sample(ASKED)

    assert len(found.tokens.ids) > 0
    assert (len(fleet.asked), pauses) == (3, [0.1, 0.2])


async def test_a_fleet_that_answers_nothing_ends_the_turn_and_says_what_failed() -> None:
    broke = FleetAnswer(failed="worker w1 of fleet m broke off")
    fleet = FleetOf("vllm", broke, FleetAnswer(500, b"oops", "w2"), broke)

    with pytest.raises(NoBackendAnswers) as failed:
        await sampler_of(fleet)[0].sample(ASKED)

    assert "3 generations of fleet 'm' failed" in str(failed.value)
    assert "worker w2: HTTP 500: oops" in str(failed.value)


async def test_a_busy_engine_is_waited_for_and_costs_no_attempt_at_first() -> None:
    fleet = FleetOf("vllm", FleetAnswer(429, b"", "w1"))
    sampler, pauses = sampler_of(fleet, attempts=1)

    await sampler.sample(ASKED)

    assert pauses == [1.0]


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        (b"temperature must be smaller", RequestRefused),
        (b"This model's maximum context length is 9 tokens", ContextOverflow),
    ],
)
async def test_a_request_that_engines_refuse_is_not_repeated(said: bytes, raised: type) -> None:
    fleet = FleetOf("vllm", FleetAnswer(400, said, "w1"))

    with pytest.raises(raised):
        await sampler_of(fleet)[0].sample(ASKED)

    assert len(fleet.asked) == 1


@pytest.mark.parametrize(("version", "fits"), [(4, True), (5, False)])
async def test_tokens_of_weights_outside_of_the_span_are_not_used(version: int, fits: bool) -> None:
    sampler, _ = sampler_of(FleetOf("vllm", version=version))
    asked = ASKED._replace(first_version=3, max_version_span=1)

    if fits:
        assert (await sampler.sample(asked)).seat.weights_version == version
    else:
        with pytest.raises(VersionSpanExceeded, match="weights 5 after tokens of weights 3"):
            await sampler.sample(asked)


async def test_a_fleet_that_was_deleted_has_no_answer() -> None:
    with pytest.raises(NoBackendAnswers, match="fleet 'm' is not declared any more"):
        await sampler_of(FleetOf(""))[0].sample(ASKED)
