"""Logs of rollouts in a running system: full, missing, of a later attempt, and swept."""

from __future__ import annotations

import pytest

from rollout.ports import Record
from scheduler.runtime.rollouts.log_store import LogLimits
from scheduler.runtime.rollouts.log_sweeper import LogSweeper
from tangram_client.errors import Busy
from tests.integration.runtime.rollout_rig import RolloutRig, finished, noop

ONE = [{"id": "django-1"}]


@pytest.mark.parametrize("log", ["missing", "of a later attempt"])
async def test_a_rollout_whose_log_cannot_be_used_ends(rollouts: RolloutRig, log: str) -> None:
    """As after the restore of a backup: no worker could ever run it."""
    async with rollouts.client() as client:
        [rollout] = await client.rollouts.submit("t", "noop", ONE)
        if log == "missing":
            rollouts.logs.remove(rollout)
        else:
            rollouts.logs.fence(rollout, 7)
        await rollouts.start_worker(noop)
        found = await finished(client, rollout)
    assert (found.outcome, found.reward) == ("infra_failed", None)
    assert ("has no log" if log == "missing" else "is in attempt 7") in found.reason


async def test_logs_of_rollouts_that_are_over_are_swept(rollouts: RolloutRig) -> None:
    """One that waits keeps its log however long; one that no rollout has is deleted."""
    await rollouts.start_worker(noop, handlers=("noop", "later"), slots=1)
    async with rollouts.client() as client:
        [over] = await client.rollouts.submit("t", "noop", ONE)
        await finished(client, over)
        await rollouts.stop_worker(0)
        [waits] = await client.rollouts.submit("t", "later", ONE)
        orphan = f"rol_{9:028x}"
        rollouts.logs.create([(orphan, Record("request", {}))])
        async with rollouts.rig.context() as context:
            young = LogSweeper(rollouts.logs, context.queries, 3600.0)
            assert await young.sweep() == 0
            sweeper = LogSweeper(rollouts.logs, context.queries, 0.0)
            assert await sweeper.sweep() == 2
        await client.rollouts.cancel(waits)
    assert [path.name for path in (rollouts.folder / "rollouts").iterdir()] == [waits]


async def test_rollouts_are_refused_while_the_logs_are_full(rollouts: RolloutRig) -> None:
    rollouts.rig.rollout_logs = type(rollouts.logs)(
        rollouts.folder / "rollouts", LogLimits(100, 100)
    )
    async with rollouts.client() as client:
        await client.rollouts.submit("t", "noop", ONE)
        rollouts.rig.rollout_logs._measured_at = float("-inf")
        client._retry = type(client._retry)(attempts=1)
        with pytest.raises(Busy, match="TANGRAM_ROLLOUT_LOG_BYTES"):
            await client.rollouts.submit("t", "noop", ONE)
