"""Replay of recordings: a player for each trajectory (think, act, think, act), and a session of many players."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tangram_client.aio import AsyncClient
from tangram_client.clock import Clock, SystemClock
from tangram_client.errors import InvalidRequestError, TangramClientError
from tangram_client.payloads import ActionPayload, exec_action
from tangram_client.replay.burn import burn_command, burnt_seconds
from tangram_client.replay.report import Report
from tangram_client.replay.tally import ReplayTally
from tangram_client.system_status import StatusSummary
from tangram_client.traces.recording import RecordedStep, Recording

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
        cores = StatusSummary.of(await client.status()).cores_total
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
            standing = StatusSummary.of(await client.status())
            tally.running, tally.queued = standing.running, standing.queued
        except TangramClientError:
            tally.running = tally.queued = None
        await clock.asleep(WATCH_SECONDS)


#: A step may take this much longer than recorded before it is ended.
TIMEOUT_FACTOR = 10.0
TIMEOUT_LEAST_SECONDS = 60.0


@dataclass(frozen=True)
class ReplayPlan:
    """Options of playing a recording."""

    task: str
    #: Makes the names of this replay's trajectories its own.
    run: str
    #: Think times and durations are divided by it.
    speed: float
    #: Cores to ask for, by the cores that were recorded as busy.
    cost: Callable[[float], float]
    #: Reserve each trajectory's recorded peak memory on its node.
    reserve_memory: bool = False

    def payload(
        self, trajectory: str, number: int, step: RecordedStep, memory_bytes: int
    ) -> ActionPayload:
        """Return a step as the action that a trainer would submit."""
        seconds = step.duration_seconds / self.speed
        environment = {"memory_bytes": memory_bytes} if self.reserve_memory else None
        return exec_action(
            self.task,
            burn_command(seconds, step.cpu_cores),
            cpu=self.cost(step.cpu_cores),
            trajectory=trajectory,
            step=number,
            family=step.family or None,
            environment=environment,
            timeout_seconds=max(TIMEOUT_LEAST_SECONDS, TIMEOUT_FACTOR * seconds),
        )


class TrajectoryReplay:
    """Plays recordings one after the other; several players share one client and one tally."""

    def __init__(
        self, client: AsyncClient, plan: ReplayPlan, tally: ReplayTally, clock: Clock
    ) -> None:
        self._client = client
        self._plan = plan
        self._tally = tally
        self._clock = clock

    async def play(self, number: int, recording: Recording) -> None:
        """Play one recording. Raises nothing but cancellation; errors end this trajectory alone."""
        trajectory = f"{self._plan.run}-{number:05d}"
        try:
            for index, step in enumerate(recording.steps):
                await self._clock.asleep(step.think_seconds / self._plan.speed)
                payload = self._plan.payload(trajectory, index, step, recording.memory_bytes)
                await self._act(payload, step)
            self._tally.trajectories_done += 1
        except TangramClientError as error:
            self._tally.fail(error)
        finally:
            # It cancels queued and ends running actions, also those whose id has not arrived yet.
            # Suppressed: what is left then (server gone) ends by the environment's time to live.
            with suppress(TangramClientError):
                await self._client.finish_trajectory(trajectory)

    async def _act(self, payload: ActionPayload, step: RecordedStep) -> None:
        self._tally.submitted += 1
        try:
            action = await self._client.run(payload)
        except InvalidRequestError as error:
            if error.problem.code != "never_fits":
                raise
            self._tally.refuse()
            return
        seconds = step.duration_seconds / self._plan.speed
        self._tally.finish(action, burnt_seconds(seconds, step.cpu_cores))
