"""Rollout workers that are killed in the middle of RUN: another process continues, and each turn is trained on once."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from domain.action import Kind
from domain.codec import read_entry
from domain.decisions import Finish
from domain.redis_keys import Keys
from rollout.tokens.packed import unpacked_segment
from rollout.tokens.segments import TokenSegment
from tests.architecture.tree import ROOT
from tests.integration.runtime.rollout_rig import RolloutRig, finished, rollout_rig
from tests.integration.runtime.rollout_worker_process import TURNS, sampled
from tests.redis_server import RedisServer

NEVER = -1


@asynccontextmanager
async def worker(rollouts: RolloutRig, name: str, hold: int) -> AsyncIterator[Process]:
    """Run a worker process."""
    module = "tests.integration.runtime.rollout_worker_process"
    arguments = (rollouts.rig.url, rollouts.rig.keys.prefix, str(rollouts.folder), name, str(hold))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=PIPE, cwd=ROOT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_kill_9_in_mid_run_loses_no_turn_and_runs_no_action_twice(
    rollouts: RolloutRig,
) -> None:
    await rollouts.rig.start_node()
    instances = [{"id": "a"}]
    async with rollouts.client() as client, worker(rollouts, "w1", hold=2) as first:
        [rollout] = await client.rollouts.submit("t", "agent", instances)
        assert first.stdout is not None
        assert await asyncio.wait_for(first.stdout.readline(), 120) == b"held\n"
        first.kill()
        await first.wait()
        async with worker(rollouts, "w2", NEVER):
            found = await finished(client, rollout)
        packed = await client.rollouts.packed(rollout)
    assert (found.outcome, found.worker, found.attempt, found.turns) == (
        "completed",
        "w2",
        2,
        TURNS,
    )
    expected: list[int] = []
    mask: list[int] = []
    for turn in range(TURNS):
        given = sampled(turn)
        context = given.context.tolist() if turn else []
        expected += [*context, *given.tokens.ids.tolist()]
        mask += [0] * len(context) + [1] * len(given.tokens.ids)
    assert found.segments is not None
    [segment] = found.segments
    assert segment["prompt_ids"] == sampled(0).context.tolist()
    assert (segment["response_ids"], segment["loss_mask"]) == (expected, mask)
    assert len(segment["logprobs"]) == len(segment["weights_version"]) == len(expected)
    assert _segment_of(packed).response_ids.tolist() == expected
    assert len(noops_of(rollouts)) == TURNS


def _segment_of(packed: bytes) -> TokenSegment:
    [segment] = msgspec.msgpack.decode(packed)["segments"]
    return unpacked_segment(segment)


def noops_of(rollouts: RolloutRig) -> list[str]:
    """Return the actions of all attempts that a node has run, by the journal."""
    entries = cast("list[Any]", rollouts.rig.redis.xrange(rollouts.rig.keys.journal))
    found = [read_entry(key.decode(), fields) for key, fields in entries]
    finishes = [each for entry in found for each in entry.decisions if isinstance(each, Finish)]
    return [each.action_id for each in finishes if each.kind is Kind.NOOP]


async def test_kill_9_of_redis_in_mid_run_loses_nothing(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered is on disk; a worker waits for the server and goes on."""
    monkeypatch.setattr("scheduler.runtime.gateway.scheduler_queries.ANSWER_SECONDS", 5.0)
    server = RedisServer(tmp_path / "redis").start()
    try:
        async with rollout_rig(server.url, keys, tmp_path) as rollouts:
            await rollouts.rig.start_node()
            async with rollouts.client() as client, worker(rollouts, "w1", hold=2) as first:
                [rollout] = await client.rollouts.submit("t", "agent", [{"id": "a"}])
                assert first.stdout is not None
                assert await asyncio.wait_for(first.stdout.readline(), 120) == b"held\n"
                server.kill()
                server.start()
                first.send_signal(signal.SIGUSR1)
                found = await finished(client, rollout)
                assert first.returncode is None
    finally:
        server.stop()
    assert (found.outcome, found.turns) == ("completed", TURNS)
    assert found.segments is not None
    assert sum(found.segments[0]["loss_mask"]) == 3 * TURNS
