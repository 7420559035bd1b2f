"""Backends that rollout workers find dead get no seats, and get them again when they answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.ports import Assigned, RolloutPort
from tangram_client.aio import AsyncClient
from tests.api_server import local_api
from tests.integration.runtime.rollout_rig import RolloutRig, finished
from tests.ports import free_port

ONE = [{"id": "django-1", "data": {}}]

pytestmark = pytest.mark.slow


async def unhealthy(client: AsyncClient) -> dict[str, str]:
    """Return the reason of each unhealthy backend."""
    [pool] = await client.backends.list()
    return {each["name"]: each["unhealthy"] for each in pool["backends"] if each.get("unhealthy")}


async def until(client: AsyncClient, names: set[str]) -> None:
    """Wait until exactly these backends are unhealthy."""
    async with asyncio.timeout(120):
        while set(await unhealthy(client)) != names:
            await asyncio.sleep(0.02)


async def test_a_dead_backend_gets_no_seat_until_it_answers(rollouts: RolloutRig) -> None:
    seats: list[Any] = []

    async def seated(port: RolloutPort, given: Assigned) -> None:
        lease = await port.lease(given.rollout, given.attempt, Stage.RUN, 0)
        seats.append(lease.seat)
        await port.release(lease)
        await port.finished(given.rollout, given.attempt, RolloutResult(RolloutOutcome.COMPLETED))

    rollouts.check_seconds = 0.05
    worker = await rollouts.start_worker(seated)
    dead = f"http://127.0.0.1:{free_port()}"
    async with rollouts.client() as client, rollouts.client("cluster") as operator:
        await operator.backends.add("small", dead, name="b1", seats=8)
        await until(operator, {"b1"})
        assert "health" in (await unhealthy(operator))["b1"]
        async with local_api() as api:
            alive = f"http://127.0.0.1:{api.port}"
            await operator.backends.add("small", alive, name="b2", seats=8, dialect="vllm")
            for rollout in await client.rollouts.submit("t", "noop", ONE, llm="small", samples=3):
                await finished(client, rollout)
            assert [seat.backend for seat in seats] == ["b2"] * 3
            assert {seat.dialect for seat in seats} == {"vllm"}
            assert [seat.backend for seat in await worker.port.backends("small")] == ["b2"]

            await operator.backends.add("small", alive, name="b1", seats=8)
            await until(operator, set())
        await until(operator, {"b1", "b2"})
