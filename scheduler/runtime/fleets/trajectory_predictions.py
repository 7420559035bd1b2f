"""TrajectoryPredictions: asks the predictors of all fleets between an answer and the next request, and sends what they say.

A fleet has a predictor from its first trajectory on. What was learnt is in Redis, written by the keeper: trajectories as of a position in the
journal (field `STEPS`), and a `PredictorMemory` for each fleet. The next keeper goes on from there. Where the journal no longer has what followed,
trajectories are found again as they come, and those that may have begun before are left alone (`trajectory_steps`).

Rules
1. While the journal is caught up with, what finished is learnt, and no question is asked; then one is asked about each trajectory in its tools.
2. Predictions are sent together when more than one is there; what Redis does not take is lost: the scheduler keeps the former value.
3. The memory of a predictor is written after a fit or `_MEMORY_EVERY` finished trajectories; what finished since is written with the steps. Both name
   journal entries, so no trajectory counts twice.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable
from typing import Final

import msgspec
import redis

from contract.fleet_reports import PredictorReport
from domain.codec import JournalEntry
from domain.fleet_events import TrajectoryPredicted
from placement.features import FinishedTrajectory
from scheduler.runtime.fleets.fleet_predictor import (
    FleetPredictor,
    PredictorMemory,
    PredictorTimes,
)
from scheduler.runtime.fleets.fleets_in_force import FleetsInForce
from scheduler.runtime.fleets.journal_follower import JournalFollower
from scheduler.runtime.fleets.keeper_lease import KeeperLease
from scheduler.runtime.fleets.keeper_reports import KeeperReports
from scheduler.runtime.fleets.trajectory_steps import (
    StepEnded,
    StoredSteps,
    TrajectoryOver,
    TrajectorySteps,
)
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.journal import START

log = logging.getLogger(__name__)

STEPS: Final = "steps"
_PREDICTOR: Final = "predictor:"
#: Finished trajectories between two writes of a predictor's memory.
_MEMORY_EVERY: Final = 256
#: What is larger is not written, and learnt again.
_MOST_BYTES: Final = 64 * 2**20
_REPORT_SECONDS: Final = 1.0
#: Predictions that wait to be sent.
_MOST_UNSENT: Final = 20_000


class StepsMemory(msgspec.Struct, frozen=True):
    """Trajectories as of an entry of the journal."""

    position: str
    seq: int
    at: float
    trajectories: list[StoredSteps]
    #: By fleet: what finished since the memory of its predictor, with its entry.
    finished: dict[str, list[tuple[int, FinishedTrajectory]]]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_steps: Final = msgspec.msgpack.Decoder(StepsMemory).decode
_decode_predictor: Final = msgspec.msgpack.Decoder(PredictorMemory).decode


class TrajectoryPredictions:
    """A reader of the journal (`journal_follower.ReadsJournal`) with the predictors of all fleets."""

    def __init__(
        self,
        fleets: FleetsInForce,
        lease: KeeperLease,
        reports: KeeperReports,
        hash_key: str,
        times: PredictorTimes | None = None,
        finished: Callable[[str, FinishedTrajectory], None] | None = None,
    ) -> None:
        """``finished``: gets each trajectory of a fleet that finished."""
        self._fleets, self._lease, self._reports = fleets, lease, reports
        self._hash_key = hash_key
        self._times = times or PredictorTimes()
        self._finished_too = finished
        self._steps = TrajectorySteps()
        self._position, self._at = START, 0.0
        self._live = False
        self._memories: dict[str, PredictorMemory] = {}
        #: Of fleets whose predictor has not begun.
        self._finished: dict[str, list[tuple[int, FinishedTrajectory]]] = {}
        self._predictors: dict[str, FleetPredictor] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._unsent: list[TrajectoryPredicted] = []
        self._some = asyncio.Event()
        #: By fleet: predictor, entry and fits of the memory that was written last.
        self._written: dict[str, tuple[str, int, int]] = {}

    async def recall(self, follower: JournalFollower) -> str:
        """Read what was stored; return the position from which to read on. Raises RedisError."""
        stored = await self._lease.values(self._hash_key)
        for name, value in stored.items():
            if name.startswith(_PREDICTOR):
                try:
                    found = _decode_predictor(zlib.decompress(value))
                except (zlib.error, msgspec.MsgspecError) as error:
                    log.warning("what was learnt as %s is learnt again: %s", name, error)
                else:
                    self._memories[name.removeprefix(_PREDICTOR)] = found
        if STEPS not in stored:
            return START
        try:
            steps = _decode_steps(zlib.decompress(stored[STEPS]))
        except (zlib.error, msgspec.MsgspecError) as error:
            log.warning("the steps of trajectories are read again: %s", error)
            return START
        self._finished = steps.finished
        if not await follower.starts_behind(steps.position):
            return START  # what followed is trimmed
        self._steps.recall(steps.trajectories, steps.at)
        self._position, self._at = steps.position, steps.at
        return steps.position

    async def run(self) -> None:
        """Send, report and remember until cancelled. Raises Fenced."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for part in (self._send(), self._look_after(), self._remember()):
                group.create_task(part)

    # --- journal ------------------------------------------------------------------------------

    def read(self, stream_id: str, entry: JournalEntry) -> None:
        """Take one entry."""
        self._steps.reduce(entry)
        self._position, self._at = stream_id, entry.at
        self._follow_facts()

    def skipped(self) -> None:
        """Forget all trajectories: steps may be missing."""
        self._steps.skipped()
        self._follow_facts()

    def caught_up(self) -> None:
        """Ask about each trajectory that is in its tools now."""
        self._live = True
        for each in self._steps.awaiting():
            if (predictor := self._of(each.fleet)) is not None:
                predictor.step_ended(each.trajectory, each.features)

    def _follow_facts(self) -> None:
        for fact in self._steps.fetch():
            if isinstance(fact, TrajectoryOver) and fact.finished and self._finished_too:
                self._finished_too(fact.fleet, fact.finished)
            predictor = self._of(fact.fleet)
            if predictor is None:
                continue
            if isinstance(fact, TrajectoryOver):
                predictor.over(fact.trajectory, fact.finished, self._steps.seq)
            elif not self._live:
                continue
            elif isinstance(fact, StepEnded):
                predictor.step_ended(fact.trajectory, fact.features)
            else:
                predictor.went_on(fact.trajectory)

    def _of(self, fleet: str) -> FleetPredictor | None:
        """Return the predictor of a fleet, which begins with its first trajectory; None: it is not declared."""
        declared = self._fleets.fleets.get(fleet)
        if declared is None or self._group is None:
            return None
        found = self._predictors.get(fleet)
        if found is not None and found.name == declared.predictor:
            return found
        memory = self._memories.pop(fleet, None) if found is None else found.memory()
        self._end(fleet)
        made = FleetPredictor(fleet, declared.predictor, self._queue, self._times, memory)
        for seq, finished in self._finished.pop(fleet, ()):
            made.learn(finished, seq)
        self._predictors[fleet] = made
        self._running[fleet] = self._group.create_task(made.run())
        return made

    def _end(self, fleet: str) -> None:
        self._predictors.pop(fleet, None)
        task = self._running.pop(fleet, None)
        if task is not None:
            task.cancel()

    # --- what is sent and stored --------------------------------------------------------------

    def _queue(self, event: TrajectoryPredicted) -> None:
        if len(self._unsent) < _MOST_UNSENT:
            self._unsent.append(event)
        self._some.set()

    async def _send(self) -> None:
        while keep_running():
            await self._some.wait()
            self._some.clear()
            events, self._unsent = self._unsent, []
            try:
                await self._lease.append(events)
            except redis.RedisError as error:
                log.warning("%d predictions are lost: %s", len(events), error)

    async def _look_after(self) -> None:
        """Report what became of predictions, and end the predictors of fleets that are gone."""
        while keep_running():
            await asyncio.sleep(_REPORT_SECONDS)
            for name in [each for each in self._predictors if each not in self._fleets.fleets]:
                self._end(name)
            for name, each in self._predictors.items():
                report = PredictorReport(
                    each.name, each.sent, each.unused(), each.problem, each.note, each.learnt, each.fits,
                    each.fitted_at, each.starts,
                )  # fmt: skip
                self._reports.predicted(name, report)

    async def _remember(self) -> None:
        while keep_running():
            await asyncio.sleep(self._times.remember_seconds)
            if not self._live:
                continue
            try:
                await self.store()
            except redis.RedisError as error:
                log.warning("what was learnt of trajectories is not stored: %s", error)

    async def store(self) -> None:
        """Store what was learnt. Raises Fenced, RedisError."""
        for each in list(self._predictors.values()):
            if len(each.since()) >= _MEMORY_EVERY:
                await each.remember()
        # All of one moment: what finished since is that which no memory has.
        memories = {
            name: each.memory()
            for name, each in self._predictors.items()
            if self._written.get(name) != (each.name, each.memory_seq, each.fits)
        }
        finished = {name: each.since() for name, each in self._predictors.items()}
        written = {
            n: (each.name, each.memory_seq, each.fits) for n, each in self._predictors.items()
        }
        steps = StepsMemory(
            self._position, self._steps.seq, self._at, self._steps.remember(),
            {**self._finished, **finished},
        )  # fmt: skip
        for name, memory in memories.items():
            await self._write(_PREDICTOR + name, memory)
            self._written[name] = written[name]
        await self._write(STEPS, steps)
        for field in await self._lease.fields(self._hash_key):
            if field != STEPS and field.removeprefix(_PREDICTOR) not in self._fleets.fleets:
                await self._lease.forget(self._hash_key, field)

    async def _write(self, field: str, value: msgspec.Struct) -> None:
        data = _encode(value)
        if len(data) > _MOST_BYTES:
            log.warning(
                "%s has %d bytes and is not stored: it would be learnt again", field, len(data)
            )
            return
        packed = await asyncio.to_thread(zlib.compress, data, 1)
        await self._lease.put(self._hash_key, field, packed)
