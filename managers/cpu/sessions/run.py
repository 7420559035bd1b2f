"""Run of one action in a session: mark, grant the cores to the session, send, wait, take the cores back.

The action ends at the first of: the command has ended; the expected pattern is in its output; the program in the
foreground waits for input, where that is expected; its time-out or a cancellation. These interrupt the program
and then end what it runs in the foreground, unless the action expected something: then the program continues.
The session lives on in any case, and whatever still runs in it runs on without the granted cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import structs

from domain.action import ExecSpec, Outcome
from domain.allocation import Allocation
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.ids import TrajectoryKey
from domain.ports import ExecResult, RunOrder, RunReport, SessionResult
from managers.common.start_log import WithdrawnError
from managers.cpu.command_line import CANNOT_EXECUTE, NOT_FOUND
from managers.cpu.environment.protocol import LivingEnvironment, NoEnvironment
from managers.cpu.kept_output import OutputLimits
from managers.cpu.live_output import LiveOutputs
from managers.cpu.output import BoundedOutput, exec_result
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.session import LiveSession
from managers.cpu.sessions.state import SessionPhase
from managers.cpu.sessions.transcript import Expectation, compiled

#: Looks at what the kernel does not notify of: the first pause, and the longest one.
_FIRST_LOOK_SECONDS: Final = 0.01
_LAST_LOOK_SECONDS: Final = 0.25
#: A program waits for input if it does so in so many looks in a row.
_LOOKS: Final = 2
_SETTLE_LOOKS: Final = 25


class SessionCores(Protocol):
    """The granted cores of one action in an environment."""

    def act(self, pids: Sequence[int], allocation: Allocation | None) -> None:
        """Run these processes, and what they start, on the granted cores; also after a resize."""

    def rest(self) -> None:
        """Run all that is left of them on the shared cores again."""


@dataclass(frozen=True)
class SessionTools:
    """Objects that all runs of a driver share."""

    host: SessionHost
    #: Raises NoEnvironment.
    environment_of: Callable[[TrajectoryKey], LivingEnvironment]
    cores_of: Callable[[LivingEnvironment], SessionCores]
    #: Writes the start mark of an attempt; the second argument tells whether it was withdrawn.
    mark: Callable[[str, Callable[[], bool]], asyncio.Future[None]]
    outputs: LiveOutputs
    #: Watches the environment's disk while a run is in it.
    watched: Callable[[SessionRun, LivingEnvironment], AbstractContextManager[None]]
    grace_seconds: float
    #: Returns what describes the programs of the environment that the kernel kills for lack of memory from now on.
    watch_kills: Callable[[LivingEnvironment], Callable[[], str]] = lambda _: str


class SessionRun:
    """One order being executed in a session."""

    #: Name of the environment, once it is known.
    workspace = ""
    #: Its processes are the session's, whose memory is that of the environment.
    tag = 0
    memory_limit_bytes = 2**63

    def __init__(self, order: RunOrder, started: Callable[[], None], tools: SessionTools) -> None:
        self.order = order
        self._started = started
        self._tools = tools
        self._stopping: tuple[Outcome, str] | None = None
        #: Set by each change of the session, and by a stop.
        self._woken = asyncio.Event()
        self._reply: SessionReply | None = None
        self._began = 0.0
        self._cores: SessionCores | None = None
        self._session: LiveSession | None = None
        self._kills: Callable[[], str] = str

    def stop(self, outcome: Outcome, reason: str) -> None:
        """Stop it with ``outcome``, unless it is being stopped already."""
        if self._stopping is None and not (self._reply is not None and self._reply.complete):
            self._stopping = outcome, reason
            self._woken.set()

    def resize(self, allocation: Allocation) -> None:
        """Change its cores."""
        self.order = self.order.resized(allocation)
        self._act()

    async def live(self) -> RunReport:
        """Run the order to its end. Raises nothing; is not cancelled."""
        try:
            return await self._run()
        except (NoEnvironment, NotFound) as error:
            return _refused(error, NOT_FOUND)
        except InvalidRequest as error:
            return _refused(error, CANNOT_EXECUTE)
        except WithdrawnError:
            outcome, reason = self._stopping or (Outcome.INFRA_FAILED, "withdrawn")
            return RunReport(outcome, 0.0, detail=reason, never_started=True)
        except (OSError, Unavailable) as error:
            return RunReport(
                Outcome.INFRA_FAILED,
                self._seconds(),
                detail=f"the node could not run it: {error}",
                never_started=not self._began,
            )
        finally:
            if self._cores is not None:
                self._cores.rest()

    async def _run(self) -> RunReport:
        trajectory, spec = self.order.action.trajectory_key, self.order.action.exec
        if trajectory is None or spec is None or spec.session is None:
            raise InvalidRequest("an action in a session needs a trajectory")
        environment = self._tools.environment_of(trajectory)
        self.workspace = environment.name
        session = self._session = self._tools.host.of(environment.name, spec.session)
        session.state.check_alive()
        if spec.command and not spec.queue:
            session.state.check_command()
        if spec.expect is not None and spec.expect.pattern is not None:
            compiled(spec.expect.pattern)
        marked = self._tools.mark(self.order.mark, lambda: self._stopping is not None)
        # The session gets its cores while the mark is written; its command is sent after that.
        self._cores = self._tools.cores_of(environment)
        self._kills = self._tools.watch_kills(environment)
        self._act()
        await marked
        timer = self._set_timer()
        try:
            with self._tools.watched(self, environment), session.watched() as self._woken:
                return await self._execute(session, spec)
        finally:
            if timer is not None:
                timer.cancel()

    def _act(self) -> None:
        if self._cores is not None and self._session is not None:
            # What an idle shell left in the background stays on the shared cores.
            idle = self._session.state.phase is SessionPhase.IDLE
            pids = self._session.processes(shell_only=idle)
            self._cores.act(pids, self.order.allocation("cpu"))

    async def _execute(self, session: LiveSession, spec: ExecSpec) -> RunReport:
        self._began = time.monotonic()
        self._started()
        while spec.command and spec.queue and session.state.phase is SessionPhase.BUSY:
            await self._pause(session, _LAST_LOOK_SECONDS)
            if self._stopping is not None:
                return RunReport(self._stopping[0], self._seconds(), detail=self._stopping[1])
        await self._settle(session)
        with SessionReply(session, spec) as reply:
            if spec.command:
                session.run(spec.command)
            if spec.stdin is not None:
                session.send(spec.stdin.encode(errors="surrogateescape"))
            reply.begin()
            self._reply = reply
            with self._tools.outputs.of_run(self.order, *(each.kept for each in reply.kept)):
                await self._wait(session, spec, reply)
                if self._stopping is not None and spec.expect is None:
                    await self._interrupt(session)
                return self._report(session, reply)

    async def _pause(self, session: LiveSession, seconds: float) -> None:
        """Wait for a change of the session or a stop; after so long look whether its shell was replaced."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            session.look()
        self._woken.clear()

    async def _settle(self, session: LiveSession) -> None:
        """Make sure that an interrupted shell is back in its loop."""
        if session.state.unsettled and session.state.phase is SessionPhase.IDLE:
            session.ask()
            for _ in range(_SETTLE_LOOKS):
                if not session.state.unsettled:
                    return
                await self._pause(session, _FIRST_LOOK_SECONDS)

    async def _wait(self, session: LiveSession, spec: ExecSpec, reply: SessionReply) -> None:
        """Wait for the first end of the action."""
        pause, looks = _FIRST_LOOK_SECONDS, 0
        for_input = _waits_for_input(session, spec)
        while self._stopping is None and not reply.complete:
            before = session.output.end
            await self._pause(session, pause)
            printed = before != session.output.end
            quiet = for_input and not printed and session.waits_for_input()
            looks = looks + 1 if quiet else 0
            if looks >= _LOOKS:
                return
            # What asks for input prints a question before.
            soon = for_input and (printed or quiet)
            pause = _FIRST_LOOK_SECONDS if soon else min(2 * pause, _LAST_LOOK_SECONDS)

    async def _interrupt(self, session: LiveSession) -> None:
        """Interrupt the program; then end what it runs in the foreground, but never the shell."""
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if not session.state.busy:
                return
            if each is signal.SIGINT:
                session.interrupt()
            else:
                _signal(session.foreground() or session.since_command(), each)
            deadline = time.monotonic() + self._tools.grace_seconds
            while (left := deadline - time.monotonic()) > 0 and session.state.busy:
                await self._pause(session, left)

    def _set_timer(self) -> asyncio.TimerHandle | None:
        seconds = self.order.action.timeout_seconds
        if seconds is None:
            return None
        reason = f"execution passed timeout_seconds = {seconds:g}"
        return asyncio.get_running_loop().call_later(seconds, self.stop, Outcome.TIMEOUT, reason)

    def _seconds(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    def _report(self, session: LiveSession, reply: SessionReply) -> RunReport:
        outcome, reason = self._stopping or (Outcome.COMPLETED, None)
        notes = [reason] if reason else []
        state = session.state
        if state.phase is SessionPhase.REPLACED:
            notes.append("the shell of the session was replaced: commands are refused from now on")
        elif state.phase is SessionPhase.ENDED:
            notes.append(f"the session ended with exit status {state.exit_status}")
        elif self._stopping is not None and state.busy:
            notes.append("the session still runs it, without the granted cores")
        result = reply.result()
        if killed := self._kills():
            notes.append(killed)
            if self._stopping is None and result.exit_code:
                outcome = Outcome.OOM_KILLED
        detail = "; ".join(notes) or None
        return RunReport(outcome, self._seconds(), result, detail=detail)


class SessionReply:
    """Collects the output of one action, and notices its ends."""

    def __init__(self, session: LiveSession, spec: ExecSpec) -> None:
        self._session = session
        limits = OutputLimits.declared(spec)
        self.kept = BoundedOutput(limits), BoundedOutput(limits)
        self._pattern = spec.expect.pattern if spec.expect is not None else None
        self._expectation: Expectation | None = None
        self._match_end: int | None = None
        self.matched: str | None = None
        self._ends_with_command = False
        self._has_command = bool(spec.command)

    def __enter__(self) -> SessionReply:
        """Take what the session printed since the reply before."""
        session = self._session
        session.drain()
        if self._pattern is not None:
            # What a new command is expected to print is not in the output before it.
            offset = session.output.end if self._has_command else session.replied
            self._expectation = Expectation(self._pattern, offset)
        for index, (transcript, offset) in enumerate(
            ((session.output, session.replied), (session.errors, session.replied_errors))
        ):
            piece = transcript.since(offset)
            if piece.missed:
                self.kept[index].kept.skip(piece.missed)
            self._take(index, piece.content)
        session.sinks.append(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        session = self._session
        session.sinks.remove(self._take)
        session.replied = session.output.end if self._match_end is None else self._match_end
        session.replied_errors = session.errors.end

    def begin(self) -> None:
        """The command was sent, or what the session runs gets its input."""
        self._ends_with_command = self._session.state.phase is SessionPhase.BUSY

    @property
    def complete(self) -> bool:
        """Whether the pattern was found, or no command runs any more."""
        if self._match_end is not None:
            return True
        phase = self._session.state.phase
        if phase in {SessionPhase.ENDED, SessionPhase.REPLACED}:
            return phase is SessionPhase.ENDED or self._ends_with_command
        return phase in {SessionPhase.IDLE, SessionPhase.PROMPT}

    def result(self) -> ExecResult:
        """Return the result, with all output that was written until now, or until the match."""
        session = self._session
        session.drain()
        state, status = session.state, None
        if state.phase is SessionPhase.ENDED:
            status = state.exit_status
        elif state.phase in {SessionPhase.IDLE, SessionPhase.PROMPT}:
            status = state.last_status
        result = exec_result(status, *self.kept)
        return SessionResult(
            **structs.asdict(result),
            session=str(state.phase),
            matched=self.matched,
            command_number=state.number or None,
        )

    def _take(self, index: int, content: bytes) -> None:
        if index or self._expectation is None:
            self.kept[index].add(content)
            return
        if self._match_end is not None:  # it belongs to the next reply
            return
        transcript = self._session.output
        end = self._expectation.search(transcript)
        if end is not None:
            self._match_end = end
            content = content[: max(0, len(content) - (transcript.end - end))]
            self.matched = self._expectation.text.decode(errors="replace")
        self.kept[0].add(content)


def _waits_for_input(session: LiveSession, spec: ExecSpec) -> bool:
    """Whether the action ends when a program waits for input; without `expect` where no shell answers."""
    if spec.expect is not None:
        return spec.expect.input
    return session.state.phase in {SessionPhase.RUNNING, SessionPhase.REPLACED}


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _refused(error: InvalidRequest, exit_code: int) -> RunReport:
    """Return the result of a command that the session does not take, as of one that cannot be spawned."""
    result = ExecResult(exit_code, "", f"tangram: {error}\n", truncated=False)
    return RunReport(Outcome.COMPLETED, 0.0, result, detail=str(error))
