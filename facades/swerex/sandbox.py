"""Sandbox of SWE-ReX: a trajectory, with commands outside of sessions, and files.

A trajectory is made with its first request, in the task of the door, unless it was declared over the native API:
then its task, environment and pool are as declared. ``tangram.cpu`` in the metadata of one that a door opened is the
cost of each of its commands; else a command of a session costs one core, and one outside of sessions is light
(docs/decisions/0125).

A request that is repeated with its ``X-Request-ID`` gets the result of the first one: the command runs once. A
client that disconnects cancels its command; what a session runs goes on, until it is interrupted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from posixpath import join, normpath
from typing import Any, Final

from contract.responses import ActionResponse
from domain.action import Outcome
from domain.errors import Conflict, Gone, InvalidRequest, NotFound, TangramError
from domain.ports.files import FileKind
from domain.principals import Principal
from facades.swerex import exceptions
from facades.swerex.exceptions import RexError
from facades.swerex.messages import Execute, ReadFile, WriteFile
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls

#: Kept of each output stream: its beginning and its end.
OUTPUT: Final = {"limit_bytes": 1024 * 1024}
CPU: Final = "tangram.cpu"
#: Cost of a command outside of sessions.
LIGHT: Final = 0.1
WORKSPACE: Final = "/workspace"
#: Largest file that ``read_file`` returns.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_LEAST_SECONDS: Final = 0.001
_MOST_PLACES: Final = 10_000
_MAX_KEY_LENGTH: Final = 128
#: Start of what the node, the environment's first shell or `_WRAPPER` says of a command that cannot start.
_REFUSED: Final = re.compile(r"tangram: |/\.tangram/sh: \d+: exec: ")
#: $1 directory, $2 ``merge``, $3 the PATH of the command, $4 its program, the rest the command.
_WRAPPER: Final = """\
[ -z "$2" ] || exec 2>&1
cd -- "$1" 2>/dev/null || { printf 'tangram: %s: no such directory\\n' "$1" >&2; exit 127; }
( [ -z "$3" ] || PATH=$3; command -v -- "$4" ) >/dev/null 2>&1 ||
    { printf 'tangram: %s: not found\\n' "$4" >&2; exit 127; }
