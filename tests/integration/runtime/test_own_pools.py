"""Pools of backends of a project's own: other projects neither see nor use them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tangram_client.errors import ConflictError
from tests.integration.runtime.prorl_rig import prorl
from tests.integration.runtime.rollout_rig import RolloutRig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OWN = "mine@default"
SEAT = f"llm:{OWN}"


async def test_tasks_of_the_prorl_door_that_are_over_leave_room_for_others(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool is kept with its weights version; a training process names a task of its own each time."""
    monkeypatch.setattr("scheduler.runtime.gateway.endpoints.backends.MAX_POOLS_OF_PROJECT", 3)

    async def post(client: httpx.AsyncClient, task: str, path: str) -> int:
        body = {"address": "http://127.0.0.1:8000"}
        return (await client.post(path, json=body, headers={"X-Tangram-Task": task})).status_code

    async with prorl(rollouts) as client, rollouts.client("operator") as operator:
        await post(client, "runs", "/start")  # between two steps it has no server and no rollout
        for task in ("runs", "over"):
            await post(client, task, "/add_llm_server")
            await post(client, task, "/clear_llm_server")
        assert await post(client, "serves", "/add_llm_server") == 200
        assert await post(client, "next", "/add_llm_server") == 200
        known = {each["pool"] for each in await operator.backends.list()}
        assert known == {f"prorl.{task}@default" for task in ("runs", "serves", "next")}
        assert await post(client, "full", "/add_llm_server") == 400
        await post(client, "next", "/clear_llm_server")
        await operator.backends.forget("prorl.next@default")
        assert await post(client, "full", "/add_llm_server") == 200


async def test_status_and_queues_show_own_pools_to_their_project_alone(
    rollouts: RolloutRig,
) -> None:
    lease = {"task": "t", "kind": "lease", "cost": {SEAT: 1}, "lease": {"ttl_seconds": 60}}

    async def seen(token: str) -> tuple[bool, list[Any]]:
        async with rollouts.rig.client(token) as client:
            status = (await client.get("/status")).json()
            lines = (await client.get("/queues")).json()["items"]
        return SEAT in status["resources"], [each["needs"] for each in lines]

    async with rollouts.client("operator") as operator, rollouts.rig.client("trainer") as trainer:
        await operator.backends.add(OWN, "http://127.0.0.1:1", seats=1)
        for _ in range(2):
            (await trainer.post("/actions", json=lease)).raise_for_status()
        async with asyncio.timeout(60):
            while not (await seen("reader"))[1]:
                await asyncio.sleep(0.01)

    assert await seen("reader") == await seen("cluster") == (True, [{SEAT: 1}])
    assert await seen("stranger") == (False, [{}])


async def test_a_pool_that_is_used_is_a_conflict_to_forget_and_stays(rollouts: RolloutRig) -> None:
    async with rollouts.client("operator") as operator, rollouts.client() as client:

        async def known() -> bool:
            return OWN in {each["pool"] for each in await operator.backends.list()}

        await operator.backends.add(OWN, "http://127.0.0.1:1")
        [made] = await client.rollouts.submit("t", "noop", [{"id": "a"}], llm=OWN)
        await operator.backends.clear(OWN)
        with pytest.raises(ConflictError, match="a rollout that is not finished names it"):
            await operator.backends.forget(OWN)
        assert await known()
        await client.rollouts.cancel(made)
        await client.rollouts.wait(made)
        await operator.backends.forget(OWN)
        assert not await known()
