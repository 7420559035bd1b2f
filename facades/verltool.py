"""verl-tool door: the tool server that verl-tool's agent loop asks for observations.

tool server URL   http://HOST/verltool/get_observation, through ``tangram door verltool``

    POST /get_observation   actions of models by trajectory → what they observe
    GET  /health            the tools

A trajectory of the client is one of ours, ``vt-ID``, with a shell and a Python that last: both are sessions, opened by
the first action that needs them. An action is text of a model: ``<python>`` or a fenced block for the Python, ``<bash>``
or a fenced block (bash, sh, shell, terminal) for the shell. ``finish`` finishes the trajectory.

Rules
1. The order of observations is that of the actions. Actions of different trajectories run at the same time, those of
   one trajectory one after the other.
2. An action without code for a tool is not valid, and runs nothing.
3. An action that did not end by itself or by its time-out is done and not valid, so that it earns no reward: its
   observation has an ``error``. The response is 200 in any case: the client reads no status.
4. A Python that an interrupt does not stop is replaced, and its state is lost; the observation says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from contract.responses import ActionResponse
from contract.routes import Route
from domain.action import Outcome
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.principals import Principal, Scope
from facades import python_cells
from facades.door_settings import DoorSettings
from scheduler.runtime.gateway.facade import Facade, FacadePort
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpRequest,
    HttpResponse,
    problem_of,
)
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.request_parsing import decode
from scheduler.runtime.gateway.route_table import Handler

DEFAULT_TASK: Final = "verl-tool"
WORKSPACE: Final = "/workspace"
MOST_BODY_BYTES: Final = 64 * 1024 * 1024
#: Limit of one action, as of the tools of verl-tool.
TIMEOUT_SECONDS: Final = 10.0
#: Characters of an observation.
OBSERVED: Final = 64 * 1024
_MOST_TRAJECTORIES: Final = 4096

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,124}")
_BLOCKS: Final = {
    "python": (re.compile(r"<python>(.*?)</python>", re.DOTALL),
               re.compile(r"```\n?python(.*?)```", re.DOTALL)),
    "bash": (re.compile(r"<bash>(.*?)</bash>", re.DOTALL),
             re.compile(r"```\s*(?:bash|shell|sh|terminal)\b(.*?)```", re.DOTALL)),
}  # fmt: skip
_INPUT: Final = re.compile(r"```input\n(.*?)\n```", re.DOTALL)
_BOXED: Final = re.compile(r"\\boxed\{(.+?)\}", re.DOTALL)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
#: What an outcome means for the observation; any other is an error of the tool.
_OBSERVABLE: Final = {Outcome.COMPLETED, Outcome.TIMEOUT}


class ObservationRequest(msgspec.Struct):
    """Body of ``POST /get_observation``; a client that cleans up sends a bare id."""

    trajectory_ids: list[str] | str
    actions: list[str] | str
    extra_fields: list[dict[str, Any] | None] | None = None
    finish: list[bool] | None = None
    is_last_step: list[bool] | None = None


class Observation(msgspec.Struct):
    """What one action observes."""

    text: str | dict[str, str]
    done: bool = False
    valid: bool = True


_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
OBSERVE: Final = Route(
    method="POST",
    path="/verltool/get_observation",
    operation="verltool_get_observation",
    summary="Run actions of models in the environments of their trajectories",
    scope=Scope.SUBMIT,
    body=ObservationRequest,
    responses={200: _OBJECT},
    errors=(413, 422),
)
HEALTH: Final = Route(
    method="GET",
    path="/verltool/health",
    operation="verltool_health",
    summary="The tools of the door",
    scope=None,
    responses={200: _OBJECT},
)
_decoder = msgspec.json.Decoder(ObservationRequest)
_cells = Path(python_cells.__file__).read_text()


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the door's routes."""
    endpoints = VerlToolEndpoints(port)
    return {OBSERVE.operation: endpoints.observe, HEALTH.operation: endpoints.health}


