"""Rollout workers that are lost while a rank pulls its rows: another one, or the gateway, has the same bytes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack

import numpy as np
import pytest

from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn
from scheduler.runtime.batches.row_addresses import RowAddresses
from tests.integration.runtime.rollout_rig import RolloutRig
from tests.integration.runtime.test_batches import Sampler, made, pulled, rollouts_of
from tests.integration.runtime.test_killed_rollout_workers import NEVER, worker

#: 8 MiB a row: what the kernel holds of a connection is less than a row.
TOKENS = 2**20
ROLLOUTS = 5


def large_turn() -> SampledTurn:
    """Return a turn of a row that no buffer of a socket holds."""
    ids = np.random.default_rng(3).integers(0, 50_000, TOKENS, np.int32)
    values = -np.random.default_rng(4).random(TOKENS, np.float32)
    return SampledTurn(
        context=ids[:5], tokens=SampledTokens(ids, values), weights_version=1, message={}
    )


async def until_living(rollouts: RolloutRig, names: list[str]) -> None:
    """Wait until these workers serve rows."""
    async with rollouts.rig.context() as context, asyncio.timeout(120):
        addresses = RowAddresses(context.client, context.keys)
        while [each.name for each in await addresses.living()] != names:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("lost", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_is_lost_in_mid_pull_changes_no_byte(
    rollouts: RolloutRig, lost: signal.Signals
) -> None:
    await rollouts.start_worker(Sampler([large_turn()]), "w0")
    ids = await rollouts_of(rollouts, ROLLOUTS)
    await rollouts.stop_worker()
    seen: list[int] = []
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(rollouts, "w1", NEVER))
        await stack.enter_async_context(worker(rollouts, "w2", NEVER))
        await until_living(rollouts, ["w1", "w2"])
        client = await stack.enter_async_context(rollouts.rig.client())
        manifest = await made(client, rollouts=ids, layout={"ranks": 1})

        def lose(row: int) -> None:
            seen.append(row)
            if len(seen) == 1:
                os.kill(first.pid, lost)

        found = await pulled(manifest, 0, connections=1, timeout_seconds=2.0, progress=lose)
        rest = {
            **manifest,
            "workers": [each for each in manifest["workers"] if each["name"] == "w2"],
        }
        expected = await pulled(rest, 0)
        [summary] = (await client.get("/batches")).json()["items"]
    assert sorted(seen) == list(range(ROLLOUTS))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    served = {each["worker"]: each["bytes"] for each in summary["pulls"]}
    assert 0 < served["w2"] - manifest["bytes"] < manifest["bytes"]  # w1 sent the first rows
