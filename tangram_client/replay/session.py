"""Plays many recordings at once, and watches the server meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tangram_client.aio import AsyncClient
from tangram_client.clock import Clock, SystemClock
from tangram_client.errors import TangramClientError
from tangram_client.replay.player import ReplayPlan, TrajectoryReplay
from tangram_client.replay.report import Report
from tangram_client.replay.tally import ReplayTally
from tangram_client.system_status import SystemStatus
from tangram_client.traces.recording import Recording

#: How often the server is asked for its running and queued actions.
WATCH_SECONDS = 1.0
#: A player rests after a failed trajectory, so that an endless replay survives a restart quietly.
REST_SECONDS = 1.0


@dataclass(frozen=True)
class Session:
    """One replay: what to play, how, and how many at once."""

    recordings: Iterable[Recording]
    plan: ReplayPlan
    concurrency: int
    tally: ReplayTally
    clock: Clock

    async def run(self, client: AsyncClient) -> Report:
        """Play everything; a stop (cancellation) leaves nothing behind and still gives a report."""
        cores = SystemStatus.of(await client.status()).cores_total
        began = self.clock.now()
        source = iter(enumerate(self.recordings))
        async with _watching(client, self.tally):
            players = [
                asyncio.create_task(self._keep_playing(client, source))
                for _ in range(self.concurrency)
            ]
            stopped = await _all_of(players)
        wall = self.clock.now() - began
        return Report.of(self.tally, wall_seconds=wall, cores=cores, stopped=stopped)

    async def _keep_playing(
        self, client: AsyncClient, source: Iterator[tuple[int, Recording]]
    ) -> None:
        player = TrajectoryReplay(client, self.plan, self.tally, self.clock)
        for number, recording in source:
            failed = self.tally.failures.total()
            await player.play(number, recording)
            if self.tally.failures.total() > failed:
                await self.clock.asleep(REST_SECONDS)


async def _all_of(tasks: list[asyncio.Task[None]]) -> bool:
    """Wait for all. Return True when stopped meanwhile, after each has said farewell."""
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        return True
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return False


@asynccontextmanager
async def _watching(client: AsyncClient, tally: ReplayTally) -> AsyncIterator[None]:
    task = asyncio.create_task(_watch(client, tally))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _watch(client: AsyncClient, tally: ReplayTally) -> None:
    clock = SystemClock()
    while True:
        try:
            standing = SystemStatus.of(await client.status())
            tally.running, tally.queued = standing.running, standing.queued
        except TangramClientError:
            tally.running = tally.queued = None
        await clock.asleep(WATCH_SECONDS)