class VerlToolEndpoints:
    """Handlers of ``/verltool``."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port

    async def health(self, request: HttpRequest, _: str | None) -> HttpResponse:
        """GET /health."""
        return HttpResponse(200, {"status": "healthy", "tools": [*_BLOCKS, "finish"]})

    async def observe(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """POST /get_observation."""
        asked = decode(_decoder, await request.body(MOST_BODY_BYTES))
        items = _items(asked)
        settings = DoorSettings.of(request, DEFAULT_TASK)
        native = self._port.native(request, principal)
        found: list[Observation] = [Observation("")] * len(items)

        async def one_trajectory(name: str, places: list[int]) -> None:
            tools = TrajectoryTools(native, settings, name)
            for place in places:
                found[place] = await tools.observe(*items[place][1:])

        places: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(item[0], []).append(place)
        # Errors are observations; only the end of the client, or of this process, ends them all.
        await asyncio.gather(*(one_trajectory(name, own) for name, own in places.items()))
        return HttpResponse(
            200,
            {
                "observations": [each.text for each in found],
                "dones": [each.done for each in found],
                "valids": [each.valid for each in found],
            },
        )


class TrajectoryTools:
    """The shell and the Python of one trajectory."""

    def __init__(self, native: NativeCalls, settings: DoorSettings, trajectory: str) -> None:
        self._native = native
        self._settings = settings
        self._trajectory = trajectory

    async def observe(self, action: str, extra: Mapping[str, Any]) -> Observation:
        """Return what an action observes. Raises ClientGone."""
        try:
            if extra.get("finish"):
                return await self._finish(action)
            tool, code = _parsed(action)
            if tool == "python":
                observed = await self._python(code, _stdin_of(action, extra))
            elif tool == "bash":
                observed = await self._bash(code)
            else:
                reason = {"obs": "", "invalid_reason": "no valid tool found for action"}
                return Observation(reason, valid=False)
        except ClientGone:
            raise
        except TangramError as error:
            return Observation({"obs": "", "error": str(error)}, done=True, valid=False)
        return Observation(_wrapped(action, observed.strip(" \n")[:OBSERVED]))

    async def _finish(self, action: str) -> Observation:
        """Finish the trajectory; the observation is the boxed answer, where the action has one."""
        try:
            await self._native.finish(self._trajectory)
        except NotFound:  # no action needed an environment
            pass
        boxed = _BOXED.search(action)
        text = boxed[1] if boxed else action
        return Observation(text.strip(), done=True, valid=bool(boxed) or not action)

    async def _bash(self, code: str) -> str:
        """Run a command in the shell."""
        view = await self._in_session("bash", ["bash"], {"command": [code]})
        result = view.result or {}
        ended = "" if view.outcome is Outcome.COMPLETED else _late()
        return _joined(result.get("stdout"), result.get("stderr"), ended)

    async def _python(self, code: str, stdin: str) -> str:
        """Run a cell in the Python."""
        mark = secrets.token_hex(16)
        order = {"mark": mark, "code": code, "stdin": stdin, "limit": OBSERVED}
        # ASCII: a line of any cell is one line of input.
        line = msgspec.json.encode(order).decode()
        view = await self._in_session(
            "python",
            ["python3", "-u", "-c", _cells, "serve"],
            {"command": [], "stdin": f"{line}\n", "expect": {"pattern": f"{mark}\n"}},
        )
        stdout = (view.result or {}).get("stdout") or ""
        if view.outcome is Outcome.COMPLETED and mark in stdout:
            return _cell_text(stdout.partition(f"\n{mark}")[0].rpartition("\n")[2])
        if view.outcome is Outcome.COMPLETED:  # the cell ended the program
            await self._native.close_session(self._trajectory, "python")
            return f"Python ended ({view.detail or 'without a message'}); its state is lost."
        return await self._interrupt()

    async def _interrupt(self) -> str:
        """Stop the cell that runs; what it printed until then belongs to no observation."""
        await self._native.interrupt(self._trajectory, "python")
        mark = secrets.token_hex(16)
        order = msgspec.json.encode({"mark": mark, "code": "", "stdin": "", "limit": 1}).decode()
        members = {"command": [], "stdin": f"{order}\n", "expect": {"pattern": f"{mark}\n"}}
        view = await self._run("python", members, 1.0)
        stdout = (view.result or {}).get("stdout") or ""
        if view.outcome is Outcome.COMPLETED and mark in stdout:
            first = stdout.partition("\n")[0]
            return _joined(_cell_text(first), _late())
        await self._native.close_session(self._trajectory, "python")
        return f"{_late()} Python did not stop and was replaced; its state is lost."

    async def _in_session(
        self, session: str, shell: list[str], work: dict[str, Any]
    ) -> ActionResponse:
        """Run an action in a session, which is opened if it is not open. Raises TangramError."""
        try:
            view = await self._run(session, work, TIMEOUT_SECONDS)
        except NotFound:
            await self._open(session, shell)
            view = await self._run(session, work, TIMEOUT_SECONDS)
        if view.outcome not in _OBSERVABLE:
            raise Conflict(f"{view.id}: {view.outcome}: {view.detail or 'no detail'}")
        return view

    async def _open(self, session: str, shell: list[str]) -> None:
        native, name = self._native, self._trajectory
        await native.open(name, self._settings.task, environment=self._settings.environment or None)
        with suppress(Conflict):  # an action at the same time has opened it
            await native.open_session(name, name=session, shell=shell, pty=False, cwd=WORKSPACE)

    async def _run(self, session: str, work: dict[str, Any], seconds: float) -> ActionResponse:
        return await self._native.run(
            self._settings.action(
                work["command"],
                exec={**work, "session": session, "output": {"limit_bytes": 1024 * 1024}},
                trajectory=self._trajectory,
                timeout_seconds=seconds,
                family=session,
            )
        )


def _items(asked: ObservationRequest) -> list[tuple[str, str, dict[str, Any]]]:
    """Return trajectory, action and further members of each item. Raises InvalidRequest."""
    ids = [asked.trajectory_ids] if isinstance(asked.trajectory_ids, str) else asked.trajectory_ids
    actions = [asked.actions] if isinstance(asked.actions, str) else asked.actions
    extras = [{}] * len(ids) if asked.extra_fields is None else asked.extra_fields
    finish = [False] * len(ids) if asked.finish is None else asked.finish
    for name, given in (("actions", actions), ("extra_fields", extras), ("finish", finish)):
        if len(given) != len(ids):
            raise InvalidRequest(
                f"give one for each of trajectory_ids: {len(ids)}", pointer=f"/{name}"
            )
    if len(ids) > _MOST_TRAJECTORIES:
        raise InvalidRequest(f"give at most {_MOST_TRAJECTORIES}", pointer="/trajectory_ids")
    return [
        (trajectory_of(name), action, {"finish": ends, **(extra or {})})
        for name, action, extra, ends in zip(ids, actions, extras, finish, strict=True)
    ]


def trajectory_of(name: str) -> str:
    """Return our name of a trajectory: the client's where it can be one, else a digest of it."""
    own = name if _NAME.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()
    return f"vt-{own}"


