"""Handler process: ``python -m rollout.worker.handler_process``, which runs handlers for the worker that started it.

Its standard input is the socket to the worker. When a job has blocked the event loop for too long, it writes the number of that
job to the descriptor of its first argument, and ends.

Rules
1. It has no access to Redis, the database or secrets: everything is asked of the worker.
2. It ends when its worker ends: when the socket closes, or when a thread sees that its parent is another process.
3. An error of a handler costs its own job: it is sent with its type and traceback.
4. Questions from outside are answered while a method runs that serves them, and end with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
import traceback
from contextvars import ContextVar
from typing import Any, Final

import msgspec

from domain.errors import CapacityError, Unavailable
from domain.rollouts import Stage
from rollout.core.results import Failure, NonsenseAnswer, checked_mapping
from rollout.core.steps import Callback
from rollout.handlers.base import AgentHandler, CallRefused
from rollout.handlers.process_options import ProcessOptions, use
from rollout.handlers.registry import load
from rollout.worker.frames import (
    Answered,
    BeginCall,
    CallReply,
    CloseJob,
    DropQuestion,
    FrameConnection,
    FrameTooLong,
    HandlerCall,
    HandlerEnded,
    MoreHistory,
    MoveSeat,
    OpenJob,
    Ping,
    Pong,
    Question,
    QuestionError,
    StopJob,
    ToProcess,
    plain,
)
from rollout.worker.remote_job import RemoteJob

#: Exit status of a process that a handler blocked.
BLOCKED_STATUS: Final = 70
#: Largest value that a method may return, encoded.
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
MAX_TRACEBACK_CHARACTERS: Final = 8000
_PREFIX: Final = "job "
#: Call of a method that the present task belongs to, with the tasks that it made.
_invocation: ContextVar[int] = ContextVar("invocation", default=0)


class HandlerHost:
    """The jobs of one process."""

    def __init__(self) -> None:
        self.connection: FrameConnection[ToProcess] = FrameConnection(
            ToProcess, self._take, self._end
        )
        self.ended = asyncio.Event()
        self._jobs: dict[int, tuple[str, RemoteJob]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopped: set[int] = set()
        self._handlers: dict[str, asyncio.Future[AgentHandler]] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._calls = 0
        #: By job and number.
        self._questions: dict[tuple[int, int], asyncio.Task[None]] = {}
        #: Job → its present call of a method.
        self._invocations: dict[int, int] = {}

    async def run(self) -> None:
        """Serve until the worker closes the connection."""
        await self.ended.wait()
        for task in list(self._tasks.values()):
            task.cancel()

    def _end(self, why: str) -> None:
        self.ended.set()

    def _take(self, frame: ToProcess) -> None:
        match frame:
            case CallReply():
                self._take_reply(frame)
            case BeginCall(job):
                self._invocations[job] = self._invocations.get(job, 0) + 1
                task = asyncio.create_task(self._do(frame), name=f"{_PREFIX}{job}")
                self._tasks[job] = task
            case Question(job, number):
                answering = asyncio.create_task(self._answer(frame), name=f"{_PREFIX}{job}")
                self._questions[job, number] = answering
            case DropQuestion(job, number):
                self._drop(job, number)
            case StopJob(job):
                self._stop(job)
            case Ping(number):
                self.connection.send(Pong(number))
            case _:
                self._take_facts(frame)

    def _take_facts(self, frame: OpenJob | MoreHistory | MoveSeat | CloseJob) -> None:
        """Take what a job is, or that it is over."""
        match frame:
            case OpenJob(number, place):
                ask, rollout = self._asker(number), frame.rollout
                remote = RemoteJob(ask, rollout, frame.attempt, frame.request, frame.history)
                self._jobs[number] = place, remote
            case MoreHistory(job, records):
                self._jobs[job][1].history.extend(records)
            case MoveSeat(job, seat):
                self._jobs[job][1].move_seat(seat)
            case CloseJob(job):
                self._stop(job)
                self._jobs.pop(job, None)
                self._invocations.pop(job, None)

    def _take_reply(self, frame: CallReply) -> None:
        reply = self._replies.pop(frame.call, None)
        if reply is None or reply.done():
            return
        if frame.error is None:
            reply.set_result(frame.value)
        else:
            reply.set_exception(CallRefused(frame.error.message))

    async def _answer(self, asked: Question) -> None:
        """Answer a question by the handler that serves now, and send the answer."""
        answered = Answered(asked.job, asked.number)
        try:
            answered = Answered(asked.job, asked.number, await self._answer_of(asked))
        except BaseException as error:  # a handler may raise anything
            answered = Answered(asked.job, asked.number, error=QuestionError.of(error))
        finally:
            self._questions.pop((asked.job, asked.number), None)
            self.connection.send(answered)

    async def _answer_of(self, asked: Question) -> Any:
        place = self._jobs.get(asked.job)
        serving = None if place is None or asked.job not in self._tasks else place[1].serving
        if serving is None:
            raise Unavailable("its handler serves no agent now")
        _invocation.set(self._invocations[asked.job])
        return checked_value(await serving(asked.method, asked.body))

    def _drop(self, job: int, number: int) -> None:
        if (answering := self._questions.get((job, number))) is not None:
            answering.cancel()

    def _drop_all(self, job: int) -> None:
        """End the questions of a job whose method has ended."""
        for of, number in list(self._questions):
            if of == job:
                self._drop(of, number)

    def _stop(self, job: int) -> None:
        task = self._tasks.get(job)
        if task is not None:
            self._stopped.add(job)
            task.cancel()

    def _asker(self, job: int) -> Any:
        async def ask(method: str, *arguments: Any) -> Any:
            if _invocation.get() != self._invocations.get(job):
                raise CallRefused(
                    "its stage has ended: end the tasks that a method starts before it returns"
                )
            self._calls += 1
            call = self._calls
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._replies[call] = reply
            try:
                self.connection.send(HandlerCall(call, job, method, list(arguments)))
                return await reply
            except FrameTooLong as error:
                raise CallRefused(str(error)) from None
            finally:
                self._replies.pop(call, None)

        return ask

    async def _do(self, begin: BeginCall) -> None:
        """Call a method and send how it ended."""
        invocation = self._invocations[begin.job]
        _invocation.set(invocation)
        ended = HandlerEnded(begin.job)
        try:
            ended = HandlerEnded(begin.job, await self._called(begin))
        except asyncio.CancelledError as error:
            if begin.job in self._stopped:
                ended = HandlerEnded(begin.job, stopped=True)
            else:
                ended = HandlerEnded(begin.job, failure=failure_of(error))
        except BaseException as error:  # a handler may raise SystemExit
            ended = HandlerEnded(begin.job, failure=failure_of(error))
        finally:
            self._stopped.discard(begin.job)
            self._tasks.pop(begin.job, None)
            if self._invocations.get(begin.job) == invocation:
                self._invocations[begin.job] += 1
                self._drop_all(begin.job)
            self.connection.send(ended)

    async def _called(self, begin: BeginCall) -> Any:
        place, job = self._jobs[begin.job]
        handler = await self._handler(place)
        job.begin(begin.stage, begin.seat)
        method = getattr(handler, begin.callback.value)
        if begin.callback.is_stage:
            value = await method(job)
        elif begin.callback is Callback.FINAL_RESULT:
            value = method(job)
        else:
            value = method(job, begin.failure)
        value = checked_value(value)
        if begin.callback.is_stage and begin.stage is not Stage.EVAL:
            job.returned(begin.stage, checked_mapping(begin.stage, value))
        return value

    async def _handler(self, place: str) -> AgentHandler:
        """Return the handler at a place; its module is imported beside the event loop, once."""
        if place not in self._handlers:
            self._handlers[place] = asyncio.ensure_future(asyncio.to_thread(load, place))
        return await asyncio.shield(self._handlers[place])


def checked_value(value: object) -> Any:
    """Return what a method returned as JSON values. Raises NonsenseAnswer."""
    try:
        encoded = msgspec.msgpack.encode(value, enc_hook=plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NonsenseAnswer(f"its answer cannot be stored: {error}") from error
    if len(encoded) > MAX_VALUE_BYTES:
        raise NonsenseAnswer(
            f"its answer has {len(encoded)} bytes, at most {MAX_VALUE_BYTES} are stored: use artefacts"
        )
    return msgspec.msgpack.decode(encoded)


def failure_of(error: BaseException) -> Failure:
    """Return an error with its type and traceback."""
    trace = "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARACTERS:]
    infra = isinstance(error, CapacityError)
    return Failure(type(error).__name__, _encodable(_text(error)), _encodable(trace), infra)


def _encodable(text: str) -> str:
    """Return text without what is no Unicode, such as a cut character of a file's name."""
    return text.encode("utf-8", "replace").decode()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of the handler's own class
        return ""


