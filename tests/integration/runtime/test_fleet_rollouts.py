"""Rollouts whose model is a fleet of modelled engines: each call is a generation, and the end of an engine loses none."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from domain.action import Outcome
from domain.codec import encode
from domain.decisions import Finish
from domain.events import ActionFinished, ActionSubmitted
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetEngine, FleetSpec, WorkerFact, WorkerSpec
from domain.redis_keys import Keys
from examples.rollouts.scripted_llm import TOKENIZER
from managers.llm.fake.word_tokens import VOCABULARY, answer_ids, logprob_of
from rollout.handlers.process_options import ProcessOptions
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.process_launch import launch
from rollout.worker.worker import RolloutWorker
from scheduler.runtime.redis.journal import START, Journal
from tangram_client.aio import AsyncClient
from tangram_client.errors import InvalidRequestError
from tests.integration.runtime.conversing_handler import Conversing
from tests.integration.runtime.fleet_processes import (
    engine,
    free_port,
    running_at,
    until_running,
)
from tests.integration.runtime.prorl_rig import body, process, prorl
from tests.integration.runtime.rollout_rig import (
    ROLLOUTS,
    RolloutRig,
    finished,
    noop,
    rollout_rig,
)
from tests.redis_server import RedisServer

pytestmark = pytest.mark.slow

HANDLERS = {"noop": f"{Conversing.__module__}:{Conversing.__name__}"}
SEED, SEED_STEP = 11, 1_000_003


def instance(turns: int) -> list[dict[str, Any]]:
    return [{"id": "talk", "data": {"turns": turns}}]


def sampling(tokens: int) -> dict[str, Any]:
    return {
        "custom_tokenizer": "modelled", "max_tokens": tokens, "ignore_eos": True, "seed": SEED,
    }  # fmt: skip


@asynccontextmanager
async def running(
    redis: RedisServer, keys: Keys, folder: Path, kind: FleetEngine, ports: Sequence[int]
) -> AsyncIterator[tuple[RolloutRig, AsyncClient]]:
    """Run a leader with fleet ``m``, a rollout worker, and a web process; return its client."""
    workers = tuple(
        WorkerSpec(f"w{n}", f"http://127.0.0.1:{port}", 8) for n, port in enumerate(ports, 1)
    )
    config = replace(ROLLOUTS, fleets={"m": FleetSpec(kind, workers=workers)})
    config = replace(config, resources={**config.resources, "stage:run": 8000})
    # Engines have more ids than the tokenizer, as models often do.
    shutil.copytree(TOKENIZER, folder / "tokenizers" / "modelled")
    (folder / "tokenizers" / "modelled" / "config.json").write_text(
        json.dumps({"vocab_size": VOCABULARY})
    )
    async with (
        rollout_rig(redis.url, keys, folder, config) as rollouts,
        working(rollouts, folder, "w1"),
        rollouts.client() as client,
    ):
        yield rollouts, client


@asynccontextmanager
async def working(rollouts: RolloutRig, folder: Path, name: str) -> AsyncIterator[None]:
    """Run a rollout worker with handler processes of its own."""
    given = ProcessOptions(tokenizers=(str(folder / "tokenizers"),))
    port = (await rollouts.start_worker(noop, name, idle=True)).port
    pool = HandlerPool(1, partial(launch, given))
    worker = asyncio.create_task(RolloutWorker(port, HANDLERS, 8, pool=pool).run())
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait({worker})


def events_of(rollouts: RolloutRig) -> list[Any]:
    """Return all events of the journal."""
    journal = Journal(rollouts.rig.redis, rollouts.rig.keys)
    try:
        return [event for _, entry in journal.after(START) for event in entry.events]
    finally:
        journal.close()


def decisions_of(rollouts: RolloutRig) -> list[Any]:
    """Return all decisions of the journal."""
    journal = Journal(rollouts.rig.redis, rollouts.rig.keys)
    try:
        return [each for _, entry in journal.after(START) for each in entry.decisions]
    finally:
        journal.close()


def check_tokens(segment: Mapping[str, Any], sample: int, turns: int, tokens: int) -> None:
    """Assert that a segment has what the engines sample after each of its prompts, and their log-probabilities."""
    ids, mask = [*segment["prompt_ids"], *segment["response_ids"]], segment["loss_mask"]
    begin = len(segment["prompt_ids"])
    sampled = [begin + place for place, is_sampled in enumerate(mask) if is_sampled]
    assert len(sampled) == turns * tokens
    for turn in range(turns):
        places = sampled[turn * tokens : (turn + 1) * tokens]
        seed = SEED + SEED_STEP * sample + turn
        assert [ids[place] for place in places] == list(
            islice(answer_ids(ids[: places[0]], seed), tokens)
        )
        found = [segment["logprobs"][place - begin] for place in places]
        assert found == pytest.approx([logprob_of(ids[place]) for place in places])


async def test_an_engine_that_is_killed_in_the_middle_loses_no_rollout(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    turns, tokens, samples = 3, 60, 6
    dying, other = free_port(), free_port()
    async with (
        engine(dying) as process,
        engine(other),
        running(runtime_redis, keys, tmp_path, FleetEngine.VLLM, [dying, other]) as (
            rollouts,
            client,
        ),
    ):
        facts = tuple(WorkerFact(name, weights_version=3) for name in ("w1", "w2"))
        rollouts.rig.redis.xadd(
            keys.inbox, {"0": encode(FleetWorkersChanged(fleet="m", facts=facts))}
        )
        made = await client.rollouts.submit(
            "t", "noop", instance(turns), samples=samples, llm="fleet:m", sampling=sampling(tokens),
            batch="step-1",
        )  # fmt: skip
        async with asyncio.timeout(120):
            while not await running_at(dying):
                await asyncio.sleep(0.02)
        process.kill()
        found = [await finished(client, each) for each in made]
        events = events_of(rollouts)

    assert [(each.outcome, each.reward) for each in found] == [("completed", 1.0)] * samples, found
    for sample, each in enumerate(found):
        assert each.segments is not None
        [segment] = each.segments
        check_tokens(segment, sample, turns, tokens)
        versions = zip(segment["weights_version"], segment["loss_mask"], strict=True)
        assert {version for version, is_sampled in versions if is_sampled} == {3}
    actions = [event.action for event in events if isinstance(event, ActionSubmitted)]
    generations = [action for action in actions if action.generation is not None]
    assert {action.trajectory for action in generations} == {f"{each}-run" for each in made}
    assert {
        (action.generation.batch, action.generation.batch_size)
        for action in generations
        if action.generation is not None
    } == {("step-1", samples)}
    assert len({action.group for action in generations}) == 1
    assert not [
        action for action in actions if any(name.startswith("llm:") for name in action.cost)
    ]
    ends = [event for event in events if isinstance(event, ActionFinished)]
    broken = [event for event in ends if event.outcome is Outcome.UNKNOWN]
    assert {event.action_id for event in broken} <= {action.id for action in generations}
    assert broken, "the engine was killed in the midst of generations"
    assert sum(event.usage.sampled_tokens for event in ends if event.usage) == (
        samples * turns * tokens
    )


async def test_sglang_answers_a_rollout_by_its_own_protocol(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        engine(port, "--dialect", "sglang", "--speed", "20"),
        running(runtime_redis, keys, tmp_path, FleetEngine.SGLANG, [port]) as (rollouts, client),
    ):
        [made] = await client.rollouts.submit(
            "t", "noop", instance(2), llm="fleet:m", sampling=sampling(20)
        )
        found = await finished(client, made)
        usages = [each.usage for each in events_of(rollouts) if isinstance(each, ActionFinished)]

    assert (found.outcome, found.segments is not None) == ("completed", True), found
    assert found.segments is not None
    check_tokens(found.segments[0], 0, 2, 20)
    assert [each.sampled_tokens for each in usages if each] == [20, 20]
    assert [bool(each.cached_tokens) for each in usages if each] == [False, True]


async def test_a_client_of_prorl_samples_from_a_fleet(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    port = free_port()
    settings = {"X-Tangram-Llm": "fleet:m"}
    instance = {"data_source": "noop", "instance_id": "i", "turns": 2, "trajectory_id": 0}
    async with (
        engine(port, "--speed", "20"),
        running(runtime_redis, keys, tmp_path, FleetEngine.VLLM, [port]) as (rollouts, _),
        prorl(rollouts, **settings) as client,
    ):
        cleared = await client.post("/clear_llm_server")
        added = await client.post("/add_llm_server", json={"address": "http://10.0.0.7:8000/v1"})
        (await client.post("/start")).raise_for_status()
        answer = (await process(client, body(instance, sampling(20)))).json()

    assert (cleared.status_code, added.status_code) == (200, 200)
    assert added.json()["status"] == (
        "LLM servers are the workers of fleet m; not used: http://10.0.0.7:8000/v1"
    )
    assert (answer["resolved"], answer["error"]) == (True, None), answer
    assert [len(each["token_ids"]) for each in answer["messages"][1::2]] == [20, 20]


async def test_a_cancelled_rollout_frees_the_engine_and_wrong_names_are_refused(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    port = free_port()
    async with (
        engine(port),
        running(runtime_redis, keys, tmp_path, FleetEngine.VLLM, [port]) as (rollouts, client),
        rollouts.client("cluster") as operator,
    ):
        submit = partial(
            client.rollouts.submit, "t", "noop", instance(1), sampling=sampling(50_000)
        )
        [made] = await submit(llm="fleet:m")
        async with asyncio.timeout(120):
            while not await running_at(port):
                await asyncio.sleep(0.02)
            while not (awaited := (await client.rollouts.get(made)).body["awaited"]):
                await asyncio.sleep(0.02)
            await client.rollouts.cancel(made)
            while await running_at(port):
                await asyncio.sleep(0.02)
        generation = await client.wait(awaited)
        with pytest.raises(InvalidRequestError, match="there is no fleet 'n'; there are: fleet:m"):
            await submit(llm="fleet:n")
        with pytest.raises(InvalidRequestError, match="a fleet alone arranges batches"):
            await submit(llm="policy", batch="b")
        with pytest.raises(InvalidRequestError, match="names of pools do not begin with 'fleet:'"):
            await operator.backends.add("fleet:m", "http://127.0.0.1:1/v1")

    assert generation.outcome == "cancelled"


async def test_a_rollout_whose_worker_is_lost_samples_again_what_was_not_stored(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path
) -> None:
    port, turns, tokens = free_port(), 3, 80
    async with (
        engine(port, "--speed", "0.5"),
        running(runtime_redis, keys, tmp_path, FleetEngine.VLLM, [port]) as (rollouts, client),
    ):
        [made] = await client.rollouts.submit(
            "t", "noop", instance(turns), llm="fleet:m", sampling=sampling(tokens)
        )
        async with asyncio.timeout(120):
            while (await client.rollouts.get(made)).turns < 1:
                await asyncio.sleep(0.02)
        await until_running(port, 1)
        await rollouts.kill_worker()
        async with working(rollouts, tmp_path, "w2"):
            found = await finished(client, made)
        events = events_of(rollouts)
        decided = decisions_of(rollouts)

    assert (found.outcome, found.attempt, found.worker) == ("completed", 2, "w2"), found
    assert found.segments is not None
    check_tokens(found.segments[0], 0, turns, tokens)
    actions = [event.action for event in events if isinstance(event, ActionSubmitted)]
    generations = {action.id for action in actions if action.generation is not None}
    ends = [
        each.outcome
        for each in decided
        if isinstance(each, Finish) and each.action_id in generations
    ]
    assert sorted(ends) == ["cancelled", *["completed"] * turns]
