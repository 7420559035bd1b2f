"""Handlers talk to their models: turns are stored, a successor continues behind them, dead backends train nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from domain.rollouts import RolloutId, RolloutOutcome, new_rollout_id
from rollout.handlers.model_access import accepted_at
from rollout.testing.local_handlers import local_pool
from rollout.tokens.segments import segments_of
from rollout.tokens.turn_records import turns_of
from rollout.worker.worker import RolloutWorker
from tests.scripted_backends import FaultyBackend, scripted_model, seat_of
from tests.unit.rollout.conftest import Bench
from tests.unit.rollout.model_handlers import BACKENDS, Counting

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
HANDLERS = {"counting": f"{Counting.__module__}:{Counting.__name__}"}
SAMPLING = {"custom_tokenizer": "tokenizer", "seed": 3, "max_tokens": 64}


@pytest.fixture
def backend() -> FaultyBackend:
    """A backend that every test has as ``b1``."""
    found = FaultyBackend("vllm")
    found.served.model = scripted_model(CALL, "There are 3.", odd_share=0.3)
    BACKENDS.by_host = {"b1": found}
    return found


async def start(bench: Bench) -> RolloutWorker:
    worker = RolloutWorker(
        bench.port, HANDLERS, 100, pool=local_pool(), now=bench.now, pause=bench.pause
    )
    return await bench.run(worker)


def submit(bench: Bench, **members: Any) -> Any:
    request = members.pop("request", {"sampling": SAMPLING})
    return bench.submit("counting", llm="policy", request=request, **members)


async def test_a_handler_talks_to_its_model_and_the_log_has_the_tokens(bench, backend) -> None:
    bench.port.seats = [seat_of("b1", 4)]
    await start(bench)
    rollout = submit(bench)

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 1.0)
    assert (result.turns, result.weights_versions) == (2, (4, 4))
    (segment,) = segments_of(turns_of(bench.port.log(rollout.id)))
    assert result.prompt_tokens + result.response_tokens == (
        len(segment.prompt_ids) + len(segment.response_ids)
    )
    assert result.response_tokens == segment.sampled


async def test_a_successor_samples_no_stored_turn_again(bench, backend) -> None:
    bench.port.seats = [seat_of("b1")]
    second, never = asyncio.Event(), asyncio.Event()

    async def hangs(_: dict[str, Any]) -> None:
        second.set()
        await never.wait()

    backend.faults = [None, hangs]
    first = await start(bench)
    rollout = submit(bench)
    await asyncio.wait_for(second.wait(), 60)
    await bench.stop(first)
    bench.port.lose_worker()
    await start(bench)

    result = await bench.result(rollout)

    assert (result.outcome, result.turns) == (RolloutOutcome.COMPLETED, 2)
    assert len(backend.asked) == 3
    assert backend.asked[1] == backend.asked[2]
    assert len(bench.port.actions(rollout.id)) == 1


async def test_a_rollout_whose_backends_all_fail_is_infra_failed(bench, backend) -> None:
    bench.port.seats = [seat_of("b1")]
    backend.faults = [lambda _: 500] * 10
    await start(bench)
    rollout = submit(bench)

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.INFRA_FAILED, None)
    assert "NoBackendAnswers" in result.reason


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({}, "name the tokenizer"),
        ({"custom_tokenizer": "../../secret"}, "there is no tokenizer"),
        ({**SAMPLING, "temperature": -1}, "temperature"),
        ({**SAMPLING, "chat_template_kwargs": 3}, "chat_template_kwargs"),
    ],
)
async def test_a_request_that_names_no_model_fails_with_the_member(
    bench, backend, sampling, said
) -> None:
    bench.port.seats = [seat_of("b1")]
    await start(bench)

    result = await bench.result(submit(bench, request={"sampling": sampling}))

    assert result.outcome is RolloutOutcome.FAILED
    assert said in result.reason


def test_the_date_of_prompts_is_that_of_the_rollout() -> None:
    at = datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC)
    rollout = new_rollout_id(int(at.timestamp() * 1000), bytes(8))

    assert accepted_at(rollout) == at
    assert accepted_at(RolloutId("rol_1")) != accepted_at(rollout)
    assert accepted_at(RolloutId("rol_x")).tzinfo is UTC


async def test_turns_are_sampled_at_the_seat_of_the_lease_that_follows(bench, backend) -> None:
    other = FaultyBackend("vllm")
    other.served.model = backend.served.model
    BACKENDS.by_host["b2"] = other
    bench.port.seats = [seat_of("b1"), seat_of("b2")]

    async def moves(members: dict[str, Any]) -> Any:
        bench.port.move_seat(rollout.id, seat_of("b2"))
        return "completed", {"exit_code": 3}

    bench.port.program = moves
    await start(bench)
    rollout = submit(bench)

    assert (await bench.result(rollout)).turns == 2
    assert (len(backend.asked), len(other.asked)) == (1, 1)
