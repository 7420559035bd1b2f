"""Rollouts whose node is lost: INIT again on another start of it, at most twice; nothing of the lost one is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.errors import NotFound
from domain.redis_keys import Keys
from domain.rollouts import RolloutId, Stage
from rollout.core.stage_machine import trajectory_of
from rollout.ports import LostEnvironment
from scheduler.runtime.rollouts import environments
from tests.integration.runtime import rollout_rig as rigs
from tests.integration.runtime.rollout_rig import ROLLOUTS, RolloutRig, ScriptedWorker, finished
from tests.integration.runtime.test_rollout_environments import assigned
from tests.integration.runtime.test_rollout_worker import HostedWorker, start
from tests.redis_server import RedisServer
from tests.unit.rollout import odd_handlers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IMPATIENT = replace(ROLLOUTS, node_grace_seconds=0.1, node_dead_seconds=0.3)


@pytest.fixture
async def impatient(
    runtime_redis: RedisServer,
    keys: Keys,
    tmp_path: Path,
    nodes_live_on: None,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[RolloutRig]:
    """A system that soon counts a silent node as dead; its rollout workers are those of the product."""
    monkeypatch.setattr(rigs, "ScriptedWorker", HostedWorker)
    monkeypatch.setattr(environments, "SILENT_SECONDS", 0.05)
    odd_handlers.reached.clear()
    odd_handlers.released.clear()
    async with rigs.rollout_rig(runtime_redis.url, keys, tmp_path, IMPATIENT) as rollouts:
        await rollouts.rig.start_node()
        yield rollouts


async def lose_node(rollouts: RolloutRig, trajectory: str) -> None:
    """End the node as ``kill -9`` does, and wait until it counts as dead; then start it again."""
    await rollouts.rig.crash_node()
    rollouts.rig.redis.delete(rollouts.rig.keys.alive("n1"))
    queries = rollouts.workers[0].context.queries
    async with asyncio.timeout(120):
        while (await queries.trajectory("default", trajectory)).lost is not True:
            await asyncio.sleep(0.02)
    await rollouts.rig.start_node()


async def test_a_node_that_is_lost_between_two_calls_means_init_again(
    impatient: RolloutRig,
) -> None:
    await start(impatient)
    async with impatient.client() as client:
        [made] = await client.rollouts.submit(
            "t", "NeedsItsFile", [{"id": "i"}], environment={"memory_bytes": 1024}
        )
        reached = odd_handlers.reached.setdefault(RolloutId(made), asyncio.Event())
        await asyncio.wait_for(reached.wait(), 120)
        await lose_node(impatient, f"{made}-run")
        odd_handlers.released[made].set()
        found = await finished(client, made)

    assert (found.outcome, found.reward, found.reason) == ("completed", 1.0, "")
    kinds = [each.kind for each in impatient.logs.read(made)]
    assert kinds == ["request", "prepared", "lost", "prepared", "stage", "result"]


async def test_an_action_that_is_lost_with_its_environment_means_init_again_at_most_twice(
    impatient: RolloutRig,
) -> None:
    await start(impatient)
    async with impatient.client() as client:
        [made] = await client.rollouts.submit(
            "t", "RunsForLong", [{"id": "i"}], environment={"memory_bytes": 1024}
        )
        for generation in range(3):
            name = trajectory_of(made, generation, Stage.RUN)
            async with asyncio.timeout(120):
                while all(
                    order.action.trajectory != name
                    for order in impatient.rig.driver.storage.marks.values()
                ):
                    await asyncio.sleep(0.01)
            await lose_node(impatient, name)
        found = await finished(client, made)

    assert (found.outcome, found.reward) == ("infra_failed", None)
    assert found.reason.startswith("its environment was lost 3 times")
    assert [each.kind for each in impatient.logs.read(made)].count("lost") == 2


async def test_calls_in_an_environment_that_is_lost_say_so(
    impatient: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rigs, "ScriptedWorker", ScriptedWorker)  # the test makes the calls
    port = await impatient.start_port()
    async with impatient.client() as client:
        given = await assigned(client, port)
        rollout, name = given.rollout, given.rollout.id
        await port.open(rollout, name, {"memory_bytes": 1024})
        await port.put(rollout, name, "a", b"1")
        with pytest.raises(NotFound):
            await port.get(rollout, name, "b")
        await lose_node(impatient, name)
        for call in (
            port.open(rollout, name, {"memory_bytes": 1024}),
            port.put(rollout, name, "a", b"1"),
            port.get(rollout, name, "a"),
            port.connect(rollout, name, 8000),
        ):
            with pytest.raises(LostEnvironment, match="node n1 is dead"):
                await call
        await client.rollouts.cancel(name)
