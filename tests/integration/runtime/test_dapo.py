"""Efficient DAPO over HTTP, on a real loop with real logs: what is carried over is parked, and continues at its last turn."""

from __future__ import annotations

import asyncio
from typing import Any

from domain.rollouts import RolloutOutcome, RolloutResult, RolloutState, Stage
from rollout.ports import Assigned, Record, RolloutPort
from tangram_client.aio import AsyncClient
from tangram_client.dapo import AsyncDapo
from tests.integration.runtime.rollout_rig import RolloutRig


class Prompts:
    """A worker's work: the reward is the number of the sample; rollouts of ``slow`` wait until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        #: Attempts that began, by instance.
        self.begun: list[str] = []
        #: Rollouts of "slow" that began, however often.
        self.slow: set[str] = set()

    async def __call__(self, port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        self.begun.append(rollout.instance)
        number = len(await port.read(rollout))
        if rollout.instance == "slow":
            self.slow.add(rollout.id)
            if number == 1:
                await port.append(rollout, attempt, number, Record("call", {"turn": 0}))
                number += 1
            await self.let_go.wait()
        await port.release(await port.lease(rollout, attempt, Stage.RUN, 0))
        await port.append(rollout, attempt, number, Record("result", {"detail": {}}))
        failed = rollout.instance == "failing" and rollout.sample == 0
        outcome = RolloutOutcome.FAILED if failed else RolloutOutcome.COMPLETED
        reward = None if failed else float(rollout.sample)
        await port.finished(rollout, attempt, RolloutResult(outcome, reward))


def dapo(client: AsyncClient, *instances: str, **options: Any) -> AsyncDapo:
    given = [{"id": name} for name in instances]
    return AsyncDapo(client, "grpo", "noop", given, prompts=1, samples=2, epochs=1, **options)


async def test_unfinished_rollouts_are_parked_and_continue_in_the_next_iteration(
    rollouts: RolloutRig,
) -> None:
    work = Prompts()
    await rollouts.start_worker(work)
    async with rollouts.client() as client, asyncio.timeout(120):
        run = dapo(client, "slow", "fast", at_once=4)
        first = await run.batch()
        assert [group.instance["id"] for group in first] == ["fast"]
        held = await client.rollouts.list(task="grpo")
        assert [each.state for each in held] == [RolloutState.PARKED] * 2
        assert run.counts.carried == 2
        work.let_go.set()
        second = await run.batch()
        assert [group.instance["id"] for group in second] == ["slow"]
        assert await run.batch() == []
    assert second[0].rewards == [0.0, 1.0]
    kinds = [each.kind for each in rollouts.logs.read(second[0].rewarded[0].id)]
    assert kinds.count("call") == 1  # its turn was not made twice


async def test_terminated_rollouts_are_cancelled_and_release_the_stage(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Prompts())
    async with rollouts.client() as client, asyncio.timeout(120):
        run = dapo(client, "slow", "fast", "fast2", at_once=4, carry="terminate")
        assert [group.instance["id"] for group in await run.batch()] == ["fast"]
        assert run.counts.terminated >= 2
        while await client.rollouts.list(task="grpo"):
            await asyncio.sleep(0.01)
        [third] = await run.batch()
    assert third.instance["id"] == "fast2"


async def test_a_group_with_a_failed_rollout_is_repeated_over_http(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(Prompts())
    async with rollouts.client() as client, asyncio.timeout(120):
        run = dapo(client, "failing", "fast", errors="repeat", repeats=1)
        batches = [batch async for batch in run]
    # The repetition is sample 0 of its own submission, and fails as well: its repeats are used.
    assert [group.instance["id"] for batch in batches for group in batch] == ["fast"]
    assert (run.counts.repeats, run.counts.dropped) == (1, 1)


async def test_another_process_continues_a_run_that_was_killed_in_mid_iteration(
    rollouts: RolloutRig,
) -> None:
    work = Prompts()
    await rollouts.start_worker(work)
    async with rollouts.client() as client, asyncio.timeout(120):
        run = dapo(client, "fast", "slow", "fast2", at_once=2, run="r")
        [first] = await run.batch()
        stored = run.state()
        killed = asyncio.ensure_future(run.batch())
        while "slow" not in work.begun:
            await asyncio.sleep(0.01)
        killed.cancel()
        await asyncio.wait({killed})
    async with rollouts.client() as client, asyncio.timeout(120):
        again = dapo(client, "fast", "slow", "fast2", at_once=2, state=stored)

        async def rest() -> list[str]:
            return [group.instance["id"] async for batch in again for group in batch]

        continued = asyncio.ensure_future(rest())
        while not again._book.pending:  # ends that no gateway sees have no rows here
            await asyncio.sleep(0.01)
        work.let_go.set()
        found = await continued
    assert first.instance["id"] == "fast"
    assert sorted(found) == ["fast2", "slow"]
    assert len(work.slow) == 2
    assert again.counts.prompts == 3


async def test_rollouts_that_are_parked_together_give_their_slots_to_none_of_them(
    rollouts: RolloutRig,
) -> None:
    """One by one, each park frees a slot for the next rollout, which begins in vain."""
    work = Prompts()
    worker = await rollouts.start_worker(work, slots=2)
    async with rollouts.client() as client, asyncio.timeout(120):
        made = await client.rollouts.submit("grpo", "noop", [{"id": "slow"}], samples=8)
        while len(work.begun) < 2:
            await asyncio.sleep(0.01)
        await client.rollouts.park_many(made)
        held = await client.rollouts.list(task="grpo")
        while len(worker.withdrawn) < 2:
            await asyncio.sleep(0.01)
        assert [(each.state, each.attempt) for each in held] == [
            (RolloutState.PARKED, 1 if number < 2 else 0) for number in range(8)
        ]
        work.let_go.set()
        await client.rollouts.resume_many(made)
        ends = [await client.rollouts.wait(each) for each in made]
    assert [each.attempt for each in ends] == [2, 2, *[1] * 6]
    assert len(work.begun) == 10


async def test_a_token_of_all_projects_changes_rollouts_of_each_in_one_request(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Prompts())
    async with (
        rollouts.client("cluster") as operator,
        rollouts.client() as client,
        rollouts.client("stranger") as stranger,
        asyncio.timeout(120),
    ):
        one = await client.rollouts.submit("grpo", "noop", [{"id": "slow"}])
        made = one + await stranger.rollouts.submit("grpo", "noop", [{"id": "slow"}])
        await stranger.rollouts.park_many(one)  # not its own: nothing is changed
        assert (await client.rollouts.get(one[0])).state != RolloutState.PARKED
        await operator.rollouts.park_many(made)
        assert [(await operator.rollouts.get(each)).state for each in made] == [
            RolloutState.PARKED
        ] * 2
        await operator.rollouts.cancel_many(made)
        assert (await stranger.rollouts.wait(made[1])).outcome == "cancelled"
        found = await stranger.rollouts.park_many(made)
    assert [each.status for each in found] == [404, 200]
