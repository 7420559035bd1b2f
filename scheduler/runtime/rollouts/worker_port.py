"""Port of a rollout worker, as the runtime implements it (`rollout.ports.RolloutPort`), and what runs behind it.

Lifetimes: one port for one incarnation of a worker. `run` follows its duties until it is cancelled: it renews leases
and trajectories, and sends the reports of progress.

Rules
1. Every call that names an attempt checks the assignment first, as the journal has it here; the log checks it once more
   on disk.
2. A log is fenced before its rollout is given to the worker. One that cannot be fenced is not given: its attempt is
   over, or its folder is missing. A log that waits for its disk holds up no other rollout and no withdrawal.
3. Progress is sent at most once a second, the latest of each rollout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from domain.errors import CapacityError, NotFound, TangramError
from domain.rollout_events import (
    BackendJudged,
    ProgressReport,
    RolloutFinished,
    RolloutsProgressed,
)
from domain.rollouts import Rollout, RolloutOutcome, RolloutProgress, RolloutResult, Stage
from rollout.ports import (
    ActionEnd,
    Assigned,
    Channel,
    FleetAnswer,
    GenerationBegun,
    GenerationRequest,
    Record,
    Seat,
    SeatMoved,
    StageLease,
    Superseded,
    Withdrawn,
)
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.rollouts.assignments import Assignments, seat_of
from scheduler.runtime.rollouts.environments import RolloutEnvironments
from scheduler.runtime.rollouts.fleet_generations import FleetGenerations
from scheduler.runtime.rollouts.log_frames import RolloutLogDamaged
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.stage_leases import StageLeases
from scheduler.runtime.rollouts.worker_calls import WorkerCalls

log = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 1.0
FENCE_AGAIN_SECONDS: Final = 1.0
#: Threads for the logs: each waits for a disk.
LOG_THREADS: Final = 16

P = ParamSpec("P")
T = TypeVar("T")
Pause = Callable[[float], Awaitable[object]]


class WorkerPort:
    """What one rollout worker gets from the runtime."""

    def __init__(
        self,
        calls: WorkerCalls,
        assignments: Assignments,
        leases: StageLeases,
        environments: RolloutEnvironments,
        logs: RolloutLogs,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._calls = calls
        self._assignments = assignments
        self._leases = leases
        self._environments = environments
        self._generations = FleetGenerations(calls)
        self._logs = logs
        self._pause = pause
        self._threads = ThreadPoolExecutor(LOG_THREADS, "rollout-log")
        self._progress: dict[str, ProgressReport] = {}
        self._reported = asyncio.Event()
        #: Assignments whose logs are fenced, and withdrawals.
        self._ready: asyncio.Queue[Assigned | Withdrawn] = asyncio.Queue()

    async def run(self) -> None:
        """Do the duties of the port until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._take_changes())
                for duty in (self._leases.keep, self._environments.keep, self._send_progress):
                    group.create_task(duty())
        finally:
            await self._leases.close()
            self._threads.shutdown(wait=False)

    # Assignments

    async def assignments(self) -> AsyncIterator[Assigned | Withdrawn]:
        """Yield assignments and withdrawals, while `run` runs."""
        while True:
            yield await self._ready.get()

    async def finished(self, rollout: Rollout, attempt: int, result: RolloutResult) -> None:
        """Report the end; return when it is accepted. Raises Superseded, Unavailable."""
        self._assignments.check(rollout, attempt)
        accepted = self._assignments.end_of(rollout)
        event = RolloutFinished(
            rollout_id=rollout.id,
            worker=self._assignments.worker,
            attempt=attempt,
            result=result,
        )
        await self._calls.send(event)
        if not await asyncio.shield(accepted):
            raise Superseded(f"{rollout.id} was withdrawn before its end was accepted")
        self._drop(rollout.id)

    async def report(self, rollout: Rollout, attempt: int, progress: RolloutProgress) -> None:
        """Report progress: for pages, without any guarantee."""
        self._progress[rollout.id] = ProgressReport(rollout.id, attempt, progress)
        self._reported.set()

    # The log

    async def append(self, rollout: Rollout, attempt: int, number: int, record: Record) -> None:
        """Append record ``number``. Raises Superseded, Conflict, CapacityError."""
        self._assignments.check(rollout, attempt)
        await self._in_thread(self._logs.append, rollout.id, attempt, number, record)

    async def read(self, rollout: Rollout) -> Sequence[Record]:
        """Return the whole records. Raises Superseded, RolloutLogDamaged."""
        try:
            return await self._in_thread(self._logs.read, rollout.id)
        except NotFound as error:
            raise Superseded(str(error)) from None

    # Leases and backends

    async def lease(
        self,
        rollout: Rollout,
        attempt: int,
        stage: Stage,
        number: int,
        moved: SeatMoved | None = None,
    ) -> StageLease:
        """Wait for the ``number``-th lease of a stage. Raises Superseded, CapacityError."""
        self._assignments.check(rollout, attempt)
        return await self._leases.take(rollout, attempt, stage, number, moved)

    async def release(self, lease: StageLease) -> None:
        """Release a lease; may be repeated."""
        await self._leases.release(lease)

    async def backends(self, pool: str) -> Sequence[Seat]:
        """Return the usable backends of a pool."""
        known = self._assignments.pools.get(pool)
        if known is None:
            return ()
        return [seat_of(pool, each) for each in known.backends if each.usable]

    async def judge(self, pool: str, backend: str, unhealthy: str) -> None:
        """Report that a backend fails, or works again (empty). Raises Unavailable."""
        await self._calls.send(BackendJudged(pool=pool, backend=backend, unhealthy=unhealthy))

    # Fleets

    async def engine(self, fleet: str) -> str:
        """Return the engine of a fleet; empty: it is not declared. Raises Unavailable."""
        return await self._generations.engine(fleet)

    async def generate(
        self,
        rollout: Rollout,
        attempt: int,
        name: str,
        asked: GenerationRequest,
        begun: GenerationBegun,
    ) -> FleetAnswer:
        """Make a generation of the rollout's fleet in trajectory ``name``. Raises Superseded."""
        self._assignments.check(rollout, attempt)
        return await self._generations.generate(rollout, name, asked, begun)

    # Environments

    async def open(
        self, rollout: Rollout, name: str, environment: Mapping[str, Any] | None
    ) -> None:
        """Open trajectory ``name``; one that is open already is used. Raises Superseded, Conflict."""
        self._assignments.check(rollout)
        await self._environments.open(rollout, name, environment)

    async def fork(self, rollout: Rollout, source: str, names: Sequence[str]) -> None:
        """Fork a trajectory; forks that are open already are used. Raises Superseded, Conflict."""
        self._assignments.check(rollout)
        await self._environments.fork(rollout, source, names)

    async def finish(self, rollout: Rollout, name: str) -> None:
        """End a trajectory and remove its environment; may be repeated."""
        await self._environments.finish(rollout, name)

    async def submit(
        self, rollout: Rollout, attempt: int, key: str, members: Mapping[str, Any]
    ) -> str:
        """Submit an action once per ``key`` and return its id. Raises Superseded, InvalidRequest."""
        self._assignments.check(rollout, attempt)
        return await self._environments.submit(rollout, key, members)

    async def wait(self, rollout: Rollout, action_id: str) -> ActionEnd:
        """Return the action once it is finished."""
        return await self._environments.wait(rollout, action_id)

    async def cancel(self, rollout: Rollout, action_id: str, reason: str) -> None:
        """Cancel an action."""
        await self._environments.cancel(rollout, action_id, reason)

    async def put(self, rollout: Rollout, name: str, path: str, content: bytes) -> None:
        """Write a file into a trajectory's environment."""
        await self._environments.put(rollout, name, path, content)

    async def get(self, rollout: Rollout, name: str, path: str) -> bytes:
        """Read a file of a trajectory's environment. Raises NotFound."""
        return await self._environments.get(rollout, name, path)

    async def open_session(
        self, rollout: Rollout, name: str, session: str, members: Mapping[str, Any]
    ) -> None:
        """Open a session of a trajectory's environment; one that is open is used. Raises Superseded, Conflict."""
        self._assignments.check(rollout)
        await self._environments.open_session(rollout, name, session, members)

    async def agent_token(self, rollout: Rollout, name: str) -> str:
        """Return the token with which a trajectory calls its rollout's model over HTTP. Raises Unavailable."""
        return await self._calls.agent_token(rollout, name)

    async def connect(self, rollout: Rollout, name: str, port: int) -> Channel:
        """Connect to a server on a port of a trajectory's environment."""
        return await self._environments.connect(rollout, name, port)

    async def _take_changes(self) -> None:
        async with asyncio.TaskGroup() as fences:
            async for change in self._assignments.changes():
                if isinstance(change, Withdrawn):
                    self._drop(change.rollout_id)
                    self._ready.put_nowait(change)
                else:
                    fences.create_task(self._fence(change))

    async def _fence(self, given: Assigned) -> None:
        """Give an assignment to the worker once its log is fenced."""
        while self._is_held(given):
            try:
                if await self._fenced(given) and self._is_held(given):
                    self._environments.hold(given.rollout)
                    self._ready.put_nowait(given)
                    if given.attempt > 1:
                        await self._environments.take(given.rollout)
                return
            except CapacityError as error:
                log.warning("%s waits for its log: %s", given.rollout.id, error)
                await self._pause(FENCE_AGAIN_SECONDS)

    async def _fenced(self, given: Assigned) -> bool:
        """Fence the log of an assignment; False when it cannot be run. Raises CapacityError."""
        try:
            await self._in_thread(self._logs.fence, given.rollout.id, given.attempt)
        except (NotFound, RolloutLogDamaged, Superseded) as error:
            # A log of a later attempt is that of a restored backup, or the report is too late and changes nothing.
            await self._end_without_log(given, error)
            return False
        return True

    def _is_held(self, given: Assigned) -> bool:
        return self._assignments.held.get(given.rollout.id) == given.attempt

    async def _end_without_log(self, given: Assigned, error: Exception) -> None:
        """End a rollout whose log cannot be used: no worker can run it."""
        log.error("%s cannot be run: %s", given.rollout.id, error)
        result = RolloutResult(RolloutOutcome.INFRA_FAILED, reason=str(error))
        await self._calls.send(
            RolloutFinished(
                rollout_id=given.rollout.id,
                worker=self._assignments.worker,
                attempt=given.attempt,
                result=result,
            )
        )

    def _drop(self, rollout: str) -> None:
        self._leases.drop(rollout)
        self._environments.drop(rollout)
        self._progress.pop(rollout, None)

    async def _send_progress(self) -> None:
        while keep_running():
            await self._reported.wait()
            await self._pause(PROGRESS_SECONDS)
            self._reported.clear()
            reports, self._progress = tuple(self._progress.values()), {}
            if reports:
                worker = self._assignments.worker
                try:
                    await self._calls.send(RolloutsProgressed(worker=worker, reports=reports))
                except TangramError as error:
                    log.warning("progress is not reported: %s", error)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        def work() -> T:
            return call(*args, **options)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
