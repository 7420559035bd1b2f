"""`shell`: a terminal of this machine, attached to a session of an environment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import click

from tangram_client import _session_calls
from tangram_client._sockets import check_websockets, open_socket
from tangram_client.cli.shell import Shell, connected, pass_shell
from tangram_client.context import ClientContext
from tangram_client.errors import NotFoundError

#: ctrl-] detaches, as in telnet; the session lives on.
DETACH: Final = b"\x1d"
#: Close code of a session that has ended.
_ENDED: Final = 4000
_CHUNK_BYTES: Final = 4096


@click.command("shell")
@click.argument("trajectory")
@click.option("--session", "name", default="shell", show_default=True, help="Opened if missing.")
@click.option("--program", default="bash", show_default=True, help="Of a session that is opened.")
@connected
@pass_shell
def shell_(shell: Shell, /, trajectory: str, name: str, program: str) -> None:
    """Open a terminal in TRAJECTORY's environment. ctrl-] detaches, and the session lives on.

    What is typed runs on the shared cores of the node. While a prompt is shown, actions in the session are
    refused.
    """
    owner = {} if shell.project is None else {"project": shell.project}
    with shell.client() as client:
        try:
            client.send(_session_calls.get_session(trajectory, name, owner))
        except NotFoundError:
            body = {"name": name, "shell": program}
            client.send(_session_calls.open_session(trajectory, body, owner))
    path = f"{_session_calls.session_path(trajectory, name)}/attach"
    status = asyncio.run(_attach(shell.context, path, owner, LocalTerminal()))
    if status is None:
        click.echo(f"detached; tangram shell {trajectory} --session {name} returns", err=True)
    else:
        click.echo(f"the session ended with exit status {status}", err=True)


@dataclass
class LocalTerminal:
    """The terminal of the command line, or pipes in its place."""

    source: int = 0
    target: int = 1

    @property
    def is_terminal(self) -> bool:
        """Whether a person types."""
        return os.isatty(self.source)

    def size(self) -> dict[str, int]:
        """Return rows and columns; empty where they are not known."""
        with suppress(OSError):
            columns, rows = os.get_terminal_size(self.target)
            if rows and columns:
                return {"rows": rows, "columns": columns}
        return {}

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Pass on each key as it is typed, and restore the terminal at the end."""
        if not self.is_terminal:
            yield
            return
        before = termios.tcgetattr(self.source)
        try:
            tty.setraw(self.source)
            yield
        finally:
            termios.tcsetattr(self.source, termios.TCSADRAIN, before)

    def write(self, data: bytes) -> None:
        """Show output."""
        while data:
            data = data[os.write(self.target, data) :]


async def _attach(
    context: ClientContext, path: str, owner: dict[str, str], terminal: LocalTerminal
) -> int | None:
    """Exchange keys and output until either side ends it; return the exit status of a session that ended."""
    check_websockets()
    from websockets.exceptions import ConnectionClosed, InvalidStatus

    query = urlencode({"prompt": "true", **terminal.size(), **owner})
    ended: list[int | None] = []
    try:
        async with open_socket(context, f"{path}?{query}", max_size=None) as socket:
            with terminal.raw():
                await _until_first(_keys(socket, terminal), _shown(socket, terminal, ended))
    except InvalidStatus as error:
        body = error.response.body or b""
        with suppress(ValueError):
            body = json.loads(body)["detail"].encode()
        raise click.ClickException(body.decode(errors="replace") or str(error)) from None
    except ConnectionClosed as error:
        if not ended:
            raise click.ClickException(f"the connection was closed: {error}") from None
    return ended[0] if ended else None


async def _keys(socket: Any, terminal: LocalTerminal) -> None:
    """Send what is typed, until the key that detaches or the end of input."""
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def read() -> None:
        data = os.read(terminal.source, _CHUNK_BYTES)
        if not data:
            loop.remove_reader(terminal.source)
        typed.put_nowait(data)

    def resized() -> None:
        size = terminal.size()
        if size:
            resizing.add(asyncio.ensure_future(socket.send(json.dumps({"resize": size}))))

    resizing: set[asyncio.Future[None]] = set()
    loop.add_reader(terminal.source, read)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        while data := await typed.get():
            before, key, _ = data.partition(DETACH)
            if before:
                await socket.send(before)
            if key and terminal.is_terminal:
                return
        if not terminal.is_terminal:
            await asyncio.Event().wait()  # what was sent is still executed
    finally:
        loop.remove_reader(terminal.source)
        loop.remove_signal_handler(signal.SIGWINCH)


async def _shown(socket: Any, terminal: LocalTerminal, ended: list[int | None]) -> None:
    """Show output until the session ends."""
    async for message in socket:
        if isinstance(message, bytes):
            terminal.write(message)
            continue
        said = json.loads(message)
        if "exit_status" in said:
            ended.append(said["exit_status"])
            return
        if "stderr" in said:
            sys.stderr.write(said["stderr"])
            sys.stderr.flush()


async def _until_first(*ways: Any) -> None:
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
