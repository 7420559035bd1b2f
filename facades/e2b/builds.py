"""Builds of templates whose steps are run: a trajectory in which they run, and the snapshot of its files.

Rules
1. The request that begins a build is answered at once; the build goes on in its web process, as task `TASK` of the
   project, and no longer than `MOST_SECONDS`.
2. ``RUN`` runs with the variables and the directory that the steps before it chose (first the home of the sandbox's
   commands), on one core. ``COPY`` is a command that moves uploaded files to their place. Another exit code than 0
   ends the build with the output of the step.
3. The snapshot is named after template and build. That of the build before is removed; sandboxes that began with it go on.
4. A build ends with its web process: the trajectory of a build that is not open any more was interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from domain.action import Outcome
from domain.errors import InvalidRequest, NotFound, TangramError
from domain.principals import Principal
from facades.e2b.paths import DEFAULT_USER, WORKSPACE
from facades.e2b.template_files import TASK, bring
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls

log = logging.getLogger(__name__)

MOST_SECONDS: Final = 3600.0
#: Home of the commands of sandboxes; in an environment without one they stay in the workspace.
_HOME: Final = f"/home/{DEFAULT_USER}"
_ENTER_HOME: Final = (
    f"mkdir -p {_HOME} 2>/dev/null; cd {_HOME} 2>/dev/null && export HOME={_HOME}; "
)
_SHOWN_CHARACTERS: Final = 2000
#: Where the files of a ``COPY`` step are until they are at their place.
_COPIED: Final = f"{WORKSPACE}/.tangram-copy"
_MODE: Final = re.compile("[0-7]{3,4}")
#: $1 folder of the files, $2 source, perhaps a pattern, $3 destination, $4 mode. The content of a directory is copied,
#: several files into a directory, one file to a name or into a directory.
_COPY: Final = """\
case $3 in /*) t=$3 ;; *) t=$PWD/$3 ;; esac
d=$1 m=$4 s=$2 many=
cd "$d" || exit
case $s in *[*?[]*) many=1 ;; esac
IFS=; set -- $s; unset IFS
[ $# -gt 1 ] && many=1
for f; do
    [ -e "$f" ] || [ -L "$f" ] || { echo "there is no $s" >&2; exit 1; }
    [ -z "$m" ] || chmod -R "$m" "$f" || exit
    if [ -d "$f" ] && [ ! -L "$f" ]; then mkdir -p "$t" && cp -a "$f/." "$t/"
    elif [ -n "$many" ] || [ -d "$t" ] || [ "${t%/}" != "$t" ]; then mkdir -p "$t" && cp -a "$f" "$t/"
    else mkdir -p "$(dirname "$t")" && cp -a "$f" "$t"; fi || exit
done
cd / && rm -rf "$d"
"""


class Step(msgspec.Struct):
    """One step of a build."""

    type: str
    args: list[str] = []
    #: Of ``COPY``: the files that were uploaded.
    files_hash: str | None = msgspec.field(default=None, name="filesHash")


class Base(NamedTuple):
    """What a sandbox begins with."""

    #: Members of its environment: an image, a snapshot, or none.
    environment: dict[str, str]
    envs: dict[str, str]


class BuildCommand(NamedTuple):
    """One command of a build."""

    command: str
    envs: dict[str, str]
    #: How an error names the step.
    shown: str
    #: Hash of the files that it copies from `_COPIED`; empty: none.
    files: str = ""


class BuildPlan(NamedTuple):
    """The commands of a build, and the variables of its sandboxes."""

    commands: tuple[BuildCommand, ...]
    envs: dict[str, str]


def plan_of(steps: Sequence[Step], envs: dict[str, str]) -> BuildPlan:
    """Return what is run for ``steps``; ``envs``: variables of the base. Raises InvalidRequest."""
    commands: list[BuildCommand] = []
    enter, envs = _ENTER_HOME, dict(envs)
    for step in steps:
        kind, first = step.type.upper(), step.args[0] if step.args else ""
        if kind == "ENV":
            envs |= dict(zip(step.args[::2], step.args[1::2], strict=False))
        elif kind == "WORKDIR":
            enter = f"mkdir -p {shlex.quote(first)} && cd {shlex.quote(first)} && "
        elif kind == "RUN":
            commands.append(BuildCommand(enter + first, dict(envs), f"RUN {first[:200]}"))
        elif kind == "COPY":
            commands.append(_copying(step, enter, dict(envs)))
        elif kind != "USER":
            raise InvalidRequest(f"the step {kind} is not run here: use RUN")
    return BuildPlan(tuple(commands), envs)


def _copying(step: Step, enter: str, envs: dict[str, str]) -> BuildCommand:
    """Return the command of a ``COPY`` step: source, destination, owner (which is ignored), mode."""
    source, target, _owner, mode = (*step.args, "", "", "", "")[:4]
    if not (source and target and step.files_hash):
        raise InvalidRequest("a COPY step has a source, a destination and filesHash")
    arguments = [_COPIED, source, target, mode if _MODE.fullmatch(mode) else ""]
    command = f"{enter}sh -c {shlex.quote(_COPY)} sh {shlex.join(arguments)}"
    return BuildCommand(command, envs, f"COPY {source[:100]} {target[:100]}", step.files_hash)


class Builds:
    """The builds that run in one web process."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port
        self._running: set[asyncio.Task[None]] = set()

    async def begin(
        self,
        request: HttpRequest,
        principal: Principal,
        name: str,
        record: dict[str, Any],
        environment: dict[str, str],
        plan: BuildPlan,
    ) -> None:
        """Run a build in the background; its end is in the record of the template."""
        native = self._port.native(_detached(request), principal)
        limited = {**environment, "ttl_seconds": MOST_SECONDS}
        await native.open(_builder(record), TASK, environment=limited)
        record |= {"status": "building", "reason": ""}
        await self._port.records.put(await native.project(), name, record)
        task = asyncio.create_task(self._built(native, name, record, plan))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def is_open(self, native: NativeCalls, record: dict[str, Any]) -> bool:
        """Return whether the trajectory of a build is open."""
        try:
            return (await native.trajectory(_builder(record))).state == "open"
        except NotFound:
            return False

    async def _built(
        self,
        native: NativeCalls,
        name: str,
        record: dict[str, Any],
        plan: BuildPlan,
    ) -> None:
        builder, before = _builder(record), record.get("snapshot")
        try:
            for command in plan.commands:
                if command.files:
                    await bring(native, command.files, builder, _COPIED)
                await _run(native, builder, command)
            taken = {"name": f"{name[:100]}.{record['build']}", "on_busy": "copy"}
            await native.call("snapshots_take", builder, body=taken)
        except TangramError as error:
            record |= {"status": "error", "reason": str(error)}
        else:
            made = {"environment": {"snapshot": taken["name"]}, "envs": plan.envs}
            record |= {"status": "ready", "snapshot": taken["name"], **made}
        try:
            await self._port.records.put(await native.project(), name, record)
            if before and record.get("snapshot") != before:
                with suppress(NotFound):
                    await native.call("snapshots_remove", before)
            with suppress(NotFound):
                await native.finish(builder)
        except TangramError as error:  # the trajectory ends with its time to live
            log.warning("the end of a build of template %s is not stored: %s", name, error)


async def _run(native: NativeCalls, builder: str, step: BuildCommand) -> None:
    """Run one step. Raises InvalidRequest with its output when it fails."""
    action = {
        "task": TASK,
        "trajectory": builder,
        "kind": "exec",
        "cost": {"cpu": 1},
        "exec": {"command": ["/bin/sh", "-c", step.command], "env": step.envs},
        "timeout_seconds": MOST_SECONDS,
    }
    view = await native.run(action, MOST_SECONDS)
    result = view.result if isinstance(view.result, dict) else {}
    if view.outcome is Outcome.COMPLETED and result.get("exit_code") == 0:
        return
    why = (
        f"exit code {result['exit_code']}" if "exit_code" in result else view.detail or view.outcome
    )
    said = (str(result.get("stdout", "")) + str(result.get("stderr", "")))[-_SHOWN_CHARACTERS:]
    raise InvalidRequest(f"the step {step.shown} failed: {why}\n{said}".strip())


def _builder(record: dict[str, Any]) -> str:
    """Return the name of the trajectory of a build."""
    return f"{TASK}-{record['build']}"


def _detached(request: HttpRequest) -> HttpRequest:
    """Return a request whose client never disconnects: the build goes on after its answer."""

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("this event is never set")

    detached = HttpRequest(request.scope, receive)
    detached.id = request.id
    return detached
