"""Code interpreter of E2B: contexts whose variables last between executions.

A context is a session of `rollout.agent.programs.kernel_program` in the environment, which runs cells with IPython where it is installed. An
execution is an action in that session, so it gets cores; while another action runs in the sandbox, it runs on the
shared cores. Events are lines of JSON, on the wire as in the session.

Rules
1. The words of a session tell its language and directory; no other record of a context is kept. The context
   ``python`` is there from the beginning, and starts with its first execution.
2. A client that disconnects interrupts its execution; the context goes on with its variables.
3. An error of the code is an event. Any other end is an HTTP error, or breaks the response off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec

from domain.action import Outcome
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.ports.sessions import SessionFacts
from facades.e2b.connect import BrokenStream, Message, read
from facades.e2b.paths import DEFAULT_USER, Homes, resolved
from facades.e2b.process import OUTCOMES
from facades.e2b.sandbox import OpenSandbox, sandbox_of
from rollout.agent import programs
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    until_gone,
)

_PREFIX: Final = "k-"
#: The context of executions that name none.
_DEFAULT: Final = "python"
_LANGUAGES: Final = frozenset({"", "python", "python3"})
_KERNEL: Final = Path(programs.__file__).with_name("kernel_program.py")
_MOST_BYTES: Final = 1024 * 1024


class ExecutionRequest(msgspec.Struct):
    """Body of ``POST /execute``."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class ContextRequest(msgspec.Struct):
    """Body of ``POST /contexts``."""

    language: str | None = None
    cwd: str | None = None


_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Interpreter:
    """Handlers of ``/execute`` and ``/contexts``."""

    def __init__(self, port: FacadePort, homes: Homes) -> None:
        self._port = port
        self._homes = homes
        self._program = ""

    async def execute(self, request: HttpRequest, _: str | None, send: Send) -> None:
        """POST /execute: the events of one execution, as they occur."""
        sandbox = await sandbox_of(self._port, request)
        asked = read(await _body(request), ExecutionRequest)
        _check_language(asked.language)
        name = await self._opened(sandbox, asked.context_id or _DEFAULT)
        mark = token_hex(8)
        line = msgspec.json.encode({"id": mark, "code": asked.code, "envs": asked.env_vars or {}})
        if len(line) >= _MOST_BYTES:
            raise HttpError(413, "too_large", f"code is larger than {_MOST_BYTES} bytes")
        found = await sandbox.native.trajectory(sandbox.name)
        action = ""
        if found.live_actions:
            pieces = self._beside(sandbox, name, line + b"\n")
        else:
            work = {
                "command": [],
                "session": name,
                "stdin": line.decode() + "\n",
                "expect": {"pattern": f'"end": "{mark}"'},
            }
            action = (await sandbox.native.start({**sandbox.action, "exec": work})).id
            pieces = self._granted(sandbox, action)
        try:
            await until_gone(request, _send_events(pieces, mark, request, send))
        except (ClientGone, asyncio.CancelledError):
            await asyncio.shield(_interrupt(sandbox, name, action))
            raise

    async def contexts(self, request: HttpRequest, _: str | None) -> HttpResponse:
        """GET /contexts."""
        sandbox = await sandbox_of(self._port, request)
        found = {_DEFAULT: await self._default(sandbox)}
        for each in await _kernels(sandbox):
            found[each.name.removeprefix(_PREFIX)] = _context(each)
        return HttpResponse(200, [*found.values()])

    async def create(self, request: HttpRequest, _: str | None) -> HttpResponse:
        """POST /contexts."""
        sandbox = await sandbox_of(self._port, request)
        asked = read(await _body(request), ContextRequest)
        _check_language(asked.language)
        home = await self._homes.of(sandbox, DEFAULT_USER)
        cwd = resolved(asked.cwd or "", home)
        await sandbox.native.make_directory(sandbox.name, cwd)
        return HttpResponse(201, _context(await self._open(sandbox, token_hex(8), cwd)))

    async def remove(self, request: HttpRequest, _: str | None, context: str) -> HttpResponse:
        """DELETE /contexts/{id}."""
        sandbox = await sandbox_of(self._port, request)
        session = await _kernel(sandbox, context)
        await sandbox.native.close_session(sandbox.name, session.name)
        return HttpResponse(204)

    async def restart(self, request: HttpRequest, _: str | None, context: str) -> HttpResponse:
        """POST /contexts/{id}/restart: the same context without its variables."""
        sandbox = await sandbox_of(self._port, request)
        await request.body(_MOST_BYTES)
        session = await _kernel(sandbox, context)
        await sandbox.native.close_session(sandbox.name, session.name)
        opened = await self._open(sandbox, context, session.shell[-1])
        return HttpResponse(200, _context(opened))

    async def _default(self, sandbox: OpenSandbox) -> Message:
        home = await self._homes.of(sandbox, DEFAULT_USER)
        return {"id": _DEFAULT, "language": "python", "cwd": home}

    async def _opened(self, sandbox: OpenSandbox, context: str) -> str:
        """Return the session of a context, which the default one may open. Raises NotFound."""
        for each in await _kernels(sandbox):
            if each.name == f"{_PREFIX}{context}":
                return each.name
        if context != _DEFAULT:
            raise _no_context(context)
        try:
            home = await self._homes.of(sandbox, DEFAULT_USER)
            return (await self._open(sandbox, context, home)).name
        except Conflict:  # opened meanwhile
            return f"{_PREFIX}{context}"

    async def _open(self, sandbox: OpenSandbox, context: str, cwd: str) -> SessionFacts:
        if not self._program:
            self._program = await asyncio.to_thread(_KERNEL.read_text)
        home = await self._homes.of(sandbox, DEFAULT_USER)
        return await sandbox.native.open_session(
            sandbox.name,
            name=f"{_PREFIX}{context}",
            shell=["python3", "-u", "-c", self._program, "python", cwd],
            pty=False,
            cwd=cwd,
            env={"HOME": home, "USER": DEFAULT_USER} | sandbox.envs,
        )

    async def _granted(self, sandbox: OpenSandbox, action: str) -> AsyncIterator[bytes]:
        """Yield what the kernel writes during an action."""
        async for event in sandbox.native.follow(action):
            if event.kind == "stdout":
                yield event.content
            elif event.kind == "end" and event.data["outcome"] != Outcome.COMPLETED:
                outcome = Outcome(event.data["outcome"])
                detail = f"{outcome}: {event.data.get('detail') or 'no detail'}"
                raise HttpError(OUTCOMES.get(outcome, 500), str(outcome), detail)

    async def _beside(self, sandbox: OpenSandbox, name: str, line: bytes) -> AsyncIterator[bytes]:
        """Yield what the kernel writes after a line was typed."""
        async with sandbox.native.attach(sandbox.name, name, history="false") as socket:
            await sandbox.native.send_input(sandbox.name, name, line)
            async for message in socket:
                if isinstance(message, bytes):
                    yield message


