"""A turn is sampled although backends hang, lie, are busy, or are replaced; and no token is of other weights than it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from rollout.llm.engine_client import BackendFailed, EngineClient, ExchangeLimits, RequestRefused
from rollout.llm.pool_binding import PoolBinding
from rollout.llm.sampler import (
    NoBackendAnswers,
    SampleRequest,
    SamplerLimits,
    TurnSampler,
    VersionSpanExceeded,
)
from rollout.llm.sampling_options import ContextOverflow, SamplingOptions
from rollout.ports import Seat
from tests.chat_models import tokenizer
from tests.scripted_backends import PROMPT, Backends, FaultyBackend, TestBinding, seat_of

REQUEST = SampleRequest(PROMPT, SamplingOptions(max_tokens=64), tokenizer().vocabulary_size)


class Pauses(list[float]):
    """Pauses that take no time."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


@asynccontextmanager
async def sampler(
    limits: ExchangeLimits | None = None, attempts: int = 3, **backends: FaultyBackend
) -> AsyncIterator[TurnSampler]:
    client = EngineClient(limits, transport=Backends(**backends))
    try:
        limits_of = SamplerLimits(attempts=attempts, busy=3)
        yield TurnSampler(client, limits=limits_of, pause=Pauses())
    finally:
        await client.close()


