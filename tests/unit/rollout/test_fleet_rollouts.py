"""Rollouts whose model is a fleet: a generation is called through the worker, and waiting for the fleet is not counted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome, Stage
from rollout.ports import FleetAnswer, GenerationRequest
from rollout.testing.local_handlers import local_pool
from rollout.tokens.turn_records import turns_of
from rollout.worker.worker import RolloutWorker
from tests.scripted_backends import FaultyBackend, scripted_model
from tests.unit.rollout.builders import limits
from tests.unit.rollout.conftest import Bench
from tests.unit.rollout.model_handlers import Counting
from tests.unit.rollout.test_model_access import CALL, SAMPLING

HANDLERS = {"counting": f"{Counting.__module__}:{Counting.__name__}"}


class Fleet:
    """A fleet of one engine, which lets each generation wait, and then takes some time."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.backend = FaultyBackend("vllm")
        self.backend.served.model = scripted_model(CALL, "There are 3.", odd_share=0.3)
        self.waits, self.takes = 0.0, 0.0
        self.asked: list[tuple[str, GenerationRequest]] = []
        self.failures: list[FleetAnswer] = []

    async def __call__(self, trajectory: str, asked: GenerationRequest) -> FleetAnswer:
        self.asked.append((trajectory, asked))
        if self.failures:
            return self.failures.pop(0)
        self.bench.time += self.waits + self.takes
        _, answer = await self.backend.served.answer(asked.path, asked.body)
        return FleetAnswer(200, json.dumps(answer).encode(), "w2", 5, self.takes)


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    found = Fleet(bench)
    bench.port.engines, bench.port.generates = {"m": "vllm"}, found
    return found


async def start(bench: Bench) -> RolloutWorker:
    worker = RolloutWorker(
        bench.port, HANDLERS, 100, pool=local_pool(), now=bench.now, pause=bench.pause
    )
    return await bench.run(worker)


def submit(bench: Bench, **members: Any) -> Any:
    return bench.submit("counting", llm="fleet:m", request={"sampling": SAMPLING}, **members)


async def test_each_call_of_the_model_is_a_generation_in_the_trajectory_of_run(
    bench: Bench, fleet: Fleet
) -> None:
    await start(bench)
    rollout = submit(bench)

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 1.0)
    assert (result.turns, result.weights_versions) == (2, (5, 5))
    assert {trajectory for trajectory, _ in fleet.asked} == {f"{rollout.id}-run"}
    turns = turns_of(bench.port.log(rollout.id))
    assert [turn.backend for turn in turns] == ["w2", "w2"]
    first, second = (asked.body["prompt"] for _, asked in fleet.asked)
    assert second[: len(first) + len(turns[0].tokens)] == [*first, *turns[0].tokens.ids.tolist()]


async def test_i9_waiting_for_a_fleet_is_not_counted_and_the_time_with_its_worker_is(
    bench: Bench, fleet: Fleet
) -> None:
    fleet.waits, fleet.takes = 1_000.0, 4.0
    await start(bench)

    result = await bench.result(submit(bench, limits=limits(10.0)))
    late = await bench.result(submit(bench, limits=limits(7.0)))

    assert result.outcome is RolloutOutcome.COMPLETED
    [run] = [times for times in result.times if times.stage is Stage.RUN]
    assert run.active_seconds == pytest.approx(8.0)
    assert (late.outcome, late.reason) == ("timeout", "RUN took longer than 7 s")
    assert [asked.timeout_seconds for _, asked in fleet.asked[:2]] == [10.0, 6.0]


async def test_a_generation_that_fails_does_not_lose_the_rollout(
    bench: Bench, fleet: Fleet
) -> None:
    fleet.failures = [FleetAnswer(failed="worker w1 broke off")]
    await start(bench)

    assert (await bench.result(submit(bench))).outcome is RolloutOutcome.COMPLETED
    assert len(fleet.asked) == 3


async def test_a_fleet_without_any_answer_is_a_failure_of_the_infrastructure(
    bench: Bench, fleet: Fleet
) -> None:
    fleet.failures = [FleetAnswer(failed="worker w1 broke off")] * 2
    await start(bench)

    result = await bench.result(submit(bench))

    assert (result.outcome, result.reward) == (RolloutOutcome.INFRA_FAILED, None)
    assert "generations of fleet 'm' failed" in result.reason
    assert "worker w1 broke off" in result.reason


async def test_a_cancelled_rollout_ends_the_generation_that_it_waits_for(
    bench: Bench, fleet: Fleet
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def waits(_: str, __: GenerationRequest) -> FleetAnswer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("unreachable")

    bench.port.generates = waits
    await start(bench)
    rollout = submit(bench)
    await asyncio.wait_for(asked.wait(), 60)
    assert bench.port.progress[rollout.id].awaited == "act_g1"

    bench.port.cancel_rollout(rollout.id)

    await asyncio.wait_for(ended.wait(), 60)
    assert (await bench.result(rollout)).outcome is RolloutOutcome.CANCELLED
