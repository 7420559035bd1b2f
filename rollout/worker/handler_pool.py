"""Handler pool: the processes of a worker, and the jobs in them.

Lifetimes: a process starts with the first job that needs it, and ends `IDLE_SECONDS` after its last one, so an idle worker
has none. A `HandlerJob` lasts from `open` to `close`, or until its process ends.

Rules
1. Jobs go to the process with the fewest, of at most `processes`.
2. A process that ends gives each of its jobs `ProcessEnded`. The job that blocked it is named; the others, and all after
   a signal, may not have caused it: they continue in *quarantine*, with at most `COMPANY` jobs in a process, then alone.
   So a handler that ends its process alone is the one that ends it. A rollout that waits for a place in quarantine
   holds no lease, so rollouts that have a lease never wait for those that have a place.
3. A handler that does not stop keeps its task: its process takes no further job, and ends after the others in it.
4. A process that answers no ping within `PING_SECONDS` is ended: its handler holds the interpreter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from domain.rollouts import Rollout
from rollout.core.records import RolloutRequest
from rollout.core.results import Failure
from rollout.core.steps import Invoke
from rollout.ports import Record, Seat
from rollout.worker.frames import (
    Answered,
    BeginCall,
    CallError,
    CallReply,
    CloseJob,
    DropQuestion,
    FrameConnection,
    FrameTooLong,
    FromProcess,
    HandlerCall,
    HandlerEnded,
    MoreHistory,
    MoveSeat,
    OpenJob,
    Ping,
    Pong,
    Question,
    StopJob,
    history_parts,
)
from rollout.worker.process_launch import HandlerProgram, launch

IDLE_SECONDS: Final = 60.0
PING_SECONDS: Final = 60.0
STOP_SECONDS: Final = 5.0
#: Quarantine → jobs in one process; 0 is no quarantine.
COMPANY: Final = (1_000_000, 8, 1)
#: Processes in quarantine at once.
QUARANTINE_PROCESSES: Final = 4

log = logging.getLogger(__name__)

#: Answers a call of a handler: method and arguments → value. Raises CallRefused.
Answer = Callable[[str, list[Any]], Awaitable[Any]]


class HandlerRaised(Exception):
    """A method of a handler raised."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class ProcessEnded(Exception):
    """The process of a handler ended. ``caused``: by this job."""

    def __init__(self, reason: str, *, caused: bool = False) -> None:
        super().__init__(reason)
        self.caused = caused


class HandlerStopped(Exception):
    """What the handler did was stopped."""


