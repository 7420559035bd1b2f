"""Run of one request: its environment, the commands in it, and the files that go in and out.

A short program without files is one action without a trajectory, in an environment of its own that leaves nothing
behind. Everything else has a trajectory of its own for the time of the request; it is finished whatever happens,
and its time to live ends it when the web process does not.

A command is granted before the client's patience is over, or expires and is answered 504, which clients repeat
(`Run.execute`). What follows a command that was started is never answered 504.
"""

from __future__ import annotations

import asyncio
import base64
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from contract.responses import ActionResponse
from domain.action import Outcome
from domain.errors import InvalidRequest, TangramError
from facades.door_settings import DoorSettings
from facades.sandboxfusion.languages import missing_tool
from scheduler.runtime.gateway.http import ClientGone, HttpError
from scheduler.runtime.gateway.native_calls import NativeCalls

#: SandboxFusion keeps so much of the beginning of each stream.
OUTPUT_BYTES: Final = 1024 * 1024
#: Most that the fetched files of a request may have together.
FETCHED_BYTES: Final = 64 * 1024 * 1024
#: Clients as verl give up so long after the time-outs that they ask for; 2 s of these are for the answer.
PATIENCE_SECONDS: Final = 8.0
#: Time to live of an environment beyond all time-outs.
_SPARE_SECONDS: Final = 300.0
_LEAST_SECONDS: Final = 0.001

#: Status of a command by the outcome of its action; any other is a failure of the sandbox.
STATUS: Final = {Outcome.COMPLETED: "Finished", Outcome.TIMEOUT: "TimeLimitExceeded"}
ERROR: Final = "Error"


class Run:
    """The commands of one request."""

    def __init__(
        self, native: NativeCalls, settings: DoorSettings, trajectory: str | None, seconds: float
    ) -> None:
        self._native = native
        self._settings = settings
        self._trajectory = trajectory
        self._environment = {
            "ttl_seconds": seconds + PATIENCE_SECONDS + _SPARE_SECONDS,
            **settings.environment,
        }
        #: Time at which the client gives up, on the clock of the event loop.
        self._deadline = asyncio.get_running_loop().time() + seconds + PATIENCE_SECONDS
        self._started = False
        #: Ends the message of a toolchain that is missing; no program can print it by chance.
        self.mark = secrets.token_hex(8)

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files: relative paths below the workspace, absolute ones anywhere in the environment."""
        assert self._trajectory is not None
        name, native = self._trajectory, self._native
        await native.open(name, self._settings.task, environment=self._environment)
        inside = {path: content for path, content in files.items() if not path.startswith("/")}
        if inside:
            await native.unpack(name, "/workspace", _archive(inside))
        for path in files.keys() - inside.keys():
            await native.put(name, path, files[path])

    async def execute(
        self, command: list[str], seconds: float, *, family: str, stdin: str | None = None
    ) -> dict[str, Any]:
        """Run a command for ``seconds`` at most, and return its result in the words of SandboxFusion.

        Raises HttpError 504 when the first command was not granted in time, ClientGone; and, for the first
        command alone, what a submission raises.
        """
        left = self._deadline - asyncio.get_running_loop().time() - seconds
        members = self._settings.action(
            command,
            exec={"stdin": stdin, "output": {"limit_bytes": OUTPUT_BYTES, "keep": "head"}},
            environment=self._environment,
            family=family[:128],
            timeout_seconds=max(seconds, _LEAST_SECONDS),
            queue_timeout_seconds=max(left, 1.0),
            # A request that has begun is finished before the next one is begun.
            priority=1 if self._started else 0,
        )
        if self._trajectory is not None:
            members["trajectory"] = self._trajectory
        try:
            view = await self._native.run(members)
        except ClientGone:
            raise
        except TangramError as error:
            if not self._started:
                raise
            return _failed(f"the request could not go on: {error}")
        if view.outcome is Outcome.EXPIRED and not self._started:
            raise HttpError(
                504, "expired", f"no cores were free in time; {view.id} was not started"
            )
        self._started = True
        return self._result(view)

    async def fetch(self, paths: Iterable[str]) -> tuple[dict[str, str], str]:
        """Return the files that exist, as base64, and a message about those that are too large."""
        assert self._trajectory is not None
        found, left, message = {}, FETCHED_BYTES, ""
        for path in paths:
            try:
                content = await self._native.get(self._trajectory, path, left)
            except InvalidRequest:  # missing, a directory, or no path of an environment
                continue
            except HttpError as error:
                if error.status != 413:
                    raise
                message = f"{path} is left out: fetched files have at most {FETCHED_BYTES} bytes"
                continue
            left -= len(content)
            found[path] = base64.b64encode(content).decode()
        return found, message

    async def content(self, path: str) -> bytes | None:
        """Return a file; None when it is missing or cannot be read. Raises ClientGone."""
        assert self._trajectory is not None
        try:
            return await self._native.get(self._trajectory, path, FETCHED_BYTES)
        except ClientGone:
            raise
        except TangramError:
            return None

    def _result(self, view: ActionResponse) -> dict[str, Any]:
        """Return the result of a command."""
        result = view.result if isinstance(view.result, dict) else {}
        stdout, stderr = result.get("stdout") or "", result.get("stderr") or ""
        status = STATUS.get(view.outcome or Outcome.UNKNOWN, ERROR)
        code = result.get("exit_code") if status == "Finished" else None
        lacking = missing_tool(self.mark, code, stderr)
        if lacking is not None:
            image = self._environment.get("image")
            where = f"image {image!r}" if image else "the default environment"
            status, stderr = ERROR, f"{where} has no {lacking}: choose an image that has it"
        elif status == ERROR:
            stderr = f"{view.id}: {view.outcome}: {view.detail or 'no detail'}"
        return {
            "status": status,
            "execution_time": None if view.timing is None else view.timing.execution_seconds,
            "return_code": code if status == "Finished" else None,
            "stdout": _head(stdout, OUTPUT_BYTES) if result.get("truncated") else stdout,
            "stderr": _head(stderr, OUTPUT_BYTES) if result.get("truncated") else stderr,
        }


@asynccontextmanager
async def opened(
    native: NativeCalls, settings: DoorSettings, seconds: float, *, alone: bool
) -> AsyncIterator[Run]:
    """Begin a run whose time-outs are ``seconds`` in all; ``alone``: one command, and no files."""
    name = None if alone else f"sandboxfusion-{secrets.token_hex(8)}"
    try:
        yield Run(native, settings, name, seconds)
    finally:
        if name is not None:
            await asyncio.shield(_finish(native, name))


async def _finish(native: NativeCalls, name: str) -> None:
    try:
        await native.finish(name)
    except TangramError:  # never opened, or out of reach: its time to live ends it
        pass


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _failed(message: str) -> dict[str, Any]:
    """Return the result of a command that the sandbox could not run."""
    return {
        "status": ERROR, "execution_time": None, "return_code": None, "stdout": "", "stderr": message,
    }  # fmt: skip


def _head(text: str, limit_bytes: int) -> str:
    """Return the beginning of a text, without the mark of what is missing behind it."""
    return text.encode()[:limit_bytes].decode(errors="ignore")
