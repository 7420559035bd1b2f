"""Processes of a sandbox (``process.Process`` of E2B's envd).

A process without input is an ``exec`` action: it gets cores, and its output is followed live. A process with input or
a terminal is a session of that program, on the shared cores; so is one that starts while an action runs in the
sandbox, since an environment runs one action at a time.

Rules
1. The pid of an action is derived from its id, that of a session is its name: every web process finds both in the
   native lists. They are not ids of the operating system.
2. A process outlives its stream. ``Connect-Timeout-Ms`` ends it: by the time limit of the action, by ``timeout``
   inside for a session (`facades.e2b.wrapper`). An action that has not begun by then never begins: its client has left.
3. An exit status is reported only where one is known. `OUTCOMES` states the error of every other outcome; a
   stream breaks off without its end when the sandbox has ended.
4. SIGTERM goes to the program, which may handle it; SIGKILL ends the process with what it runs in the foreground.
5. A process with a tag is a session, whose words have it. The first process that has a tag is meant.
"""

from __future__ import annotations

import base64
import shlex
import zlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from secrets import randbelow
from typing import Any, Final

import msgspec
from websockets.exceptions import ConnectionClosed

from domain.action import Outcome
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.ports.processes import ProgramFacts
from domain.ports.sessions import SessionFacts
from facades.e2b.connect import BrokenStream, Message, read, timeout_of
from facades.e2b.messages import (
    ProcessInput,
    ProcessRequest,
    PseudoTerminal,
    Selector,
    StartRequest,
    StreamedInput,
)
from facades.e2b.paths import Homes, resolved, user_of
from facades.e2b.sandbox import OpenSandbox, sandbox_of
from facades.e2b.wrapper import LINES, NO_MORE, NONE, TERMINAL, typed, unwrapped, wrapped
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls, OutputPiece

#: Pids of sessions are below it, those of actions from it on.
_ACTIONS: Final = 2**30
_FIRST_PID: Final = 2**20
_SESSION: Final = "p"
_MOST_INPUT: Final = 512 * 1024
_KNOWN: Final = 10_000
#: Statuses of ``timeout`` when it ended the program.
_ENDED_BY_LIMIT: Final = (124, 137)
#: Status of a program that SIGTERM ended.
_TERMINATED_STATUS: Final = 143
#: Outcomes that are no exit status, with the HTTP status whose code the client reads; others: 500.
OUTCOMES: Final = {Outcome.TIMEOUT: 504, Outcome.EXPIRED: 429}
_KILLED: Final = "signal: killed"
_TERMINATED: Final = "signal: terminated"
_SIGNALS: Final = {
    "SIGNAL_SIGKILL": _KILLED,
    "SIGNAL_SIGTERM": _TERMINATED,
    9: _KILLED,
    15: _TERMINATED,
}
KEEP_ALIVE: Final[Message] = {"event": {"keepalive": {}}}