def nan(answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"]["token_logprobs"][1] = float("nan")


def cut(answer: dict[str, Any]) -> None:
    answer["choices"][0]["token_ids"].pop()


def other_prompt(answer: dict[str, Any]) -> None:
    answer["choices"][0]["prompt_token_ids"] = [1]


def text_alone(answer: dict[str, Any]) -> None:
    choice = answer["choices"][0]
    answer["choices"] = [{"text": choice["text"], "finish_reason": "stop"}]


def status(code: int) -> Any:
    return lambda answer: code


def hangs(answer: dict[str, Any]) -> Any:
    return asyncio.Event().wait()


@pytest.mark.parametrize(
    "fault",
    [nan, cut, other_prompt, text_alone, status(500), status(404)],
    ids=["NaN", "cut", "other prompt", "text alone", "500", "404"],
)
async def test_a_lying_or_failing_backend_is_replaced_by_another(fault):
    first, second = FaultyBackend("vllm", fault), FaultyBackend("vllm")
    binding = TestBinding(seat_of("b1"), seat_of("b2"))
    async with sampler(b1=first, b2=second) as made:
        found = await made.sample(binding, REQUEST)

        assert found.seat.backend == "b2"
        assert tokenizer().decode(found.tokens.ids.tolist()).startswith("It is 4")
        assert list(made.health.avoided(asyncio.get_running_loop().time())) == ["b1"]
    assert binding.reasons[0].startswith("a call failed: b1")


async def test_a_backend_that_refuses_connections_is_replaced():
    binding = TestBinding(seat_of("b1"), seat_of("b2"))
    async with sampler(b2=FaultyBackend()) as made:
        assert (await made.sample(binding, REQUEST)).seat.backend == "b2"


async def test_a_backend_that_hangs_is_given_up_by_its_health_and_not_at_the_limit_of_the_call():
    hanging = FaultyBackend("vllm", hangs)
    hanging.health_answers = False
    limits = ExchangeLimits(call_seconds=600, watch_seconds=0.005, health_seconds=0.005)
    binding = TestBinding(seat_of("b1"), seat_of("b2"))
    async with sampler(limits, b1=hanging, b2=FaultyBackend()) as made:
        found = await asyncio.wait_for(made.sample(binding, REQUEST), 5)

    assert found.seat.backend == "b2"
    assert "health" in binding.reasons[0]


async def test_a_backend_that_is_healthy_and_hangs_is_given_up_at_the_limit_of_the_call():
    limits = ExchangeLimits(call_seconds=0.05, watch_seconds=0.01)
    binding = TestBinding(seat_of("b1"), seat_of("b2"))
    async with sampler(limits, b1=FaultyBackend("vllm", hangs), b2=FaultyBackend()) as made:
        assert (await made.sample(binding, REQUEST)).seat.backend == "b2"
    assert "no answer within 0.05 s" in binding.reasons[0]


async def test_a_busy_backend_is_asked_again_after_the_time_that_it_states():
    backend = FaultyBackend("vllm", status(503), status(429))
    binding = TestBinding(seat_of("b1"))
    async with sampler(b1=backend) as made:
        assert (await made.sample(binding, REQUEST)).seat.backend == "b1"
        assert cast(Pauses, made._pause) == [0.25, 0.25]
        assert made.health.avoided(0) == {}
    assert binding.reasons == []


async def test_without_any_answer_the_failure_is_one_of_the_infrastructure_with_its_reasons():
    backend = FaultyBackend("vllm", *[nan] * 3)
    async with sampler(b1=backend) as made:
        with pytest.raises(NoBackendAnswers, match=r"3 attempts failed.*b1: an answer"):
            await made.sample(TestBinding(seat_of("b1")), REQUEST)
    assert len(backend.asked) == 3


@pytest.mark.parametrize(("name", "shown"), [("10.0.0.9:8000", "backend 7"), ("fast", "fast")])
@pytest.mark.parametrize("wrong", ["", "http://10.0.0.9:8000/v1", "('10.0.0.9', 8000)"])
async def test_reasons_have_no_address_of_a_backend(
    name: str, shown: str, wrong: str, monkeypatch: pytest.MonkeyPatch
):
    """They are shown to readers who may not know it; a declared name is listed to them."""
    dialect = "vllm" if wrong else ""  # without one, the probe fails
    binding = TestBinding(Seat("policy", name, "http://10.0.0.9:8000", 1, dialect, number=7))
    async with sampler() as made:
        if wrong:
            monkeypatch.setattr(made, "_ask", AsyncMock(side_effect=BackendFailed(wrong)))
        with pytest.raises(NoBackendAnswers) as raised:
            await made.sample(binding, REQUEST)
    for text in (str(raised.value), binding.reasons[0]):
        assert "10.0.0.9" not in text
        assert f"{shown}: " in text


async def test_a_request_that_the_engine_refuses_is_not_repeated():
    backend = FaultyBackend("vllm", status(422))
    async with sampler(b1=backend) as made:
        with pytest.raises(RequestRefused, match="HTTP 422"):
            await made.sample(TestBinding(seat_of("b1")), REQUEST)
    assert len(backend.asked) == 1


async def test_a_full_context_is_known_before_and_after_the_engine_is_asked():
    small = FaultyBackend("openai", context=len(PROMPT))
    async with sampler(b1=small, b2=FaultyBackend("vllm", context=len(PROMPT))) as made:
        for backend in ("b1", "b2"):
            with pytest.raises(ContextOverflow):
                await made.sample(TestBinding(seat_of(backend)), REQUEST)
    assert len(small.asked) == 1


async def test_a_removed_backend_is_not_asked_for_another_turn():
    first = FaultyBackend()
    binding = TestBinding(seat_of("b1"), seat_of("b2", 2), registered=[seat_of("b2", 2)])
    async with sampler(b1=first, b2=FaultyBackend()) as made:
        assert (await made.sample(binding, REQUEST)).seat == seat_of("b2", 2)
    assert first.asked == []
    assert binding.reasons == ["backend b1 takes no more calls"]


async def test_new_weights_bind_the_next_turn_again_and_its_tokens_carry_them():
    binding = TestBinding(seat_of("b1", 1), seat_of("b1", 2), registered=[seat_of("b1", 2)])
    async with sampler(b1=FaultyBackend()) as made:
        assert (await made.sample(binding, REQUEST)).seat.weights_version == 2
    assert binding.reasons == ["backend b1 has new weights"]


async def test_weights_that_change_during_a_call_do_not_change_its_version():
    binding = TestBinding(seat_of("b1", 1))

    def change(answer: dict[str, Any]) -> None:
        binding.now = [seat_of("b1", 2)]

    async with sampler(b1=FaultyBackend("vllm", change)) as made:
        assert (await made.sample(binding, REQUEST)).seat.weights_version == 1


async def test_a_call_whose_backend_is_removed_is_sampled_again_and_costs_no_attempt():
    binding = TestBinding(seat_of("b1"), seat_of("b2", 2))

    def removed(answer: dict[str, Any]) -> int:
        binding.now = [seat_of("b2", 2)]
        return 502

    async with sampler(attempts=1, b1=FaultyBackend("vllm", removed), b2=FaultyBackend()) as made:
        found = await made.sample(binding, REQUEST)
        assert made.health.avoided(0) == {}

    assert found.seat == seat_of("b2", 2)
    assert binding.reasons == ["backend b1 was removed during a call"]


@pytest.mark.parametrize(("version", "sampled"), [(4, True), (5, False)])
async def test_no_token_is_sampled_outside_of_the_version_span(version, sampled):
    backend = FaultyBackend()
    binding = TestBinding(seat_of("b1", version))
    request = REQUEST._replace(first_version=1, max_version_span=3)
    async with sampler(b1=backend) as made:
        if sampled:
            assert (await made.sample(binding, request)).seat.weights_version == version
        else:
            with pytest.raises(VersionSpanExceeded, match="max_version_span is 3"):
                await made.sample(binding, request)
    assert len(backend.asked) == sampled


async def test_a_backend_is_probed_once_for_all_that_wait_for_it():
    backend = FaultyBackend("prorl")
    async with sampler(b1=backend) as made:
        await asyncio.gather(*(made.sample(TestBinding(seat_of("b1")), REQUEST) for _ in range(5)))
    assert len(backend.asked) == 5 + 1


async def test_a_cancelled_turn_leaves_the_probe_to_those_that_wait_for_it():
    probed, answer = asyncio.Event(), asyncio.Event()

    async def wait(_: dict[str, Any]) -> None:
        probed.set()
        await answer.wait()

    async with sampler(b1=FaultyBackend("prorl", wait)) as made:
        first, second = (
            asyncio.create_task(made.sample(TestBinding(seat_of("b1")), REQUEST)) for _ in range(2)
        )
        await probed.wait()
        first.cancel()
        await asyncio.wait({first})
        answer.set()

        assert (await second).seat.backend == "b1"
        assert first.cancelled()


async def test_a_server_that_became_another_engine_is_probed_again():
    backend = FaultyBackend("vllm")
    binding = TestBinding(seat_of("b1"))
    async with sampler(b1=backend) as made:
        await made.sample(binding, REQUEST)
        backend.served.dialect = "prorl"

        await made.sample(binding, REQUEST)

    assert "prompt_ids" in backend.asked[-1]


async def test_a_cancelled_turn_closes_its_request():
    started = asyncio.Event()
    ended = asyncio.Event()

    async def waits(answer: dict[str, Any]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with sampler(b1=FaultyBackend("vllm", waits)) as made:
        task = asyncio.create_task(made.sample(TestBinding(seat_of("b1")), REQUEST))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended.is_set()


async def test_after_clear_and_add_the_turn_waits_and_is_of_the_new_weights():
    """The trainer removes all backends during a call, and registers others later."""
    cleared, added = asyncio.Event(), asyncio.Event()
    now = [seat_of("b1", 1)]

    async def backends(wait: bool) -> list[Seat]:
        if wait and not now:
            cleared.set()
            await added.wait()
        return list(now)

    def clear(answer: dict[str, Any]) -> int:
        now.clear()
        return 502

    async with sampler(attempts=1, b1=FaultyBackend("vllm", clear), b2=FaultyBackend()) as made:
        binding = PoolBinding("rol_1", now[0], backends, made.health, lambda: 0.0)
        turn = asyncio.create_task(made.sample(binding, REQUEST))
        await cleared.wait()
        assert not turn.done()
        now.append(seat_of("b2", 2))
        added.set()

        assert (await turn).seat == seat_of("b2", 2)
        assert (await made.sample(binding, REQUEST)).seat == seat_of("b2", 2)
