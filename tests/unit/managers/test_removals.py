"""A removal and the requests that use the same environment are in turn."""

from __future__ import annotations

import asyncio

from domain.ids import TrajectoryKey
from managers.common.removals import Entry, Removals

FIRST, SECOND = TrajectoryKey("lab/trj-1"), TrajectoryKey("lab/trj-2")


async def ticks() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


class Rig:
    """Removals whose work the test ends, and a record of what took place."""

    def __init__(self) -> None:
        self.removals = Removals()
        self.said: list[str] = []
        self.go = asyncio.Event()

    async def remove(self, trajectory: TrajectoryKey = FIRST) -> None:
        async with self.removals.removing(trajectory, self.stop):
            self.said.append("removing")
            await self.go.wait()
            self.said.append("removed")

    async def stop(self) -> None:
        self.said.append("stop")

    async def use(self, trajectory: TrajectoryKey | None = FIRST) -> Entry:
        entry = await self.removals.enter(trajectory)
        self.said.append("entered")
        return entry


async def test_a_request_waits_for_the_end_of_a_removal() -> None:
    rig = Rig()
    removal = asyncio.create_task(rig.remove())
    await ticks()
    request = asyncio.create_task(rig.use())
    await ticks()
    assert rig.said == ["stop", "removing"]
    rig.go.set()
    (await request).leave()
    await removal
    assert rig.said == ["stop", "removing", "removed", "entered"]


async def test_a_removal_waits_for_requests_that_came_before_and_stops_what_they_started() -> None:
    rig = Rig()
    one, other = await rig.use(), await rig.use()
    rig.go.set()
    removal = asyncio.create_task(rig.remove())
    await ticks()
    one.leave()
    one.leave()  # a second time changes nothing
    await ticks()
    assert rig.said == ["entered", "entered", "stop"]
    other.leave()
    await removal
    assert rig.said[2:] == ["stop", "stop", "removing", "removed"]


async def test_removals_of_one_trajectory_are_in_turn() -> None:
    rig = Rig()
    both = [asyncio.create_task(rig.remove()) for _ in range(2)]
    await ticks()
    assert rig.said == ["stop", "removing"]
    rig.go.set()
    await asyncio.gather(*both)
    assert rig.said == ["stop", "removing", "removed"] * 2


async def test_other_trajectories_and_actions_without_one_do_not_wait() -> None:
    rig = Rig()
    removal = asyncio.create_task(rig.remove())
    await ticks()
    (await rig.use(SECOND)).leave()
    (await rig.use(None)).leave()
    rig.go.set()
    await removal


async def test_a_removal_that_fails_holds_nothing_back() -> None:
    rig = Rig()

    async def fail() -> None:
        async with rig.removals.removing(FIRST, rig.stop):
            raise OSError("the engine is away")

    failed = (await asyncio.gather(fail(), return_exceptions=True))[0]
    assert isinstance(failed, OSError)
    (await rig.use()).leave()


async def test_a_removal_that_is_cancelled_while_it_waits_holds_nothing_back() -> None:
    rig = Rig()
    entry = await rig.use()
    removal = asyncio.create_task(rig.remove())
    await ticks()
    removal.cancel()
    entry.leave()
    await asyncio.wait([removal])
    async with rig.removals.using(FIRST):
        assert rig.said == ["entered", "stop"]
