"""FleetPredictor: the predictor of one fleet, in a process of its own, and what stands in for it.

Theory of operation. The process is asked after each step and fed each finished trajectory; answers go to a `GuardedPredictor`, which decides what is
used. A prediction that has not arrived after `PredictorTimes.patience_seconds` is stood in for by history, unless the predictor has answered about
the trajectory before: that value stays. Fits run in a further process, which gets the predictor's memory, so neither a fit nor its crash delays an answer.

Rules
1. Nothing here waits for a predictor, and nothing that it does raises: it is counted by reason.
2. A process that leaves a message unanswered for `PredictorTimes.hang_seconds`, or ends, is replaced, after growing pauses. Its successor gets the memory,
   what was learnt since, and the latest fit.
3. What is kept to start it again is bounded: beyond `MOST_SINCE` trajectories, the oldest is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from domain.fleet_events import TrajectoryPredicted
from domain.ids import TrajectoryKey
from placement.facts import Prediction
from placement.features import Features, FinishedTrajectory
from placement.history import History
from placement.predictions import DIED, HUNG, LATE, RAISED, GuardedPredictor
from scheduler.runtime.fleets.keeper_reports import wall_clock
from scheduler.runtime.fleets.predictor_messages import (
    AskMemory,
    AskPrediction,
    FitPredictor,
    FittedPredictor,
    FromPredictor,
    ObserveTrajectory,
    PredictorAnswer,
    PredictorFailed,
    PredictorNote,
    RecallMemory,
    Remembered,
    ToPredictor,
    UseFit,
)
from scheduler.runtime.fleets.predictor_process import PredictorEnded, PredictorProcess
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

#: Finished trajectories that are kept beside the memory of a predictor.
MOST_SINCE: Final = 2000
#: Questions that wait for an answer; a further one is not asked.
_MOST_ASKED: Final = 4096
_MOST_PAUSE_SECONDS: Final = 300.0
#: A process that ran for so long has started well.
_WELL_SECONDS: Final = 60.0


class PredictorTimes(msgspec.Struct, frozen=True):
    """When a predictor is stood in for, replaced, fitted and remembered."""

    #: After which history stands in for an answer.
    patience_seconds: float = 0.25
    #: After which a process without an answer is replaced.
    hang_seconds: float = 30.0
    restart_seconds: float = 1.0
    #: Finished trajectories between two fits, and the least pause between them.
    fit_every: int = 32
    fit_pause_seconds: float = 20.0
    #: Longest fit.
    fit_seconds: float = 300.0
    #: Between two writes of what was learnt.
    remember_seconds: float = 30.0


class PredictorMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a predictor has learnt."""

    predictor: str
    #: Journal entry up to which ``memory`` has what finished, and that of ``history``, which stands in.
    seq: int
    history_seq: int
    history: bytes
    memory: bytes = b""
    fitted: bytes = b""
    #: Trajectories that ``memory`` has.
    learnt: int = 0


class _Elsewhere(History):
    """Stands for a predictor in another process, whose answers arrive by themselves."""

    def __init__(self, name: str) -> None:
        self.name = name

    def observe(self, finished: FinishedTrajectory, texts: object = ()) -> None:
        """Do nothing: the process is fed by messages."""