class HandlerJob:
    """One rollout in a handler process."""

    def __init__(self, number: int, place: _Process, answer: Answer) -> None:
        self.number = number
        self._process = place
        self._answer = answer
        self._ended: asyncio.Future[Any] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._asked = 0
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._gone: ProcessEnded | None = None

    @property
    def in_quarantine(self) -> bool:
        """Whether its process takes few jobs."""
        return self._process.quarantine > 0

    def open(
        self,
        place: str,
        rollout: Rollout,
        attempt: int,
        request: RolloutRequest,
        history: list[Record],
    ) -> None:
        """Have the process know the rollout."""
        first, *others = history_parts(history)
        self._process.send(OpenJob(self.number, place, rollout, attempt, request, first))
        for part in others:
            self._process.send(MoreHistory(self.number, part))

    def move_seat(self, seat: Seat | None) -> None:
        """Have the handler know that the lease of its stage has another seat."""
        self._process.send(MoveSeat(self.number, seat))

    async def ask(self, method: str, body: Mapping[str, Any]) -> Any:
        """Ask the handler something. Raises InvalidRequest, Unavailable, TangramError, FrameTooLong, ProcessEnded."""
        if self._gone is not None:
            raise self._gone
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._process.send(Question(self.number, number, method, dict(body)))
            return await answer
        finally:
            del self._questions[number]
            if answer.cancelled():
                self._process.send(DropQuestion(self.number, number))

    def answered(self, frame: Answered) -> None:
        """Take the answer to a question."""
        answer = self._questions.get(frame.number)
        if answer is None or answer.done():
            return
        if frame.error is None:
            answer.set_result(frame.value)
        else:
            answer.set_exception(frame.error.error)

    async def invoke(self, step: Invoke, seat: Seat | None) -> Any:
        """Call a method and return its answer. Raises HandlerRaised, HandlerStopped, ProcessEnded."""
        if self._gone is not None:
            raise self._gone
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ended.add_done_callback(_retrieved)
        self._ended = ended
        self._process.send(BeginCall(self.number, step.callback, step.stage, seat, step.failure))
        # The caller may be cancelled; `stop` awaits the same end.
        return await asyncio.shield(ended)

    async def stop(self) -> bool:
        """Cancel what the handler does; say whether it has stopped within `STOP_SECONDS`."""
        await self.end_calls()
        ended = self._ended
        if ended is None or ended.done():
            return True
        self._process.send(StopJob(self.number))
        await asyncio.wait({ended}, timeout=STOP_SECONDS)
        if ended.done():
            return True
        self._process.taint()
        return False

    async def end_calls(self) -> None:
        """Cancel the calls that have no reply yet, and wait for their ends."""
        if calls := self._cancel_calls():
            await asyncio.wait(calls)

    def close(self) -> None:
        """Forget the job; may be repeated."""
        self._cancel_calls()
        self._end_questions(ProcessEnded("the rollout has left its process"))
        self._process.close_job(self)

    def taken(self, frame: HandlerCall) -> None:
        """Answer a call."""
        task = asyncio.ensure_future(self._reply(frame))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def ended(self, frame: HandlerEnded) -> None:
        """Take the end of a method."""
        if self._ended is None or self._ended.done():
            return
        if frame.stopped:
            self._ended.set_exception(HandlerStopped())
        elif frame.failure is not None:
            self._ended.set_exception(HandlerRaised(frame.failure))
        else:
            self._ended.set_result(frame.value)

    def gone(self, error: ProcessEnded) -> None:
        """Take the end of the process."""
        self._gone = error
        self._cancel_calls()
        self._end_questions(error)
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def _reply(self, frame: HandlerCall) -> None:
        # A call that ends the stage gets no reply: the handler is stopped.
        try:
            value = await self._answer(frame.method, frame.arguments)
        except HandlerCallRefused as error:
            self._process.send(CallReply(frame.call, error=CallError(str(error))))
        except HandlerStopped:
            pass
        else:
            try:
                self._process.send(CallReply(frame.call, value))
            except FrameTooLong as error:
                self._process.send(CallReply(frame.call, error=CallError(str(error))))

    def _end_questions(self, error: ProcessEnded) -> None:
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(error)

    def _cancel_calls(self) -> set[asyncio.Task[None]]:
        calls = set(self._calls)
        for task in calls:
            task.cancel()
        return calls


def _retrieved(future: asyncio.Future[Any]) -> None:
    """Take the error of a future that may have no reader."""
    if not future.cancelled():
        future.exception()


class HandlerCallRefused(Exception):
    """A call of a handler is refused; it gets `CallRefused` with this text."""


class _Process:
    """One handler process, from the worker's side."""

    def __init__(
        self,
        program: HandlerProgram,
        quarantine: int,
        freed: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self.program = program
        self.quarantine = quarantine
        self.jobs: dict[int, HandlerJob] = {}
        self.tainted = False
        self.over = False
        self._freed = freed
        self._gone = gone
        self._connection: FrameConnection[FromProcess] = FrameConnection(
            FromProcess, self._take, self._lost
        )
        self._pings = 0
        self._pongs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._end: asyncio.Task[None] | None = None

    @property
    def takes_jobs(self) -> bool:
        """Whether another job may be opened in it."""
        return not (self.over or self.tainted) and len(self.jobs) < COMPANY[self.quarantine]

    async def connect(self) -> None:
        """Connect to the program."""
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._connection, sock=self.program.socket)
        except BaseException:
            self.program.kill()
            raise
        self._ping()

    def add(self, job: HandlerJob) -> None:
        """Have a job in this process."""
        self.jobs[job.number] = job
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def send(self, frame: Any) -> None:
        """Send a frame."""
        self._connection.send(frame)

    def taint(self) -> None:
        """Take no further job, and end after those in it."""
        self.tainted = True

    def close_job(self, job: HandlerJob) -> None:
        """Forget a job; the last one of a process that is not used any more ends it."""
        if self.jobs.pop(job.number, None) is not None:
            self.send(CloseJob(job.number))
            self._end_if_unused()
            self._freed()

    def _end_if_unused(self) -> None:
        """End it when no job is left and none may follow; else after `IDLE_SECONDS`."""
        if not self.jobs:
            if self.tainted or self.quarantine:
                self.kill()
            else:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(IDLE_SECONDS, self.kill)

    def kill(self) -> None:
        """End it now."""
        self.over = True
        self.program.kill()
        self._connection.close()

    def _take(self, frame: FromProcess) -> None:
        if isinstance(frame, Pong):
            self._pongs = frame.number
            return
        job = self.jobs.get(frame.job)
        if job is None:
            return
        if isinstance(frame, HandlerCall):
            job.taken(frame)
        elif isinstance(frame, Answered):
            job.answered(frame)
        else:
            job.ended(frame)

    def _ping(self) -> None:
        if self._pings > self._pongs:
            log.error("a handler process answers nothing for %g s: it is ended", PING_SECONDS)
            self.kill()
            return
        self._pings += 1
        self.send(Ping(self._pings))
        self._timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._ping)

    def _lost(self, why: str) -> None:
        self.over = True
        for timer in (self._timer, self._idle):
            if timer is not None:
                timer.cancel()
        self._end = asyncio.ensure_future(self._conclude())

    async def _conclude(self) -> None:
        reason, blocking = await self.program.end()
        jobs, self.jobs = self.jobs, {}
        if jobs:
            log.error("a handler process with %d rollouts is gone: %s", len(jobs), reason)
        for number, job in jobs.items():
            job.gone(ProcessEnded(reason, caused=number == blocking))
        self._gone()


