"""Sessions of the environments of one node: opened, found, closed, and taken over from a dead worker.

Each session has a folder in the control folder of its environment: the scripts, the pipes, and its record. A
record says which processes are the session's; it is on disk before the session is returned. A session that has
ended keeps its record, so that requests are answered with its exit status.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import Conflict, InvalidRequest, NotFound, Unavailable
from domain.ports.sessions import SessionSpec, WindowSize
from managers.cpu.environment.protocol import (
    CONTROL,
    SESSION_OWNER,
    EnvironmentLost,
    InitCommand,
    LivingEnvironment,
)
from managers.cpu.sessions import process_looks
from managers.cpu.sessions.session import Identity, LiveSession
from managers.cpu.sessions.shells import (
    ANSWER,
    GO,
    KEEPER,
    KEEPER_FILE,
    NEXT,
    RC,
    STREAMS,
    SessionShell,
)
from managers.cpu.sessions.state import SessionPhase

FOLDER: Final = "sessions"
_RECORD: Final = "record.json"
#: Longest start of a shell: a machine under load.
START_SECONDS: Final = 20.0
#: Wait after SIGHUP for a program that is closed.
_CLOSE_SECONDS: Final = 0.5
#: Longest wait for a keeper that was dismissed.
_KEEPER_SECONDS: Final = 5.0
#: Wait for the first answer of a shell that is taken over; one that runs a command answers later.
_ADOPT_SECONDS: Final = 0.1
MOST_SESSIONS: Final = 64
_PROBLEMS: Final = {
    "missing": "{0!r} is not a program of this environment",
    "nodirectory": "its directory cannot be entered",
    "nosetsid": "this environment has no program setsid, which a session needs",
    "noterminal": "this environment has no /dev/ptmx; set pty to false",
}


class SessionRecord(msgspec.Struct, omit_defaults=True):
    """What a later worker needs of a session."""

    name: str
    shell: tuple[str, ...]
    pty: bool
    size: WindowSize
    #: Processes as (pid, ticks since boot): of the keeper, and of the program once it runs.
    keeper: tuple[int, int]
    program: tuple[int, int] | None = None
    exit_status: int | None = None


class SessionHost:
    """The sessions of one node worker."""

    def __init__(self, control: str = CONTROL) -> None:
        """``control``: the control folder as programs of the environments see it."""
        self.control = control
        self._sessions: dict[str, dict[str, LiveSession]] = {}
        self._records: dict[tuple[str, str], SessionRecord] = {}
        self._opening: set[tuple[str, str]] = set()

    def of(self, environment: str, name: str) -> LiveSession:
        """Return a session, perhaps an ended one. Raises NotFound."""
        found = self._sessions.get(environment, {}).get(name)
        if found is None:
            raise NotFound(f"there is no session {name!r}; open it first")
        return found

    def all(self, environment: str) -> list[LiveSession]:
        """Return the sessions of an environment, ended ones too, in order of their opening."""
        return list(self._sessions.get(environment, {}).values())

    def idle(self, environment: str) -> list[LiveSession]:
        """Return the sessions of an environment that run no command."""
        return [each for each in self.all(environment) if each.state.phase is SessionPhase.IDLE]

    def idle_shells(self, environment: str) -> set[int]:
        """Return the host ids of shells of idle sessions, and of all keepers."""
        keepers = {
            self.record(environment, each.state.name).keeper[0] for each in self.all(environment)
        }
        idle = self.idle(environment)
        return keepers | {pid for each in idle for pid in each.processes(shell_only=True)}

    def record(self, environment: str, name: str) -> SessionRecord:
        """Return the record of a session that `of` returns."""
        return self._records[environment, name]

    async def open(
        self,
        environment: LivingEnvironment,
        spec: SessionSpec,
        variables: Mapping[str, str],
        tag: int = 0,
    ) -> LiveSession:
        """Open a session. ``variables``: those of every command in the environment; ``tag``: of its processes.

        Raises Conflict, InvalidRequest (a program that is missing or is no shell), Unavailable, OSError.
        """
        key = environment.name, spec.name
        self._check_room(key)
        self._opening.add(key)
        try:
            session = await self._start(environment, spec, variables, tag)
        finally:
            self._opening.discard(key)
        self._sessions.setdefault(environment.name, {})[spec.name] = session
        return session

    async def close(self, environment: str, name: str) -> None:
        """End the program of a session and its foreground processes, and forget it. Raises NotFound."""
        session = self.of(environment, name)
        keeper = Identity(*self.record(environment, name).keeper)
        await self._end(session)
        self._drop(environment, name)
        # Until it has ended, it is a program of the environment: a fork would be refused.
        await _until_ended(keeper)

    def forget(self, environment: str) -> None:
        """Forget the sessions of an environment that has ended."""
        for name in list(self._sessions.get(environment, {})):
            self._drop(environment, name)
        self._sessions.pop(environment, None)

    async def adopt(self, environment: LivingEnvironment) -> list[LiveSession]:
        """Take over what a dead worker left; sessions whose keeper has ended are recorded as ended."""
        folders = sorted((environment.control / FOLDER).glob(f"*/{_RECORD}"))
        for place in folders:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                record = msgspec.json.decode(place.read_bytes(), type=SessionRecord)
                session = await self._adopt(environment, place.parent, record)
                self._sessions.setdefault(environment.name, {})[record.name] = session
        return self.all(environment.name)

    def release(self) -> None:
        """Close all descriptors; the sessions live on for the next worker."""
        for environment, sessions in self._sessions.items():
            for session in sessions.values():
                session.on_end = None
                if session.state.phase is SessionPhase.ENDED:
                    self._ended(environment, session)  # heard, and perhaps not recorded yet
                session.close()
        self._sessions.clear()

    def _check_room(self, key: tuple[str, str]) -> None:
        environment, name = key
        present = self._sessions.get(environment, {})
        if key in self._opening or (
            name in present and present[name].state.phase is not SessionPhase.ENDED
        ):
            raise Conflict(f"session {name!r} is open already", pointer="/name")
        ended = [each for each in present if present[each].state.phase is SessionPhase.ENDED]
        while len(present) >= MOST_SESSIONS and ended:
            self._drop(environment, ended.pop(0))
        if len(present) >= MOST_SESSIONS:
            raise Conflict(f"an environment has at most {MOST_SESSIONS} sessions: close one")
        if name in present:
            self._drop(environment, name)

    async def _start(
        self,
        environment: LivingEnvironment,
        spec: SessionSpec,
        variables: Mapping[str, str],
        tag: int,
    ) -> LiveSession:
        shell = SessionShell.of(spec.shell)
        here = f"{self.control}/{FOLDER}/{spec.name}"
        folder = environment.control / FOLDER / spec.name
        _make_folder(folder, shell.rc(here), environment.uid)
        session = LiveSession(spec.name, shell, folder, pty=spec.pty, size=spec.size)
        session.on_end = lambda ended: self._ended(environment.name, ended)
        given = {**variables, **spec.env}
        command = InitCommand(
            tuple(shell.command(here, spec.cwd, pty=spec.pty)),
            env=shell.variables(here, pty=spec.pty, given=given),
            cwd="/",
            tag=tag,
            owner=f"{SESSION_OWNER}{spec.name}",
        )
        try:
            keeper = (await environment.start(command)).pid
            record = self._records[environment.name, spec.name] = SessionRecord(
                spec.name, spec.shell, spec.pty, spec.size, _named(keeper)
            )
            async with asyncio.timeout(START_SECONDS):
                await self._begin(session, keeper)
                await _ready(session)
            if session.shell is not None:  # None: the program ended before it was found
                record.program = session.shell.pid, session.shell.started
            _store(folder, record)
        except BaseException as error:
            await self._end(session)
            session.close()
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, TimeoutError):
                raise Unavailable(
                    f"{spec.shell[0]!r} did not start in {START_SECONDS:g} s"
                ) from None
            if isinstance(error, (EnvironmentLost, ProcessLookupError)):
                raise Unavailable(f"the environment does not start it: {error}") from None
            raise
        return session

    async def _begin(self, session: LiveSession, keeper: int) -> None:
        session.watch_keeper(keeper)
        await _said(session, "keeping")
        session.connect()
        session.go()
        await _said(session, "begun")
        for pid in process_looks.children(keeper):
            with contextlib.suppress(ProcessLookupError):  # it ended at once, as its answer says
                session.recognise(pid)

    async def _adopt(
        self, environment: LivingEnvironment, folder: Path, record: SessionRecord
    ) -> LiveSession:
        shell = SessionShell.of(record.shell)
        self._records[environment.name, record.name] = record
        session = LiveSession(
            record.name,
            shell,
            folder,
            pty=record.pty,
            size=record.size,
        )
        keeper = Identity(*record.keeper)
        if record.exit_status is not None or record.program is None or not keeper.alive:
            session.state.end(SIGHUP_STATUS if record.exit_status is None else record.exit_status)
            session.close()
            return session
        session.on_end = lambda ended: self._ended(environment.name, ended)
        session.state.adopt()
        session.watch_keeper(keeper.pid)
        session.connect()
        with contextlib.suppress(ProcessLookupError):
            session.recognise(record.program[0])
            session.keep_image()
        if shell.takes_commands:
            session.ask()
            with contextlib.suppress(TimeoutError), session.watched() as changed:
                async with asyncio.timeout(_ADOPT_SECONDS):
                    while session.state.phase is SessionPhase.BUSY:
                        await changed.wait()
                        changed.clear()
        return session

    async def _end(self, session: LiveSession) -> None:
        """Hang up; after a while kill what is left of the program and its foreground."""
        if session.state.phase is SessionPhase.ENDED:
            return
        with session.watched() as changed:
            for number in (signal.SIGHUP, signal.SIGKILL):
                session.hang_up(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_SECONDS):
                        while not session.over:
                            await changed.wait()
                            changed.clear()

    def _ended(self, environment: str, session: LiveSession) -> None:
        record = self._records.get((environment, session.state.name))
        if record is not None:
            record.exit_status = session.state.exit_status
            with contextlib.suppress(OSError):
                _store(session.folder, record)
        session.dismiss()
        session.close()

    def _drop(self, environment: str, name: str) -> None:
        session = self._sessions.get(environment, {}).pop(name, None)
        self._records.pop((environment, name), None)
        if session is not None:
            session.on_end = None
            session.dismiss()
            session.close()
            shutil.rmtree(session.folder, ignore_errors=True)


#: Status of a session whose end was not seen: its terminal hung up.
SIGHUP_STATUS: Final = 128 + signal.SIGHUP


async def _until_ended(keeper: Identity) -> None:
    """Wait for the end of a keeper that was dismissed, up to `_KEEPER_SECONDS`."""
    try:
        handle = os.pidfd_open(keeper.pid) if keeper.alive else -1
    except ProcessLookupError:
        return
    if handle < 0:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KEEPER_SECONDS):
                await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _said(session: LiveSession, word: str) -> None:
    """Wait for a word of the keeper. Raises InvalidRequest when the program cannot be started."""
    answer = await session.keeper_says()
    if answer.word == word:
        return
    program = session.state.shell.words[0]
    problem = _PROBLEMS.get(answer.word)
    if problem is not None:
        pointer = "/cwd" if answer.word == "nodirectory" else "/shell"
        raise InvalidRequest(problem.format(program), pointer=pointer, code="no_shell")
    raise Unavailable(
        f"the keeper of session {session.state.name!r} ended before its program began"
    )


async def _ready(session: LiveSession) -> None:
    """Wait until a shell takes commands. Raises InvalidRequest for a program that is none."""
    state = session.state
    if not state.shell.takes_commands:
        if state.phase is SessionPhase.STARTING:  # it may have ended already
            state.phase = SessionPhase.RUNNING
        return
    with session.watched() as changed:
        while state.phase is SessionPhase.STARTING:
            await changed.wait()
            changed.clear()
    if state.phase is SessionPhase.ENDED:
        raise InvalidRequest(
            f"{state.shell.words[0]!r} ended with status {state.exit_status} before it took a command: it is"
            " no shell, or cannot run here",
            pointer="/shell",
            code="no_shell",
        )
    session.begin()


def _named(pid: int) -> tuple[int, int]:
    identity = Identity.of(pid)
    return identity.pid, identity.started


def _make_folder(folder: Path, rc: str, uid: int | None) -> None:
    """Make the scripts and pipes of a new session; programs of its environment may open the pipes."""
    folder.parent.mkdir(mode=0o755, exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o755)
    for name, text in ((KEEPER_FILE, KEEPER), (RC, rc)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    for name in (ANSWER, NEXT, GO, *STREAMS):
        os.mkfifo(folder / name, 0o600)
        assert stat.S_ISFIFO(os.lstat(folder / name).st_mode)
        if uid is not None:
            os.chown(folder / name, uid, uid, follow_symlinks=False)


def _store(folder: Path, record: SessionRecord) -> None:
    draft = folder / f"{_RECORD}.new"
    draft.write_bytes(msgspec.json.encode(record))
    draft.chmod(0o600)
    draft.replace(folder / _RECORD)
