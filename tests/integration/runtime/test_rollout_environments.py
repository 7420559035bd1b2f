"""Environments of rollouts: opened, forked and written by the port's native calls, once however often they are made."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from domain.errors import NotFound
from domain.rollouts import RolloutOutcome, RolloutResult
from rollout.ports import Assigned, Superseded
from scheduler.runtime.rollouts.worker_port import WorkerPort
from tangram_client.aio import AsyncClient
from tests.integration.runtime.rollout_rig import RolloutRig, finished

COMMAND = {"kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}


async def assigned(client: AsyncClient, port: WorkerPort, task: str = "t") -> Assigned:
    """Submit a rollout and take it."""
    await client.rollouts.submit(task, "noop", [{"id": "a"}])
    change = await asyncio.wait_for(anext(port.assignments()), 120)
    assert isinstance(change, Assigned)
    return change


async def test_run_and_eval_work_in_forks_of_what_init_prepared(rollouts: RolloutRig) -> None:
    await rollouts.rig.start_node()
    port = await rollouts.start_port()
    async with rollouts.client() as client:
        given = await assigned(client, port)
        rollout, attempt, name = given.rollout, given.attempt, given.rollout.id
        await port.open(rollout, name, {"memory_bytes": 1024})
        action = await port.submit(rollout, attempt, "init/0", {**COMMAND, "trajectory": name})
        end = await port.wait(rollout, action)
        await port.put(rollout, name, "repo/a.py", b"bug")
        forks = [f"{name}-run", f"{name}-eval"]
        for _ in range(2):  # a successor repeats it
            await port.fork(rollout, name, forks)
        await port.put(rollout, forks[0], "repo/a.py", b"fix")
        found = [await port.get(rollout, each, "repo/a.py") for each in (name, *forks)]
        with pytest.raises(NotFound):
            await port.get(rollout, name, "missing")
        view = await client.get(action)
        await port.finished(rollout, attempt, RolloutResult(RolloutOutcome.COMPLETED, 1.0))
        # The core closes what is open, whatever the worker does.
        async with asyncio.timeout(120):
            while rollouts.rig.driver.storage.environments & {
                f"default/{each}" for each in (name, *forks)
            }:
                await asyncio.sleep(0.01)
        with pytest.raises(Superseded):
            await port.open(rollout, name, None)
    assert (end.outcome, view.trajectory, view.task) == ("completed", name, "t")
    assert found == [b"bug", b"fix", b"bug"]


async def test_a_worker_reaches_no_project_but_that_of_its_rollout(rollouts: RolloutRig) -> None:
    """Members of an action come from a handler, which a model may have influenced."""
    await rollouts.rig.start_node()
    port = await rollouts.start_port()
    async with rollouts.client() as client, rollouts.client("stranger") as stranger:
        given = await assigned(client, port)
        theirs = await stranger.open_trajectory("theirs", task="t")
        assert theirs is not None
        members = {**COMMAND, "trajectory": "theirs", "project": "other"}
        action = await port.submit(given.rollout, given.attempt, "a", members)
        assert (await port.wait(given.rollout, action)).outcome == "completed"
        assert (await client.get(action)).project == "default"
        foreign = (await stranger.submit({**COMMAND, "task": "t", "trajectory": "theirs"})).id
        with pytest.raises(NotFound):
            await port.wait(given.rollout, foreign)
        with pytest.raises(NotFound):
            await port.cancel(given.rollout, foreign, "not theirs")
        await client.rollouts.cancel(given.rollout.id)
        assert (await finished(client, given.rollout.id)).outcome == "cancelled"


async def test_the_trajectories_of_a_rollout_are_kept_open(rollouts: RolloutRig) -> None:
    """A rollout may wait for hours for a lease of its next stage."""
    await rollouts.rig.start_node()
    port = await rollouts.start_port()
    async with rollouts.client() as client:
        given = await assigned(client, port)
        await port.open(given.rollout, given.rollout.id, {"ttl_seconds": 60})
        after = datetime.now(UTC) + timedelta(hours=1)
        async with asyncio.timeout(120):
            while await _ends(rollouts, given) < after:
                await asyncio.sleep(0.01)


async def _ends(rollouts: RolloutRig, given: Assigned) -> datetime:
    context = rollouts.workers[0].context
    found = await context.queries.trajectory("default", given.rollout.id)
    return datetime.fromisoformat(str(found.expires_at))