shift 4
exec "$@"
"""


@dataclass(frozen=True)
class RexPlace:
    """What the door knows of a trajectory: it never changes while the trajectory is open."""

    task: str
    #: Cores of each command; None: one, or a part of one outside of sessions.
    cpu: float | None


class RexSandboxes:
    """The sandboxes of one door. Keeps what it looked up of trajectories, which may be lost."""

    def __init__(self, port: FacadePort, task: str) -> None:
        self._port = port
        self._task = task
        self._known: OrderedDict[tuple[str, str], RexPlace] = OrderedDict()

    async def of(
        self, request: HttpRequest, principal: Principal, trajectory: str, *, make: bool = True
    ) -> RexSandbox:
        """Return the sandbox of a trajectory, which is opened if it is missing and ``make``.

        The body of the request must have been read. Raises NotFound, Gone, InvalidRequest.
        """
        native = self._port.native(request, principal)
        key = await native.project(), trajectory
        place = self._known.get(key)
        if place is None:
            place = await self._look_up(native, trajectory, make)
            self._known[key] = place
            if len(self._known) > _MOST_PLACES:
                self._known.popitem(last=False)
        asked = request.header(b"x-request-id")
        usable = asked.isprintable() and 0 < len(asked) <= _MAX_KEY_LENGTH
        return RexSandbox(native, trajectory, place, f"{trajectory}/{asked}" if usable else "")

    def forget(self, project: str, trajectory: str) -> None:
        """Forget a trajectory that is finished."""
        self._known.pop((project, trajectory), None)

    async def _look_up(self, native: NativeCalls, trajectory: str, make: bool) -> RexPlace:
        try:
            found = await native.trajectory(trajectory)
        except NotFound:
            if not make:
                raise
            await native.open(trajectory, self._task)
            return RexPlace(self._task, None)
        if found.state != "open":
            raise Gone(f"trajectory {trajectory!r} is {found.state}; choose another name")
        assert isinstance(found.task, str)
        metadata = found.metadata if isinstance(found.metadata, dict) else {}
        cpu = metadata.get(CPU)
        if isinstance(cpu, bool) or not isinstance(cpu, (int, float)) or cpu <= 0:
            cpu = None
        return RexPlace(found.task, cpu)


class RexSandbox:
    """One trajectory, for one request of a client."""

    def __init__(self, native: NativeCalls, name: str, place: RexPlace, key: str) -> None:
        """``key``: names the request, so that a repetition does its work no second time; empty: none."""
        self.native = native
        self.name = name
        self.place = place
        self.key = key

    async def run(
        self, work: Mapping[str, Any], seconds: float | None, key: str = ""
    ) -> ActionResponse:
        """Run an action of kind exec; its outcome is completed or timeout. Raises RexError, HttpError."""
        cpu = 1.0 if "session" in work else LIGHT
        action: dict[str, Any] = {
            "task": self.place.task,
            "trajectory": self.name,
            "kind": "exec",
            "cost": {"cpu": self.place.cpu or cpu},
            "exec": {"output": OUTPUT, **work},
        }
        if seconds is not None:
            action["timeout_seconds"] = max(seconds, _LEAST_SECONDS)
        view = await self.native.run(action, key=key, ask_session=False)
        exceptions.check_outcome(view)
        return view

    async def execute(self, asked: Execute) -> dict[str, Any]:
        """Run a command outside of any session."""
        words = _words(asked)
        work = {"command": words}
        if asked.env is not None or asked.merge_output_streams or asked.cwd is not None:
            work = {"command": _wrapped(asked, words)}
        view = await self.run(work, asked.timeout, self.key)
        if view.outcome is Outcome.TIMEOUT:
            message = f"Timeout ({asked.timeout}s) exceeded while running command"
            raise RexError(exceptions.TIMEOUT, message)
        result = view.result
        found = {each: result[each] for each in ("stdout", "stderr", "exit_code")}
        _check_started(asked, words, found)
        if asked.check and found["exit_code"] != 0:
            message = (
                f"Command {asked.command!r} failed with exit code {found['exit_code']}. "
                f"Stdout:\n{found['stdout']!r}\nStderr:\n{found['stderr']!r}"
            )
            raise RexError(exceptions.NON_ZERO, prefixed(asked.error_msg, message))
        return found

    async def read_file(self, asked: ReadFile) -> dict[str, Any]:
        """Return a text file."""
        try:
            content = await self.native.get(self.name, plain_path(asked.path), MAX_FILE_BYTES)
        except (InvalidRequest, HttpError) as error:
            raise await self.file_error(error, asked.path) from None
        try:
            text = content.decode(asked.encoding or "utf-8", asked.errors or "strict")
        except UnicodeDecodeError as error:
            raise RexError(exceptions.UNDECODABLE, str(error)) from None
        except LookupError as error:
            raise RexError(exceptions.UNKNOWN_ENCODING, str(error)) from None
        return {"content": text.replace("\r\n", "\n").replace("\r", "\n")}

    async def write_file(self, asked: WriteFile) -> dict[str, Any]:
        """Write a text file, with the directories before it."""
        content = asked.content.encode(errors="surrogateescape")
        try:
            await self.native.put(self.name, plain_path(asked.path), content)
        except (InvalidRequest, HttpError) as error:
            raise await self.file_error(error, asked.path) from None
        return {}

    async def file_error(self, error: TangramError, path: str) -> TangramError:
        """Return what Python raises for a file that cannot be read or written."""
        if isinstance(error, NotFound):
            return _missing(path)
        if not isinstance(error, InvalidRequest) or isinstance(error, (Conflict, Gone)):
            return error
        if "ermission" in str(error) or "ermitted" in str(error):
            return RexError(exceptions.NOT_PERMITTED, f"[Errno 13] Permission denied: {path!r}")
        with suppress(TangramError):
            facts = await self.native.stat(self.name, plain_path(path))
            if facts.kind is FileKind.DIRECTORY:
                return RexError(exceptions.IS_DIRECTORY, f"[Errno 21] Is a directory: {path!r}")
        return error


def plain_path(path: str) -> str:
    """Return a path without ``..``, which native calls refuse."""
    return normpath(join(WORKSPACE, path)) if ".." in path.split("/") else path


def _words(asked: Execute) -> list[str]:
    command = asked.command
    given = [command] if isinstance(command, str) else list(command)
    if asked.shell:
        return ["/bin/sh", "-c", *given]
    if not given or not given[0]:
        raise _missing("")
    return given


def _wrapped(asked: Execute, words: Sequence[str]) -> list[str]:
    """Return the command with its directory, all its variables and one output stream."""
    command, path = list(words), ""
    if asked.env is not None:
        command = ["env", "-i", *(f"{name}={value}" for name, value in asked.env.items()), *words]
        path = asked.env.get("PATH", "")
    merge = "merge" if asked.merge_output_streams else ""
    return ["/bin/sh", "-c", _WRAPPER, "sh", asked.cwd or ".", merge, path, words[0], *command]


def _check_started(asked: Execute, words: Sequence[str], found: Mapping[str, Any]) -> None:
    """Raise FileNotFoundError, PermissionError where `subprocess.run` raises them."""
    said = found["stdout"] if asked.merge_output_streams else found["stderr"]
    if asked.shell or _REFUSED.match(said) is None:
        return
    if found["exit_code"] == 127:
        lost_directory = "directory" in said.partition("\n")[0]
        raise _missing(asked.cwd if lost_directory and asked.cwd else words[0])
    if found["exit_code"] == 126:
        raise RexError(exceptions.NOT_PERMITTED, f"[Errno 13] Permission denied: {words[0]!r}")


def _missing(path: str) -> RexError:
    return RexError(exceptions.MISSING, f"[Errno 2] No such file or directory: {path!r}")


def prefixed(prefix: str, message: str) -> str:
    """Return a message behind the one that the client gave for it."""
    return f"{prefix}: {message}" if prefix else message