class FleetPredictor:
    """Predictions for one fleet. ``send``: gets what the scheduler is to know."""

    def __init__(
        self,
        fleet: str,
        name: str,
        send: Callable[[TrajectoryPredicted], None],
        times: PredictorTimes | None = None,
        memory: PredictorMemory | None = None,
    ) -> None:
        self.fleet, self.name = fleet, name
        self._send = send
        self.times = times or PredictorTimes()
        self._history = History()
        self._guarded = GuardedPredictor(_Elsewhere(name), self._history)
        self._process: PredictorProcess | None = None
        #: When the questions were asked that have no answer, oldest first.
        self._asked: deque[float] = deque()
        self._memory, self._fitted = b"", b""
        #: Journal entries of those that finished since `_memory` was made, oldest first.
        self._since: deque[tuple[int, FinishedTrajectory]] = deque(maxlen=MOST_SINCE)
        #: Entry up to which memory has what finished, and the one at which the memory that is awaited was asked for.
        self.memory_seq, self._asked_memory_at = 0, 0
        self._remembered = asyncio.Event()
        #: Last prediction of each trajectory that was sent.
        self._sent: dict[str, Prediction] = {}
        self.learnt = self._learnt_at_fit = 0
        self.sent = self.fits = self.starts = 0
        self.note = self.fitted_at = ""
        #: Entry up to which all that finished was learnt; that of a recalled memory, and of its history.
        self.seq = self._recalled = self._recalled_history = 0
        if memory is not None:
            self._recall(memory)

    def _recall(self, memory: PredictorMemory) -> None:
        try:
            self._history.recall(memory.history)
        except Exception as error:  # of another version: history is learnt again
            log.warning("fleet %s: %s", self.fleet, error)
            return
        self.seq = self._recalled_history = memory.history_seq
        if memory.predictor != self.name:  # another one learns from now on
            self._recalled = self.seq
            return
        self._memory, self._fitted = memory.memory, memory.fitted
        self.memory_seq = self._recalled = memory.seq
        self.learnt = self._learnt_at_fit = memory.learnt

    # --- what happens to trajectories ---------------------------------------------------------

    def step_ended(self, key: str, features: Features) -> None:
        """Ask what is left of a trajectory."""
        self._guarded.ended(key, features)
        loop = asyncio.get_running_loop()
        if self._process is not None and len(self._asked) < _MOST_ASKED:
            self._asked.append(loop.time())
            self._process.send(AskPrediction(key, features))
        elif self._process is not None:
            self._guarded.failed(LATE, f"has {_MOST_ASKED} questions to answer before {key}")
        loop.call_later(self.times.patience_seconds, self._stand_in, key, features.steps)

    def went_on(self, key: str) -> None:
        """Await nothing for a trajectory that submitted its next generation."""
        self._guarded.went_on(key)

    def over(self, key: str, finished: FinishedTrajectory | None, seq: int) -> None:
        """Forget a trajectory, and learn from one that finished with journal entry ``seq``."""
        self._guarded.forget(key)
        self._sent.pop(key, None)
        if finished is not None:
            self.learn(finished, seq)

    def learn(self, finished: FinishedTrajectory, seq: int) -> None:
        """Learn from a trajectory that finished with journal entry ``seq``, unless the memory has it."""
        self.seq = max(self.seq, seq)
        if seq > self._recalled_history:
            self._guarded.observe(finished)
        if seq <= self._recalled:
            return
        self.learnt += 1
        self._since.append((seq, finished))
        if self._process is not None:
            self._process.send(ObserveTrajectory(finished))

    def since(self) -> list[tuple[int, FinishedTrajectory]]:
        """Return what finished since the process said its memory last, each with its journal entry."""
        return list(self._since)

    def memory(self) -> PredictorMemory:
        """Return what the process said last, and history as it is now."""
        return PredictorMemory(
            self.name, self.memory_seq, self.seq, self._history.remember(), self._memory, self._fitted,
            self.learnt - len(self._since),
        )  # fmt: skip

    def unused(self) -> dict[str, int]:
        """Return the answers that were not used, by reason."""
        return dict(self._guarded.unused)

    @property
    def problem(self) -> str:
        """The latest of them in a sentence; empty: there is none."""
        return self._guarded.problem or ""

    # --- answers ------------------------------------------------------------------------------

    def _stand_in(self, key: str, steps: int) -> None:
        """Send what is used while the predictor's answer has not arrived."""
        if self._guarded.awaits(key, steps):
            self._say(key, self._guarded.latest(key))

    def _say(self, key: str, used: Prediction | None) -> None:
        if used is None or self._sent.get(key) == used:
            return
        self._sent[key] = used
        self.sent += 1
        self._send(
            TrajectoryPredicted(
                fleet=self.fleet, trajectory=TrajectoryKey(key), tokens=used.tokens,
                tool_seconds=used.tool_seconds, sigma=used.sigma, source=used.source,
            )
        )  # fmt: skip

    def _take(self, answer: FromPredictor) -> None:
        if isinstance(answer, PredictorAnswer):
            self._asked.popleft()
            self._answered(answer)
        elif isinstance(answer, Remembered):
            self._asked.popleft()
            if answer.memory:
                self._memory, self.memory_seq = answer.memory, self._asked_memory_at
                while self._since and self._since[0][0] <= self.memory_seq:
                    self._since.popleft()
            self._remembered.set()
        elif isinstance(answer, PredictorNote):
            self.note = answer.note
            if answer.fitted:
                self.fits, self.fitted_at = self.fits + 1, wall_clock()
        elif isinstance(answer, PredictorFailed):
            self._guarded.failed(RAISED, answer.what)
            if answer.final:
                raise PredictorEnded(answer.what)

    def _answered(self, answer: PredictorAnswer) -> None:
        key, steps = answer.trajectory, answer.steps
        if answer.reason:
            self._guarded.failed(answer.reason, answer.what)
            self._stand_in(key, steps)
            return
        said = None if answer.numbers is None else Prediction(*answer.numbers, answer.source)
        used = self._guarded.arrived(key, steps, said)
        if self._guarded.awaits(key, steps):
            self._say(key, used)

    # --- its process --------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a process until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fit_again())
            pause = self.times.restart_seconds
            clock = asyncio.get_running_loop().time
            while keep_running():
                began = clock()
                try:
                    await self._serve()
                except PredictorEnded as error:
                    log.warning("fleet %s: predictor %s: %s", self.fleet, self.name, error)
                if clock() - began > _WELL_SECONDS:
                    pause = self.times.restart_seconds
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_SECONDS)

    async def _serve(self) -> None:
        """Run one process until it fails. Raises PredictorEnded."""
        try:
            async with PredictorProcess(self.name) as process:
                self.starts += 1
                self._start_over(process)
                self._process = process
                watch = asyncio.create_task(self._watch(process))
                reader = asyncio.create_task(self._read(process))
                try:
                    done, _ = await asyncio.wait(
                        {watch, reader}, return_when=asyncio.FIRST_COMPLETED
                    )
                    for each in done:
                        each.result()
                finally:
                    self._process = None
                    self._asked.clear()
                    watch.cancel()
                    reader.cancel()
                    await asyncio.gather(watch, reader, return_exceptions=True)
        except OSError as error:
            self._guarded.failed(DIED, f"cannot be started: {error}")
            raise PredictorEnded(str(error)) from error

    def _start_over(self, process: PredictorProcess) -> None:
        """Give a further process what the ones before it had."""
        if self._memory:
            process.send(RecallMemory(self._memory))
        for _, finished in self._since:
            process.send(ObserveTrajectory(finished))
        if self._fitted:
            process.send(UseFit(self._fitted))

    async def _read(self, process: PredictorProcess) -> None:
        failed = True
        try:
            while True:
                answer = await process.read()
                failed = not (isinstance(answer, PredictorFailed) and answer.final)
                self._take(answer)
        except PredictorEnded as error:
            if failed:
                self._guarded.failed(DIED, f"has no process: {error}")
            raise

    async def _watch(self, process: PredictorProcess) -> None:
        """Raise PredictorEnded for a process that does not answer."""
        clock = asyncio.get_running_loop().time
        patience = self.times.hang_seconds
        while True:
            await asyncio.sleep(patience / 10)
            if process.clogged or (self._asked and clock() - self._asked[0] > patience):
                what = f"has not answered for {patience:g} s"
                self._guarded.failed(HUNG, f"{what}: its process is replaced")
                raise PredictorEnded(what)

    # --- fits ---------------------------------------------------------------------------------

    async def remember(self) -> bool:
        """Ask the process for its memory; False: it has not answered in time."""
        process = self._process
        if process is None:
            return False
        self._remembered.clear()
        self._asked_memory_at = self.seq
        self._asked.append(asyncio.get_running_loop().time())
        process.send(AskMemory())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.times.hang_seconds):
                await self._remembered.wait()
        return self.memory_seq == self._asked_memory_at

    async def _fit_again(self) -> None:
        """Fit whenever enough trajectories have finished."""
        while True:
            await asyncio.sleep(min(1.0, self.times.fit_pause_seconds))
            if (
                self.learnt - self._learnt_at_fit < self.times.fit_every
                or not await self.remember()
            ):
                continue
            learnt = self.learnt
            try:
                async with asyncio.timeout(self.times.fit_seconds):
                    await self._fit()
            except TimeoutError:
                self._guarded.failed(HUNG, f"fits for more than {self.times.fit_seconds:g} s")
            except (PredictorEnded, OSError) as error:
                self._guarded.failed(DIED, f"cannot be fitted: {error}")
            self._learnt_at_fit = learnt
            await asyncio.sleep(self.times.fit_pause_seconds)

    async def _fit(self) -> None:
        """Fit in a process of its own, and use the fit. Raises PredictorEnded, OSError."""
        async with PredictorProcess(self.name) as process:
            messages: list[ToPredictor] = [RecallMemory(self._memory), FitPredictor(self.learnt)]
            for each in messages:
                process.send(each)
            while not isinstance(answer := await process.read(), FittedPredictor):
                if isinstance(answer, PredictorFailed):
                    raise PredictorEnded(answer.what)
        if answer.failed:
            self._guarded.failed(RAISED, f"cannot be fitted: {answer.failed}")
        elif answer.fitted:
            self._fitted = answer.fitted
            if self._process is not None:
                self._process.send(UseFit(self._fitted))
