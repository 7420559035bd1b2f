"""Replay of recordings: a player for each trajectory (think, act, think, act), and a session of many players."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tangram_client.aio import AsyncClient
from tangram_client.clock import Clock, SystemClock
from tangram_client.errors import InvalidRequestError, TangramClientError
from tangram_client.models import ActionView
from tangram_client.payloads import ActionPayload, exec_action
from tangram_client.replay.report import Report
from tangram_client.replay.tally import ReplayTally
from tangram_client.system_status import StatusSummary
from tangram_client.traces.recording import Recording
from tangram_client.traces.submissions import ReplayPlan, Submission

#: How often the server is asked for its running and queued actions.
WATCH_SECONDS = 1.0
#: A player rests after a failed trajectory, so that an endless replay survives a restart quietly.
REST_SECONDS = 1.0

Watch = Callable[[Submission, ActionView, float], None]


@dataclass(frozen=True)
class Session:
    """One replay: what to play, how, and how many at once."""

    recordings: Iterable[Recording]
    plan: ReplayPlan
    concurrency: int
    tally: ReplayTally
    clock: Clock
    #: Sees each finished action, with the seconds from its submission to its answer.
    watch: Watch | None = None

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
        player = TrajectoryReplay(client, self.plan, self.tally, self.clock, self.watch)
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


def payload_of(plan: ReplayPlan, submission: Submission) -> ActionPayload:
    """Return a submission as the request of a trainer."""
    memory_bytes = submission.memory_bytes
    return exec_action(
        plan.task,
        submission.command,
        cpu=submission.cores,
        trajectory=submission.trajectory,
        step=submission.number,
        family=submission.family,
        environment=None if memory_bytes is None else {"memory_bytes": memory_bytes},
        timeout_seconds=submission.timeout_seconds,
    )


class TrajectoryReplay:
    """Plays recordings one after the other; several players share one client and one tally."""

    def __init__(
        self,
        client: AsyncClient,
        plan: ReplayPlan,
        tally: ReplayTally,
        clock: Clock,
        watch: Watch | None = None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._tally = tally
        self._clock = clock
        self._watch = watch

    async def play(self, number: int, recording: Recording) -> None:
        """Play one recording. Raises nothing but cancellation; errors end this trajectory alone."""
        trajectory = self._plan.trajectory(number)
        try:
            for submission in self._plan.submissions(number, recording):
                await self._clock.asleep(submission.think_seconds)
                await self._act(submission)
            self._tally.trajectories_done += 1
        except TangramClientError as error:
            self._tally.fail(error)
        finally:
            # It cancels queued and ends running actions, also those whose id has not arrived yet.
            # Suppressed: what is left then (server gone) ends by the environment's time to live.
            with suppress(TangramClientError):
                await self._client.finish_trajectory(trajectory)

    async def _act(self, submission: Submission) -> None:
        self._tally.submitted += 1
        sent_at = self._clock.now()
        try:
            action = await self._client.run(payload_of(self._plan, submission))
        except InvalidRequestError as error:
            if error.problem.code != "never_fits":
                raise
            self._tally.refuse()
            return
        if self._watch is not None:
            self._watch(submission, action, self._clock.now() - sent_at)
        self._tally.finish(action, submission.burnt_seconds)
