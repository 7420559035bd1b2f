"""Sessions over the node door: what needs no granted core, and attached terminals.

An attached terminal is a websocket. Binary messages are its input and output; text messages are JSON objects with
one member each: from the terminal ``{"resize": {"rows", "columns"}}`` and ``{"interrupt": true}``, to it
``{"stderr": text}`` of a session without a terminal, ``{"missed": bytes}``, and at the end ``{"exit_status": n}``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from signal import Signals
from typing import Final

import msgspec

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.ports import Driver
from domain.ports.sessions import (
    SessionAttachment,
    SessionKeeping,
    SessionOrder,
    SessionServing,
    WindowSize,
)
from scheduler.runtime.asgi_socket import AsgiSocket
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes

_SPEC_BYTES: Final = 1024 * 1024
_INPUT_BYTES: Final = 1024 * 1024
_JSON: Final = {"Content-Type": "application/json"}
#: Close code of a terminal whose session has ended.
ENDED: Final = 4000
_ONE: Final = "/sessions/{session}"

_orders = msgspec.json.Decoder(SessionOrder)
_sizes = msgspec.json.Decoder(WindowSize)


class _TerminalRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text message of an attached terminal."""

    resize: WindowSize | None = None
    interrupt: bool = False


_requests = msgspec.json.Decoder(_TerminalRequest)


def add_routes(routes: DoorRoutes, drivers: Sequence[Driver]) -> None:
    """Add the routes of sessions."""
    keeping = [driver for driver in drivers if isinstance(driver, SessionKeeping)]
    if not keeping:
        return
    served = SessionRoutes(keeping[0])
    routes.add("POST", "/sessions", served.open)
    routes.add("GET", "/sessions", served.all)
    routes.add("GET", _ONE, served.get, short=True)
    routes.add("DELETE", _ONE, served.close)
    routes.add("POST", f"{_ONE}/input", served.send)
    routes.add("POST", f"{_ONE}/interrupt", served.interrupt)
    routes.add("POST", f"{_ONE}/resize", served.resize)
    routes.add_socket(f"{_ONE}/attach", served.attach)


class SessionRoutes:
    """Handlers of sessions."""

    def __init__(self, driver: SessionKeeping) -> None:
        self._driver = driver

    @property
    def _sessions(self) -> SessionServing:
        return self._driver.sessions

    async def open(self, request: DoorRequest) -> DoorResponse:
        """Open a session; the body is a `SessionOrder`."""
        order = _orders.decode(await request.body(_SPEC_BYTES))
        sessions = self._sessions
        opened = await sessions.open(request.trajectory, order.session, order.environment)
        return _json(201, opened)

    async def all(self, request: DoorRequest) -> DoorResponse:
        """List the sessions."""
        return _json(200, self._sessions.all(request.trajectory))

    async def get(self, request: DoorRequest) -> DoorResponse:
        """Show one session; with ``?for=command`` refuse when it takes no command now."""
        name, command = request.parameters["session"], request.query.get("for") == "command"
        return _json(200, self._sessions.get(request.trajectory, name, for_command=command))

    async def close(self, request: DoorRequest) -> DoorResponse:
        """End a session."""
        name = request.parameters["session"]
        return _json(200, await self._sessions.close(request.trajectory, name))

    async def send(self, request: DoorRequest) -> DoorResponse:
        """Type the body as input."""
        content, name = await request.body(_INPUT_BYTES), request.parameters["session"]
        return _json(202, self._sessions.send(request.trajectory, name, content))

    async def interrupt(self, request: DoorRequest) -> DoorResponse:
        """Interrupt the foreground, or send it the signal ``?signal=SIGKILL``."""
        name, number = request.parameters["session"], request.query.get("signal", "SIGINT")
        interrupted = self._sessions.interrupt(request.trajectory, name, Signals[number])
        return _json(202, interrupted)

    async def resize(self, request: DoorRequest) -> DoorResponse:
        """Change the size; the body is a `WindowSize`."""
        size, name = _sizes.decode(await request.body(_SPEC_BYTES)), request.parameters["session"]
        return _json(200, self._sessions.resize(request.trajectory, name, size))

    async def attach(self, request: DoorRequest, socket: AsgiSocket) -> None:
        """Attach a terminal until either side ends it."""
        asked, name = request.query, request.parameters["session"]
        attachment = self._sessions.attach(
            request.trajectory,
            name,
            prompt=asked.get("prompt") == "true",
            history=asked.get("history") != "false",
            ended=asked.get("ended") == "true",
        )
        try:
            if "rows" in asked and "columns" in asked:
                attachment.resize(WindowSize(int(asked["rows"]), int(asked["columns"])))
            await socket.accept()
            await _exchange(attachment, socket)
        finally:
            attachment.close()


async def _exchange(attachment: SessionAttachment, socket: AsgiSocket) -> None:
    ways = {
        asyncio.ensure_future(_up(attachment, socket)),
        asyncio.ensure_future(_down(attachment, socket)),
    }
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _up(attachment: SessionAttachment, socket: AsgiSocket) -> None:
    while (message := await socket.receive()) is not None:
        try:
            if isinstance(message, bytes):
                await attachment.send(message)
                continue
            asked = _requests.decode(message)
            if asked.resize is not None:
                attachment.resize(asked.resize)
            if asked.interrupt:
                attachment.interrupt()
        except (Conflict, InvalidRequest, msgspec.MsgspecError) as error:
            if isinstance(error, NotFound):
                return
            await socket.send(msgspec.json.encode({"error": str(error)}).decode())


async def _down(attachment: SessionAttachment, socket: AsgiSocket) -> None:
    while (output := await attachment.output()) is not None:
        if output.missed:
            await socket.send(msgspec.json.encode({"missed": output.missed}).decode())
        if output.stdout:
            await socket.send(output.stdout)
        if output.stderr:
            text = output.stderr.decode(errors="replace")
            await socket.send(msgspec.json.encode({"stderr": text}).decode())
    facts = attachment.facts()
    await socket.send(msgspec.json.encode({"exit_status": facts.exit_status}).decode())
    await socket.close(ENDED, f"the session ended with exit status {facts.exit_status}")


def _json(status: int, content: object) -> DoorResponse:
    return DoorResponse(status, msgspec.json.encode(content), _JSON)