def _parsed(action: str) -> tuple[str, str]:
    """Return the tool of an action and its code: of all blocks; empty without one."""
    for tool, patterns in _BLOCKS.items():
        for pattern in patterns:
            if blocks := pattern.findall(action):
                return tool, "\n".join(block.strip() for block in blocks)
    return "", ""


def _stdin_of(action: str, extra: Mapping[str, Any]) -> str:
    given = _INPUT.search(action)
    return given[1].strip() if given else str(extra.get("stdin") or "")


def _cell_text(line: str) -> str:
    """Return the result of a cell as a terminal shows it."""
    try:
        cell = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return line
    shown = [each.get("text/plain") for each in cell["display"]]
    failed = ["".join(each["traceback"]) for each in cell["error"]]
    return _COLOURS.sub("", _joined(cell["stdout"], cell["stderr"], *shown, *failed))


def _joined(*texts: str | None) -> str:
    return "\n".join(text.strip("\n") for text in texts if text)


def _late() -> str:
    return f"Execution timed out after {TIMEOUT_SECONDS:g} seconds."


def _wrapped(action: str, text: str) -> str:
    """Return an observation in the notation of its action."""
    if "```python" in action or "```output" in action or re.search(r"```\s*(bash|sh)", action):
        closed = action.count("```") % 2 == 0
        return f"\n```output\n{text}\n```\n" if closed else f"\n{text}\n```\n"
    if "</tool_call>" in action:
        return f"\n<tool_response>\n```output\n{text}\n```\n</tool_response>\n"
    opened = action.rstrip(" \n").endswith("<output>")
    return f"\n{text}\n</output>\n" if opened else f"\n<output>\n{text}\n</output>\n"


def refusal(error: TangramError, request: HttpRequest) -> HttpResponse:
    """Return an error in the shape that FastAPI gives it, as verl-tool's server does."""
    problem = problem_of(error, request)
    return HttpResponse(problem.status, {"detail": str(error)}, headers=problem.headers)


FACADE: Final = Facade("/verltool", (OBSERVE, HEALTH), handlers, refusal, _OBJECT)
