"""Tools of the Model Context Protocol that work on a trajectory, each a few native calls.

Rules
1. A URL that names a trajectory confines the tools to it and to its forks, whose names begin with its own and ``+``.
   Otherwise each call names one. One that is not open is opened; one that is finished is refused, by the native
   calls where the door remembers it as open.
2. What the model can repair (arguments, a missing file, a busy environment) is a result with ``isError``; so is a
   command that takes longer than its limit. Any other end of an action is raised as `ActionLost`: it is no exit code.
3. `run` waits: its action is cancelled when the client disconnects. `submit` does not: its action goes on.
"""

from __future__ import annotations

import base64
import inspect
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from contract.receipts import TrajectoryDetails
from contract.responses import ActionResponse
from domain.action import Outcome
from domain.errors import Conflict, InvalidRequest, NotFound, StorageFull
from domain.forks import MAX_FORKS
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.native_calls import NativeCalls

DEFAULT_TASK: Final = "mcp"
#: Between the name of a trajectory and that of its fork.
FORK_MARK: Final = "+"
#: Largest file that is read, and most of it that is shown.
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
MAX_SHOWN_CHARACTERS: Final = 256 * 1024
_SECONDS: Final = 120.0
_MOST_KNOWN: Final = 16_384

Json = dict[str, Any]
#: Project and name of a trajectory that was open when it was last looked at → its task.
KnownTasks = OrderedDict[tuple[str, str], str]
_Name = Annotated[
    str | None, Meta(description="Trajectory to work on; by default that of the URL.")
]
_Path = Annotated[
    str, Meta(description="Absolute, or relative to /workspace.", min_length=1, max_length=4096)
]
_Seconds = Annotated[float, Meta(description="Longest execution.", gt=0, le=86_400)]
_Session = Annotated[
    str | None,
    Meta(
        description="Name of a shell that lasts: it keeps its directory, variables and background programs "
        "between calls. Without it each command has a shell of its own."
    ),
]


class RunTool(msgspec.Struct, forbid_unknown_fields=True):
    """Run a bash command in the environment and return its output and exit code; or wait for a submitted action."""

    command: Annotated[str | None, Meta(description="Text for bash.")] = None
    action: Annotated[
        str | None, Meta(description="In place of a command: the action that submit returned.")
    ] = None
    cwd: Annotated[str | None, Meta(description="Directory; by default /workspace.")] = None
    session: _Session = None
    timeout_seconds: _Seconds = _SECONDS
    trajectory: _Name = None


class SubmitTool(msgspec.Struct, forbid_unknown_fields=True):
    """Start a bash command and return its action at once; it goes on. The tool run returns its output."""

    command: Annotated[str, Meta(description="Text for bash.")]
    cwd: Annotated[str | None, Meta(description="Directory; by default /workspace.")] = None
    session: _Session = None
    timeout_seconds: _Seconds = 3600.0
    trajectory: _Name = None


class ReadFileTool(msgspec.Struct, forbid_unknown_fields=True):
    """Read a file of the environment: its text, or some of its lines."""

    path: _Path
    first_line: Annotated[int, Meta(description="First line to return, from 1.", ge=1)] = 1
    lines: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Number of lines; by default all.")
    ] = None
    trajectory: _Name = None


class WriteFileTool(msgspec.Struct, forbid_unknown_fields=True):
    """Write a file of the environment, and the directories before it."""

    path: _Path
    content: str
    base64: Annotated[bool, Meta(description="The content is base64 of bytes.")] = False
    trajectory: _Name = None


class ForkTool(msgspec.Struct, forbid_unknown_fields=True):
    """Fork the trajectory: each fork begins with the files of its environment, and changes only its own."""

    count: Annotated[int, Meta(description="Number of forks.", ge=1, le=MAX_FORKS)] = 1
    trajectory: _Name = None


@dataclass(frozen=True)
class ToolSettings:
    """What the URL and the headers of a client say about the work of its tools."""

    trajectory: str | None
    #: Task of a trajectory that is opened here.
    task: str
    #: Cores of a command.
    cpu: float
    #: Image of an environment that is made here.
    image: str | None


