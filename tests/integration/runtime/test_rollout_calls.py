"""The calls of rollouts and backends of a real Tangram keep what the client's in-memory server keeps too."""

from __future__ import annotations

import asyncio

import pytest

from domain.rollouts import RolloutOutcome, RolloutResult
from rollout.ports import Assigned, Record, RolloutPort
from tangram_client.aio import AsyncClient
from tests.conformance.rollout_calls import SCENARIOS, Scenario
from tests.integration.runtime.rollout_rig import RolloutRig


class RealService:
    """A rig whose worker holds rollouts until the suite lets them end."""

    def __init__(self, client: AsyncClient, operator: AsyncClient) -> None:
        self.client, self.operator = client, operator
        self._let_go = asyncio.Event()
        self._begun: set[str] = set()

    async def work(self, port: RolloutPort, given: Assigned) -> None:
        """Run a rollout."""
        rollout, attempt = given.rollout, given.attempt
        self._begun.add(rollout.id)
        await self._let_go.wait()
        number = len(await port.read(rollout))
        await port.append(rollout, attempt, number, Record("result", {"detail": {}}))
        result = RolloutResult(RolloutOutcome.COMPLETED, float(rollout.sample))
        await port.finished(rollout, attempt, result)

    async def begun(self, rollout: str) -> None:
        while rollout not in self._begun:
            await asyncio.sleep(0.005)

    async def let_end(self) -> None:
        self._let_go.set()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_it_keeps_the_contract(rollouts: RolloutRig, scenario: Scenario) -> None:
    async with rollouts.client() as client, rollouts.client("cluster") as operator:
        service = RealService(client, operator)
        await rollouts.start_worker(service.work)
        await asyncio.wait_for(scenario(service), 120)