async def _send_events(
    pieces: AsyncIterator[bytes], mark: str, request: HttpRequest, send: Send
) -> None:
    """Send the events of the execution ``mark``. Raises BrokenStream when its end does not come."""
    begun, unread = False, b""
    async for piece in pieces:
        *lines, unread = (unread + piece).split(b"\n")
        events = [event for line in lines if (event := _event(line, mark)) is not None]
        # The end is matched before its line is complete.
        ended = f'"end": "{mark}"'.encode() in unread or any("end" in each for each in events)
        shown = b"".join(msgspec.json.encode(each) + b"\n" for each in events if "end" not in each)
        if not begun and (shown or ended):
            begun = True
            headers = [
                (b"content-type", b"application/x-ndjson"),
                (b"x-request-id", request.id.encode("latin-1")),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        if shown:
            await send({"type": "http.response.body", "body": shown, "more_body": True})
        if ended:
            await send({"type": "http.response.body", "body": b""})
            return
    if begun:
        raise BrokenStream("the context ended")
    raise HttpError(500, "context_ended", "the context ended: restart it, or create another one")


def _event(line: bytes, mark: str) -> Message | None:
    """Return an event of the execution ``mark``; None for any other line."""
    try:
        event = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if event.get("end") == mark:
        return event
    return event if event.pop("id", None) == mark else None


async def _interrupt(sandbox: OpenSandbox, name: str, action: str) -> None:
    try:
        if action:
            await sandbox.native.cancel(action, "its client disconnected")
        await sandbox.native.interrupt(sandbox.name, name)
    except TangramError:  # the sandbox has ended
        return


async def _kernels(sandbox: OpenSandbox) -> list[SessionFacts]:
    return [
        each
        for each in await sandbox.native.sessions(sandbox.name)
        if each.name.startswith(_PREFIX) and each.state != "ended"
    ]


async def _kernel(sandbox: OpenSandbox, context: str) -> SessionFacts:
    for each in await _kernels(sandbox):
        if each.name == f"{_PREFIX}{context}":
            return each
    raise _no_context(context)


def _context(session: SessionFacts) -> Message:
    language, cwd = session.shell[-2:]
    return {"id": session.name.removeprefix(_PREFIX), "language": language, "cwd": cwd}


def _no_context(context: str) -> NotFound:
    return NotFound(f"Context {context[:64]} not found")


def _check_language(language: str | None) -> None:
    if (language or "").lower() not in _LANGUAGES:
        raise InvalidRequest(
            f"language {language!r} has no kernel here: use python, or run a command"
        )


async def _body(request: HttpRequest) -> Message:
    try:
        return _decode(await request.body() or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON object: {error}") from None