class LoopWatch:
    """Thread that ends the process when its event loop is blocked, or its worker is gone."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, blocked_seconds: float, verdict: int
    ) -> None:
        self._loop = loop
        self._verdict = verdict
        self._blocked_seconds = blocked_seconds
        self._parent = os.getppid()
        self._seen = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="loop watch", daemon=True)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def _mark(self) -> None:
        self._seen = time.monotonic()

    def _run(self) -> None:
        pause = min(1.0, self._blocked_seconds / 4)
        while os.getppid() == self._parent:
            self._loop.call_soon_threadsafe(self._mark)
            time.sleep(pause)
            if time.monotonic() - self._seen > self._blocked_seconds:
                self._report()
        os._exit(0)

    def _report(self) -> None:
        task = asyncio.current_task(self._loop)
        name = task.get_name() if task is not None else ""
        os.write(self._verdict, name.removeprefix(_PREFIX).encode())
        os._exit(BLOCKED_STATUS)


async def serve(connection: socket.socket) -> None:
    """Serve the worker at the other end of a socket."""
    host = HandlerHost()
    await asyncio.get_running_loop().create_connection(lambda: host.connection, sock=connection)
    await host.run()


async def _main(verdict: int, blocked_seconds: float) -> None:
    LoopWatch(asyncio.get_running_loop(), blocked_seconds, verdict).start()
    try:
        await serve(socket.socket(fileno=os.dup(0)))
    finally:
        os._exit(0)  # whatever a handler still does


if __name__ == "__main__":
    use(ProcessOptions.of(sys.argv[3]))
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2])))