class SandboxProcesses:
    """Handlers of ``process.Process``."""

    def __init__(self, port: FacadePort, homes: Homes) -> None:
        self._port = port
        self._homes = homes
        #: Sandbox and pid → action, of this process's starts; and why it was signalled.
        self._actions: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._signalled: OrderedDict[tuple[str, int], str] = OrderedDict()
        #: Actions of a sandbox that are followed here: they have not ended.
        self._followed: Counter[str] = Counter()

    async def running(self, request: HttpRequest, _: Message) -> Message:
        """List: the processes that run, not what they started."""
        sandbox = await sandbox_of(self._port, request)
        found = [
            _shown(pid, *unwrapped(session.shell)) for pid, session in await _sessions(sandbox)
        ]
        for action, program in (await _actions(sandbox)).items():
            found.append(_shown(pid_of(action), "", _words(program.command)))
        return {"processes": found}

    async def start(self, request: HttpRequest, message: Message) -> AsyncIterator[Message]:
        """Start."""
        sandbox = await sandbox_of(self._port, request)
        asked, limit = read(message, StartRequest), timeout_of(request)
        if not asked.process.cmd:
            raise InvalidRequest("process.cmd is empty: name a program")
        user = user_of(request)
        home = await self._homes.of(sandbox, user)
        cwd = resolved(asked.process.cwd or "", home)
        if asked.process.cwd:
            await _check_directory(sandbox, cwd)
        variables = {"HOME": home, "USER": user, "LOGNAME": user}
        variables |= sandbox.envs | asked.process.envs
        words = [asked.process.cmd, *asked.process.args]
        plain = asked.pty is None and not asked.stdin and not asked.tag
        if plain and not await self._is_busy(sandbox):
            # What is not kept when a follower reads it is missing for it.
            kept = {"limit_bytes": self._port.output_bytes}
            work = {"command": words, "cwd": cwd, "env": variables, "output": kept}
            members: dict[str, Any] = {**sandbox.action, "exec": work}
            with self._following(sandbox.name):
                accepted = await sandbox.native.start(members | _limits(limit))
            pid = pid_of(accepted.id)
            _remember(self._actions, (sandbox.name, pid), accepted.id)
            return self._follow(request, sandbox, accepted.id, pid)
        pid = _FIRST_PID + randbelow(_ACTIONS - _FIRST_PID)
        given = TERMINAL if asked.pty is not None else LINES if asked.stdin else NONE
        await sandbox.native.open_session(
            sandbox.name,
            name=f"{_SESSION}{pid}",
            shell=wrapped(words, given, limit, asked.tag or ""),
            pty=asked.pty is not None,
            env=variables,
            cwd=cwd,
            **({} if asked.pty is None else {"size": _size(asked.pty)}),
        )
        stream = "stdout" if asked.pty is None else "pty"
        return self._attach(sandbox, pid, stream, limit=limit, history=True)

    async def connect(self, request: HttpRequest, message: Message) -> AsyncIterator[Message]:
        """Connect: the output from now on."""
        sandbox = await sandbox_of(self._port, request)
        pid = await _selected(sandbox, read(message, ProcessRequest).process)
        action = await self._action_of(sandbox, pid)
        if action is None:
            session = await _session_of(sandbox, pid)
            stream = "pty" if session.pty else "stdout"
            return self._attach(sandbox, pid, stream, limit=None, history=False)
        position = ""
        async for event in sandbox.native.follow(action, live=False):
            if event.kind == "end":
                raise _no_process(pid)
            position = event.position
        return self._follow(request, sandbox, action, pid, position)

    async def update(self, request: HttpRequest, message: Message) -> Message:
        """Update: the size of a terminal."""
        sandbox, asked, pid = await self._session_asked(request, message)
        if asked.pty is not None:
            size = _size(asked.pty)
            with _missing(pid):
                await sandbox.native.resize(
                    sandbox.name, f"{_SESSION}{pid}", size["rows"], size["columns"]
                )
        return {}

    async def send_input(self, request: HttpRequest, message: Message) -> Message:
        """SendInput."""
        sandbox, asked, pid = await self._session_asked(request, message)
        if asked.input is None:
            raise InvalidRequest("input is missing")
        await _type(sandbox, pid, asked.input)
        return {}

    async def stream_input(self, request: HttpRequest, messages: AsyncIterator[Message]) -> Message:
        """StreamInput: each piece is typed as it arrives."""
        sandbox, pid = await sandbox_of(self._port, request), 0
        async for message in messages:
            asked = read(message, StreamedInput)
            if asked.start is not None:
                pid = await _selected(sandbox, asked.start.process)
                await self._check_input(sandbox, pid)
            elif asked.data is not None and not pid:
                raise InvalidRequest("the first message has to name the process: start")
            elif asked.data is not None:
                await _type(sandbox, pid, asked.data.input)
        return {}

    async def close_stdin(self, request: HttpRequest, message: Message) -> Message:
        """CloseStdin."""
        sandbox, _, pid = await self._session_asked(request, message)
        with _missing(pid):
            await sandbox.native.send_input(sandbox.name, f"{_SESSION}{pid}", NO_MORE)
        return {}

    async def send_signal(self, request: HttpRequest, message: Message) -> Message:
        """SendSignal."""
        sandbox, asked = await sandbox_of(self._port, request), read(message, ProcessRequest)
        reason = _SIGNALS.get(asked.signal)
        if reason is None:
            raise InvalidRequest(f"{asked.signal!r}: send SIGNAL_SIGTERM or SIGNAL_SIGKILL")
        native, pid = sandbox.native, await _selected(sandbox, asked.process)
        action = await self._action_of(sandbox, pid)
        if action is None:
            session = await _session_of(sandbox, pid)
            _remember(self._signalled, (sandbox.name, pid), reason)
            with _missing(pid):
                if reason == _TERMINATED:
                    await native.interrupt(sandbox.name, session.name, "SIGTERM")
                else:
                    await native.close_session(sandbox.name, session.name)
            return {}
        view = await native.wait(action, 0.0)
        if view.outcome is not None:
            raise _no_process(pid)
        program = (await _actions(sandbox)).get(action)
        if reason == _TERMINATED and program is not None:
            _remember(self._signalled, (sandbox.name, pid), reason)
            with suppress(NotFound):  # it has ended meanwhile
                await native.end_process(sandbox.name, program.pid, "SIGTERM")
        else:
            await native.cancel(action, reason)
        return {}

    async def _session_asked(
        self, request: HttpRequest, message: Message
    ) -> tuple[OpenSandbox, ProcessRequest, int]:
        sandbox, asked = await sandbox_of(self._port, request), read(message, ProcessRequest)
        pid = await _selected(sandbox, asked.process)
        await self._check_input(sandbox, pid)
        return sandbox, asked, pid

    async def _check_input(self, sandbox: OpenSandbox, pid: int) -> None:
        """Raise InvalidRequest for a process without input, NotFound for one that does not run."""
        if await self._action_of(sandbox, pid) is not None:
            raise InvalidRequest(f"process {pid} was started without input")

    async def _action_of(self, sandbox: OpenSandbox, pid: int) -> str | None:
        """Return the action of a process; None for that of a session. Raises NotFound."""
        if pid < _ACTIONS:
            return None
        known = self._actions.get((sandbox.name, pid))
        if known is not None:
            return known
        for program in await sandbox.native.processes(sandbox.name):
            if program.owner.startswith("act_") and pid_of(program.owner) == pid:
                return program.owner
        raise _no_process(pid)

    async def _is_busy(self, sandbox: OpenSandbox) -> bool:
        """Return whether an action runs or waits in a sandbox."""
        if self._followed[sandbox.name]:
            return True
        with self._following(sandbox.name):  # for a start beside this one
            found = await sandbox.native.trajectory(sandbox.name)
        return bool(found.live_actions)

    @contextmanager
    def _following(self, name: str) -> Iterator[None]:
        """Count an action of a sandbox meanwhile."""
        self._followed[name] += 1
        try:
            yield
        finally:
            self._followed[name] -= 1
            if not self._followed[name]:
                del self._followed[name]

    async def _follow(
        self, request: HttpRequest, sandbox: OpenSandbox, action: str, pid: int, after: str = ""
    ) -> AsyncIterator[Message]:
        """Yield the events of an action."""
        end: Message | None = None
        with self._following(sandbox.name):
            yield _event(start={"pid": pid})
            async for event in sandbox.native.follow(action, after):
                if event.kind in ("stdout", "stderr"):
                    yield _event(data={event.kind: _encoded(event.content)})
                elif event.kind == "gap":
                    yield _event(data={"stderr": _encoded(_gap(event.data.get("bytes", 0)))})
                elif event.kind == "end":
                    end = await self._end(request, event, (sandbox.name, pid))
                    break
        if end is None:
            raise BrokenStream("the output broke off")
        yield end  # not followed any more: the client may start the next process at once

    async def _end(
        self, request: HttpRequest, event: OutputPiece, process: tuple[str, int]
    ) -> Message:
        """Return the end of an action. Raises HttpError for an outcome without an exit status."""
        outcome = Outcome(event.data["outcome"])
        detail = event.data.get("detail") or str(outcome)
        code = event.data.get("exit_code")
        if outcome is Outcome.COMPLETED and code is not None:
            if code == _TERMINATED_STATUS and self._signalled.get(process) == _TERMINATED:
                return _killed(_TERMINATED)
            return _exited(code)
        if outcome is Outcome.CANCELLED:
            for reason in (_KILLED, _TERMINATED):
                if detail.startswith(reason):
                    return _killed(reason)
            await _check_alive(self._port, request)
        raise HttpError(OUTCOMES.get(outcome, 500), str(outcome), f"{outcome}: {detail}")

    async def _attach(
        self, sandbox: OpenSandbox, pid: int, stream: str, *, limit: float | None, history: bool
    ) -> AsyncIterator[Message]:
        """Yield the events of a session."""
        name = f"{_SESSION}{pid}"
        status: int | None = None
        query = {"history": str(history).lower(), "ended": "true"}
        async with sandbox.native.attach(sandbox.name, name, **query) as socket:
            yield _event(start={"pid": pid})
            try:
                async for message in socket:
                    if isinstance(message, bytes):
                        yield _event(data={stream: _encoded(message)})
                        continue
                    said = msgspec.json.decode(message)
                    if "stderr" in said:
                        yield _event(data={"stderr": _encoded(said["stderr"].encode())})
                    elif "missed" in said:
                        yield _event(data={"stderr": _encoded(_gap(said["missed"]))})
                    elif "exit_status" in said:
                        status = said["exit_status"]
            except ConnectionClosed:
                pass  # with its code for a session that has ended, else without a status
        if status is None:
            raise BrokenStream("the session broke off")
        reason = self._signalled.get((sandbox.name, pid))
        await _forget(sandbox.native, sandbox.name, name)
        if reason == _KILLED or (reason is not None and status == _TERMINATED_STATUS):
            yield _killed(reason)
        elif limit is not None and status in _ENDED_BY_LIMIT:
            raise HttpError(504, "timeout", f"the process ran for {limit:g} s")
        else:
            yield _exited(status)


