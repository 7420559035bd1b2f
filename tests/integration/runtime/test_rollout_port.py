"""The runtime's port of rollouts obeys the rules of ports (`tests.conformance.rollout_port`): a real Redis, logs and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from domain.ids import TrajectoryKey
from domain.rollouts import Rollout, RolloutOutcome, RolloutResult
from managers.cpu.environment.protocol import LivingEnvironment
from rollout.ports import Assigned, RolloutPort, Withdrawn
from tangram_client.aio import AsyncClient
from tests.conformance.rollout_port import RolloutPortConformance
from tests.conformance.sessions.host_environment import HostEnvironment
from tests.integration.runtime.rollout_rig import RolloutRig, finished
from tests.integration.runtime.test_sessions import SessionDriver

pytestmark = pytest.mark.slow


class OneEnvironment(SessionDriver):
    """A fake driver, whose trajectories share one environment with real sessions."""

    def _find(self, trajectory: TrajectoryKey) -> LivingEnvironment:
        return self.environment


class RuntimeRig:
    """A port of the runtime; a client of the gateway is the scheduler's side."""

    def __init__(self, client: AsyncClient, port: RolloutPort, workspace: Path) -> None:
        self.port = port
        self._client = client
        self._changes = port.assignments()
        self._workspace = workspace

    async def submit(self, request: Mapping[str, Any]) -> Assigned:
        data = dict(request.get("instance", {"id": "0"}))
        instances = [{"id": data.pop("id"), "data": data}]
        await self._client.rollouts.submit("t", "noop", instances)
        return await self._next(Assigned)

    async def assign_again(self, given: Assigned) -> Assigned:
        await self._client.rollouts.park(given.rollout.id)
        await self._next(Withdrawn)
        await self._client.rollouts.resume(given.rollout.id)
        return await self._next(Assigned)

    async def cancel(self, given: Assigned) -> Withdrawn:
        await self._client.rollouts.cancel(given.rollout.id)
        return await self._next(Withdrawn)

    async def result(self, rollout: Rollout) -> RolloutResult:
        found = await finished(self._client, rollout.id)
        return RolloutResult(RolloutOutcome(found.outcome or ""), found.reward)

    def action(self) -> dict[str, Any]:
        return {"kind": "noop", "cost": {"api:search": 1}}

    def session(self) -> dict[str, Any]:
        return {"cwd": str(self._workspace)}

    def session_action(self, session: str) -> dict[str, Any]:
        work = {"command": ["true"], "session": session}
        return {"kind": "exec", "cost": {"cpu": 1}, "exec": work}

    async def _next(self, kind: type[Any]) -> Any:
        change = await asyncio.wait_for(anext(self._changes), 120)
        assert isinstance(change, kind)
        return change


class TestRuntimePort(RolloutPortConformance):
    @pytest.fixture
    async def rig(self, rollouts: RolloutRig, tmp_path: Path) -> AsyncIterator[RuntimeRig]:
        (tmp_path / "env").mkdir()
        environment = HostEnvironment(tmp_path / "env")
        await environment.begin()
        rollouts.rig.driver = driver = OneEnvironment(environment)
        await rollouts.rig.start_node()
        try:
            port = await rollouts.start_port()
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(rollouts.client())
                yield RuntimeRig(client, port, environment.workspace)
        finally:
            for each in driver.host.all(environment.name):
                await driver.host.close(environment.name, each.state.name)
            await environment.end()