class HandlerPool:
    """The handler processes of one worker."""

    def __init__(
        self, processes: int, start: Callable[[], Awaitable[HandlerProgram]] = launch
    ) -> None:
        self._most = processes
        self._start = start
        self._processes: list[_Process] = []
        self._starting = [0, 0, 0]
        self._waiting: list[asyncio.Future[None]] = []
        self._jobs = 0
        self._closed = False

    @property
    def processes(self) -> int:
        """Number of processes that run."""
        return sum(1 for process in self._processes if not process.over)

    async def job(self, answer: Answer, crashes: int = 0) -> HandlerJob:
        """Return a job in some process, after so many ends of processes of its rollout."""
        quarantine = quarantine_after(crashes)
        while True:
            process = await self._place(quarantine)
            if process is not None:
                return self._job_in(process, answer)

    def job_at_once(self, answer: Answer, crashes: int) -> HandlerJob | None:
        """Return a job in a process that runs; None: there is no room."""
        process = self._roomiest(quarantine_after(crashes))
        return None if process is None else self._job_in(process, answer)

    async def close(self) -> None:
        """End all processes, also those that start, and wait for their ends."""
        self._closed = True
        for process in list(self._processes):
            process.kill()
        while self._processes or any(self._starting):
            await self._change()

    def _job_in(self, process: _Process, answer: Answer) -> HandlerJob:
        self._jobs += 1
        job = HandlerJob(self._jobs, process, answer)
        process.add(job)
        return job

    def _roomiest(self, quarantine: int) -> _Process | None:
        usable = [
            process
            for process in self._processes
            if process.quarantine == quarantine and process.takes_jobs
        ]
        return min(usable, key=lambda process: len(process.jobs), default=None)

    async def _place(self, quarantine: int) -> _Process | None:
        """Return a process for another job; None: look again."""
        best = self._roomiest(quarantine)
        running = sum(
            1
            for each in self._processes
            if each.quarantine == quarantine and not (each.over or each.tainted)
        )
        most = QUARANTINE_PROCESSES if quarantine else self._most
        may_start = running + self._starting[quarantine] < most
        if best is not None and (quarantine or not best.jobs or not may_start):
            return best
        if not may_start:
            await self._change()
            return None
        self._starting[quarantine] += 1
        # A task of its own: the job that asked may be withdrawn while the process starts.
        await asyncio.shield(asyncio.ensure_future(self._launch(quarantine)))
        return None

    async def _launch(self, quarantine: int) -> None:
        try:
            process: _Process
            program = await self._start()
            process = _Process(program, quarantine, self._wake, lambda: self._removed(process))
            await process.connect()
            self._processes.append(process)
            if self._closed:
                process.kill()
        finally:
            self._starting[quarantine] -= 1
            self._wake()

    def _removed(self, process: _Process) -> None:
        if process in self._processes:
            self._processes.remove(process)
        self._wake()

    async def _change(self) -> None:
        """Wait until a job or a process has ended."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


def quarantine_after(crashes: int) -> int:
    """Return the quarantine of a rollout after so many ends of processes."""
    return min(crashes, len(COMPANY) - 1)