class ActionLost(Exception):
    """An action ended without a result that is its command's."""

    def __init__(self, view: ActionResponse) -> None:
        outcome = view.outcome or Outcome.UNKNOWN
        super().__init__(f"{outcome}: {view.detail or 'no record of its end'}")
        self.data = {"outcome": str(outcome), "action": view.id}


class Tools:
    """The tools for one request of a client."""

    def __init__(self, native: NativeCalls, settings: ToolSettings, known: KnownTasks) -> None:
        self._native = native
        self._settings = settings
        self._known = known

    async def call(self, name: str, arguments: Any) -> Json:
        """Return the result of a tool. Raises KeyError for an unknown one, ActionLost, CapacityError, HttpError."""
        tool = TOOLS[name]
        try:
            given = msgspec.convert({} if arguments is None else arguments, tool.form)
            trajectory, task = await self._opened(given.trajectory)
            return await tool.work(self, given, trajectory, task)
        except (msgspec.ValidationError, InvalidRequest, StorageFull) as error:
            return _result(str(error), failed=True)
        except HttpError as error:
            if error.status >= 500 and error.status != 507:
                raise
            return _result(str(error), failed=True)

    async def _opened(self, asked: str | None) -> tuple[str, str]:
        """Return the name of an open trajectory, and its task. Raises InvalidRequest."""
        own = self._settings.trajectory
        name = asked or own
        if name is None:
            raise InvalidRequest(
                "name a trajectory, here or in the URL (/trajectories/ID/mcp)",
                pointer="/trajectory",
            )
        if own not in (None, name) and not name.startswith(f"{own}{FORK_MARK}"):
            raise NotFound(f"these tools work on trajectory {own!r} and its forks")
        key = await self._native.project(), name
        if key in self._known:
            return name, self._known[key]
        try:
            found: TrajectoryDetails = await self._native.trajectory(name)
        except NotFound:
            if own not in (None, name):
                raise
            image = self._settings.image
            environment = None if image is None else {"image": image}
            found = await self._native.open(name, self._settings.task, environment=environment)
        if found.state != "open":
            raise Conflict(f"trajectory {name!r} is {found.state}")
        self._known[key] = task = str(found.task or self._settings.task)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return name, task

    async def _run(self, given: RunTool, trajectory: str, task: str) -> Json:
        if (given.command is None) == (given.action is None):
            raise InvalidRequest("give command or action", pointer="/command")
        if given.action is not None:
            view = await self._submitted(given.action, given.timeout_seconds, trajectory)
            return _end(view) if view.outcome else _result(f"action {view.id} is {view.state}")
        members = self._command(given, given.command or "", trajectory, task)
        try:
            return _end(await self._native.run(members))
        except NotFound as error:
            await self._reopen(given.session, trajectory, error)
        return _end(await self._native.run(members))

    async def _submitted(self, action: str, seconds: float, trajectory: str) -> ActionResponse:
        """Return an action of the trajectory, at its end or after ``seconds``. Raises NotFound."""
        view = await self._native.wait(action, 0.0)
        if view.trajectory != trajectory:
            raise NotFound(f"trajectory {trajectory!r} has no action {action!r}")
        return view if view.outcome else await self._native.wait(action, seconds)

    async def _submit(self, given: SubmitTool, trajectory: str, task: str) -> Json:
        members = self._command(given, given.command, trajectory, task)
        try:
            accepted = await self._native.start(members)
        except NotFound as error:
            await self._reopen(given.session, trajectory, error)
            accepted = await self._native.start(members)
        text = f"submitted as action {accepted.id}; the tool run with this action waits for its end"
        return _result(text, action=accepted.id)

    def _command(
        self, given: RunTool | SubmitTool, command: str, trajectory: str, task: str
    ) -> Json:
        words = [command] if given.session else ["bash", "-c", command]
        work: Json = {"command": words, "session": given.session, "cwd": given.cwd}
        return {
            "kind": "exec",
            "task": task,
            "trajectory": trajectory,
            "cost": {"cpu": self._settings.cpu},
            "timeout_seconds": given.timeout_seconds,
            "exec": {name: value for name, value in work.items() if value is not None},
        }

    async def _reopen(self, session: str | None, trajectory: str, error: NotFound) -> None:
        """Open the session that refused a command because it is not there; else raise ``error``."""
        if session is None:
            raise error
        await self._native.open_session(trajectory, name=session)

    async def _read_file(self, given: ReadFileTool, trajectory: str, _: str) -> Json:
        content = await self._native.get(trajectory, given.path, MAX_FILE_BYTES)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return _blob(given.path, content)
        lines = text.splitlines(keepends=True)
        start = given.first_line - 1
        shown = "".join(lines[start : None if given.lines is None else start + given.lines])
        if len(shown) > MAX_SHOWN_CHARACTERS:
            raise InvalidRequest(
                f"{given.path} has {len(lines)} lines, and these have {len(shown)} characters: ask for fewer"
                " lines",
                pointer="/lines",
            )
        return _result(shown)

    async def _write_file(self, given: WriteFileTool, trajectory: str, _: str) -> Json:
        try:
            content = given.content.encode()
            if given.base64:
                content = base64.b64decode(content, validate=True)
        except ValueError as error:
            raise InvalidRequest(str(error), pointer="/content") from None
        await self._native.put(trajectory, given.path, content)
        return _result(f"wrote {len(content)} bytes to {given.path}")

    async def _fork(self, given: ForkTool, trajectory: str, _: str) -> Json:
        stem = f"{trajectory}{FORK_MARK}{secrets.token_hex(3)}"
        names = [f"{stem}-{number}" for number in range(given.count)]
        await self._native.fork(trajectory, names)
        return _result("\n".join(names), trajectories=names)


