"""A driver that raises breaks its promise; the node keeps its own all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from domain.action import Outcome
from domain.errors import Unavailable
from domain.ids import TrajectoryKey
from domain.ports import RunOrder
from managers.cpu.fake import Play, read_command
from scheduler.runtime.node import environment_removals, worker
from tests.integration.runtime.rig import Rig

TRUE = {"task": "t", "kind": "exec", "cost": {"cpu": 4}, "exec": {"command": ["true"]}}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.005)


async def test_an_action_whose_driver_raises_ends_and_gives_its_cores_back(rig: Rig) -> None:
    def broken(order: RunOrder) -> Play:
        raise ZeroDivisionError("a defect of the driver")

    script, rig.driver.script = rig.driver.script, broken
    async with rig.client() as client:
        failed = (await client.post("/actions?wait=60", json=TRUE)).json()
        rig.driver.script = script
        then = (await client.post("/actions?wait=60", json=TRUE)).json()

    assert failed["outcome"] == "infra_failed"
    assert "ZeroDivisionError" in failed["detail"]
    assert failed["reward"] is None
    assert then["outcome"] == "completed"


async def test_an_environment_that_cannot_be_removed_yet_is_removed_later(
    rig: Rig, monkeypatch: Any
) -> None:
    """1. A trajectory ends while the engine of its containers restarts. 2. The engine is back."""
    monkeypatch.setattr(environment_removals, "REMOVE_AGAIN_SECONDS", 0.01)
    remove, failures = rig.driver.remove_environment, [Unavailable("no engine"), OSError("busy")]

    async def at_the_third_time(trajectory: TrajectoryKey) -> None:
        if failures:
            raise failures.pop()
        await remove(trajectory)

    monkeypatch.setattr(rig.driver, "remove_environment", at_the_third_time)
    assert rig.loop is not None
    state = rig.loop.loop.term.machine.state
    async with rig.client() as client:
        await client.post("/actions?wait=60", json={**TRUE, "trajectory": "a"})
        await client.post("/trajectories/a/finish")
        await until(lambda: not state.trajectories)

    assert not failures


async def test_an_attempt_that_was_reported_without_a_start_is_not_run_by_the_next_worker(
    rig: Rig, monkeypatch: Any
) -> None:
    """1. The driver starts none of the attempts. 2. The worker is killed before its position is stored."""
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 60.0)
    ordered: list[str] = []

    def first_unstarted(order: RunOrder) -> Play:
        ordered.append(order.mark)
        if order.id != ordered[0].partition("#")[0]:
            return read_command(order)
        return Play(
            outcome=Outcome.INFRA_FAILED, detail="no descriptor is left", never_started=True
        )

    rig.driver.script = first_unstarted
    async with rig.client() as client:
        failed = (await client.post("/actions?wait=60", json=TRUE)).json()
        attempts = list(ordered)
        await rig.crash_node()
        await rig.start_node()
        then = (await client.post("/actions?wait=60", json=TRUE)).json()

    assert failed["outcome"] == "infra_failed"
    assert then["outcome"] == "completed"
    assert len(attempts) > 1
    assert ordered == [*attempts, f"{then['id']}#1"]
