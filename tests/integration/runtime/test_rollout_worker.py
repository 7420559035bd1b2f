"""The rollout worker of the product runs on the runtime: a real Redis, a real loop, real logs."""

from __future__ import annotations

from typing import Any

import pytest

from rollout.ports import RolloutPort
from rollout.testing.local_handlers import local_pool
from rollout.worker.worker import RolloutWorker
from tests.integration.runtime import rollout_rig
from tests.integration.runtime.rollout_rig import RolloutRig, Work, finished
from tests.unit.rollout.conftest import places


class HostedWorker(RolloutWorker):
    """The worker of the product, as the rig hosts it."""

    def __init__(self, port: RolloutPort, work: Work, **_: Any) -> None:
        super().__init__(port, places(), 100, pool=local_pool())
        self.port = port


@pytest.fixture
async def hosted(rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch) -> RolloutRig:
    """A system whose rollout workers are those of the product."""
    monkeypatch.setattr(rollout_rig, "ScriptedWorker", HostedWorker)
    await rollouts.rig.start_node()
    return rollouts


async def start(rollouts: RolloutRig, name: str = "w1") -> None:
    """Start a worker of the product."""
    await rollouts.start_worker(rollout_rig.noop, name, slots=100, handlers=tuple(places()))


@pytest.mark.slow
async def test_rollouts_run_on_the_runtime(hosted: RolloutRig) -> None:
    await start(hosted)
    async with hosted.client() as client:
        instances = [{"id": f"i{n}"} for n in range(10)]
        made = await client.rollouts.submit("t", "noop", instances, options={"reward": 0.5})
        found = [await finished(client, each) for each in made]

    assert [(each.outcome, each.reward) for each in found] == [("completed", 0.5)] * 10


@pytest.mark.slow
async def test_tools_turns_and_artefacts_reach_the_answer(hosted: RolloutRig) -> None:
    await start(hosted)
    async with hosted.client() as client:
        [made] = await client.rollouts.submit("t", "Tools", [{"id": "i"}])
        found = await finished(client, made)

    assert (found.outcome, found.reward, found.reason) == ("completed", 1.0, "tests")
    assert found.turns == 3
    assert [each["name"] for each in found.body["artefacts"]] == ["patch"]
    assert found.body["detail"] == {"calls": 5}


@pytest.mark.slow
async def test_a_cancelled_rollout_of_the_worker_is_answered(hosted: RolloutRig) -> None:
    await start(hosted)
    async with hosted.client() as client:
        [made] = await client.rollouts.submit("t", "Hangs", [{"id": "i"}])
        await client.rollouts.cancel(made, reason="enough")
        found = await finished(client, made)

    assert (found.outcome, found.reason) == ("cancelled", "enough")


@pytest.mark.slow
async def test_a_killed_worker_has_a_successor_that_repeats_no_tool(hosted: RolloutRig) -> None:
    await start(hosted)
    async with hosted.client() as client:
        [made] = await client.rollouts.submit("t", "Tools", [{"id": "i"}])
        await start(hosted, "w2")
        await hosted.kill_worker(0)
        found = await finished(client, made)

    assert (found.outcome, found.reward, found.turns) == ("completed", 1.0, 3)
    calls = [each for each in hosted.logs.read(made) if each.kind == "call"]
    assert len({each.header["key"] for each in calls}) == len(calls) == 5
