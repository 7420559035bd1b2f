"""The in-memory server's rollouts and backends keep the promises of the real ones."""

from __future__ import annotations

import pytest

from tangram_client import AsyncClient
from tangram_client.testing import FakeServer, PlannedRollout
from tests.conformance.rollout_calls import SCENARIOS, Scenario

LONG = 100.0


class FakeService:
    """The in-memory server; its rollouts end when its clock is moved."""

    def __init__(self, server: FakeServer, client: AsyncClient) -> None:
        self.client = self.operator = client
        self._server = server
        self._seconds = LONG
        server.rollouts.plan = lambda view: PlannedRollout(self._seconds, float(view["sample"]))

    async def begun(self, rollout: str) -> None:
        assert (await self.client.rollouts.get(rollout)).state == "assigned"

    async def let_end(self) -> None:
        self._server.clock.advance(LONG)
        self._seconds = 0.0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_it_keeps_the_contract(
    server: FakeServer, aclient: AsyncClient, scenario: Scenario
) -> None:
    await scenario(FakeService(server, aclient))
