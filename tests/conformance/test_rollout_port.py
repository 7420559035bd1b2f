"""The fake port of rollouts obeys the rules of ports; that of the runtime has its test in tests/integration/runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from domain.rollouts import Rollout, RolloutId, RolloutResult
from rollout.ports import Assigned, Withdrawn
from rollout.testing.fake_port import FakePort
from tests.conformance.rollout_port import RolloutPortConformance


class FakeRig:
    """A fake port, whose messages the tests take."""

    def __init__(self) -> None:
        self.port = FakePort(leases=2)
        self._changes = self.port.assignments()
        self._names = 0

    async def submit(self, request: Mapping[str, Any]) -> Assigned:
        self._names += 1
        rollout = Rollout(
            id=RolloutId(f"rol_{self._names}"), project="default", task="t", handler="noop"
        )
        self.port.submit_rollout(rollout, **request)
        return await self._next(Assigned)

    async def assign_again(self, given: Assigned) -> Assigned:
        self.port.assign(given.rollout.id)
        return await self._next(Assigned)

    async def cancel(self, given: Assigned) -> Withdrawn:
        self.port.cancel_rollout(given.rollout.id)
        return await self._next(Withdrawn)

    async def result(self, rollout: Rollout) -> RolloutResult:
        return await self.port.result(rollout.id)

    def action(self) -> dict[str, Any]:
        return {"kind": "exec", "exec": {"command": ["true"]}}

    def session(self) -> dict[str, Any]:
        return {}

    def session_action(self, session: str) -> dict[str, Any]:
        return {"kind": "exec", "exec": {"command": ["true"], "session": session}}

    async def _next(self, kind: type[Any]) -> Any:
        change = await anext(self._changes)
        assert isinstance(change, kind)
        return change


class TestFakePort(RolloutPortConformance):
    @pytest.fixture
    async def rig(self) -> FakeRig:
        return FakeRig()