def pid_of(action: str) -> int:
    """Return the pid of an action's process."""
    return _ACTIONS | (zlib.crc32(action.encode()) & (_ACTIONS - 1))


def _limits(seconds: float | None) -> dict[str, float]:
    """Return the limits of an action for the time that its client waits, which counts its queue too."""
    return {"timeout_seconds": seconds, "queue_timeout_seconds": seconds} if seconds else {}


def _pid_of_session(session: SessionFacts) -> int:
    """Return the pid of a session's process; 0 for a session that no call here opened."""
    text = session.name.removeprefix(_SESSION)
    return int(text) if text != session.name and text.isdecimal() else 0


async def _selected(sandbox: OpenSandbox, selector: Selector) -> int:
    """Return the pid of a process by its pid or its tag. Raises NotFound, InvalidRequest."""
    if selector.pid is not None:
        return selector.pid
    if not selector.tag:
        raise InvalidRequest("name the process by its pid or its tag")
    for pid, session in await _sessions(sandbox):
        if unwrapped(session.shell).tag == selector.tag:
            return pid
    raise NotFound(f"process with tag {selector.tag[:64]!r} not found")


async def _sessions(sandbox: OpenSandbox) -> list[tuple[int, SessionFacts]]:
    """Return the sessions that run processes, with their pids."""
    found = await sandbox.native.sessions(sandbox.name)
    pids = [(_pid_of_session(each), each) for each in found]
    return [(pid, each) for pid, each in pids if pid and each.state != "ended"]