@dataclass(frozen=True)
class McpTool:
    """A tool: the form of its arguments, and what it does with them, the trajectory and its task."""

    form: type[RunTool | SubmitTool | ReadFileTool | WriteFileTool | ForkTool]
    work: Callable[[Tools, Any, str, str], Awaitable[Json]]
    reads_only: bool = False


TOOLS: Final[Mapping[str, McpTool]] = {
    "run": McpTool(RunTool, Tools._run),
    "read_file": McpTool(ReadFileTool, Tools._read_file, reads_only=True),
    "write_file": McpTool(WriteFileTool, Tools._write_file),
    "fork": McpTool(ForkTool, Tools._fork),
    "submit": McpTool(SubmitTool, Tools._submit),
}


def descriptions() -> list[Json]:
    """Return the tools as clients list them."""
    return [
        {
            "name": name,
            "description": inspect.getdoc(tool.form),
            "inputSchema": _schema(tool.form),
            "annotations": {"readOnlyHint": tool.reads_only, "openWorldHint": False},
        }
        for name, tool in TOOLS.items()
    ]


def _schema(form: type) -> Json:
    (schema,) = msgspec.json.schema(form)["$defs"].values()
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def _end(view: ActionResponse) -> Json:
    """Return the result of an action that is finished. Raises ActionLost."""
    result = view.result if isinstance(view.result, dict) else {}
    output = "".join(_block(result.get(name)) for name in ("stdout", "stderr"))
    if view.outcome is Outcome.TIMEOUT:
        return _result(f"{output}{view.detail or 'timeout'}", failed=True, action=view.id)
    if view.outcome is not Outcome.COMPLETED:
        raise ActionLost(view)
    code = result.get("exit_code")
    text = f"{output}[exit code {code}]" if code is not None else f"{output}[it goes on]"
    return _result(text, action=view.id, exit_code=code, truncated=bool(result.get("truncated")))


def _block(text: str | None) -> str:
    """Return an output stream that ends with a line break; a terminal writes CRLF."""
    text = (text or "").replace("\r\n", "\n")
    return text if not text or text.endswith("\n") else f"{text}\n"


def _result(text: str, *, failed: bool = False, **facts: Any) -> Json:
    meta = {f"tangram/{name}": value for name, value in facts.items()}
    more = {"_meta": meta} if meta else {}
    return {"content": [{"type": "text", "text": text}], "isError": failed, **more}


def _blob(path: str, content: bytes) -> Json:
    """Return a file that is no text."""
    if len(content) > MAX_SHOWN_CHARACTERS:
        raise InvalidRequest(f"{path} is no text, and has {len(content)} bytes", pointer="/path")
    uri = f"file://{path if path.startswith('/') else f'/workspace/{path}'}"
    blob = {"uri": uri, "mimeType": "application/octet-stream"}
    blob["blob"] = base64.b64encode(content).decode()
    return {"content": [{"type": "resource", "resource": blob}], "isError": False}