async def _actions(sandbox: OpenSandbox) -> dict[str, ProgramFacts]:
    """Return the actions that run, each with its first program."""
    found: dict[str, ProgramFacts] = {}
    programs = await sandbox.native.processes(sandbox.name)
    for program in sorted(programs, key=lambda each: (each.started, each.pid)):
        if program.owner.startswith("act_") and not program.background:
            found.setdefault(program.owner, program)
    return found


async def _session_of(sandbox: OpenSandbox, pid: int) -> SessionFacts:
    with _missing(pid):
        return await sandbox.native.session(sandbox.name, f"{_SESSION}{pid}")


@contextmanager
def _missing(pid: int) -> Iterator[None]:
    """Raise NotFound of a process for a session, or an environment, that is not there."""
    try:
        yield
    except (NotFound, Conflict) as error:
        if isinstance(error, Conflict) and error.code != "no_environment":
            raise
        raise _no_process(pid) from None


async def _type(sandbox: OpenSandbox, pid: int, given: ProcessInput) -> None:
    """Type input."""
    content = given.content
    for at in range(0, len(content), _MOST_INPUT):
        sent = typed(content[at : at + _MOST_INPUT], terminal=given.pty is not None)
        with _missing(pid):
            await sandbox.native.send_input(sandbox.name, f"{_SESSION}{pid}", sent)


async def _forget(native: NativeCalls, sandbox: str, name: str) -> None:
    """Forget a session that has ended: its pid is free, and its place in the list."""
    try:
        await native.close_session(sandbox, name)
    except TangramError:  # another follower was first, or the sandbox has ended
        return


async def _check_directory(sandbox: OpenSandbox, path: str) -> None:
    """Raise InvalidRequest for a path that is no directory."""
    try:
        found = await sandbox.native.stat(sandbox.name, path)
    except NotFound:
        raise InvalidRequest(f"cwd {path!r} does not exist") from None
    if found.kind != "directory":
        raise InvalidRequest(f"cwd {path!r} is no directory")


async def _check_alive(port: FacadePort, request: HttpRequest) -> None:
    """Raise BrokenStream when the sandbox of a request has ended."""
    try:
        await sandbox_of(port, request, fresh=True)
    except HttpError as error:
        raise BrokenStream(str(error)) from None


def _size(terminal: PseudoTerminal) -> dict[str, int]:
    return {"rows": max(1, terminal.size.rows), "columns": max(1, terminal.size.cols)}


def _no_process(pid: int) -> NotFound:
    return NotFound(f"process with pid {pid} not found")


def _event(**event: Any) -> Message:
    return {"event": event}


def _exited(code: int) -> Message:
    status = f"exit status {code}"
    end = {"exitCode": code, "exited": True, "status": status}
    return _event(end=end | ({"error": status} if code else {}))


def _killed(reason: str) -> Message:
    return _event(end={"exitCode": -1, "exited": False, "status": reason, "error": reason})


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _gap(missing: int) -> bytes:
    return f"\n[tangram: {missing} bytes are missing here]\n".encode()


def _shown(pid: int, tag: str, words: Sequence[str]) -> Message:
    shown = {"pid": pid, "config": {"cmd": words[0] if words else "", "args": list(words[1:])}}
    return shown | ({"tag": tag} if tag else {})


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _remember(known: OrderedDict[tuple[str, int], str], key: tuple[str, int], value: str) -> None:
    known[key] = value
    if len(known) > _KNOWN:
        known.popitem(last=False)
