"""`door`: an address for clients of a protocol that has no token, bound to one project.

A client of SandboxFusion, verl-tool or ProRL Agent has a URL and nothing else. The command listens on an address of this machine, adds a
token and the path of the door to each request, and forwards it; bodies pass unread in both directions.

Rules
1. The token is made for the listener: it may submit and read in one project, for the doors in `_SCOPES` a little more, expires
   within two days, is renewed while the listener runs, and is revoked at its end.
2. The address is one of the loopback unless another one is asked for: every client that reaches it works in the project.
3. Commands in sandboxes do not reach it, since the loopback of a sandbox is its own. Where a pool runs commands without a
   sandbox, or allows ``network: host``, the listener refuses to start, and answers 403 from then on.
4. A client that disconnects ends the request. An unreachable Tangram is 504: nothing has begun. Clients of the doors in
   `_PATIENCE_SECONDS` repeat at once and seldom, so they wait that long for a web process that restarts.
5. The door ``prorl`` ends its session with the listener, as a server's jobs end with the server.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
import httpx

from tangram_client._calls import create_token, renew_token, revoke_token
from tangram_client.cli.listing import every_row
from tangram_client.cli.shell import Shell, connected, pass_shell, say
from tangram_client.errors import TangramClientError

LOOPBACK: Final = "127.0.0.1:8080"
#: Life of the token; it is renewed each time half of it is over.
_TOKEN_DAYS: Final = 2
_RENEW_SECONDS: Final = 86_400.0
#: A change of a pool is noticed after so long.
CHECK_SECONDS: Final = 5.0
#: Scopes of the token beside ``read`` and ``submit``: ProRL's clients add servers of language models.
_SCOPES: Final = {"prorl": ["operate"]}
#: Project where none is given.
_PROJECTS: Final = {"prorl": "default"}
#: How long a connection to Tangram is tried.
_PATIENCE_SECONDS: Final = {"prorl": 60.0}
_TRY_SECONDS: Final = 0.5
#: Longest wait for the end of a session.
_STOP_SECONDS: Final = 10.0
#: Longest head of a request, and time for it.
_HEAD_BYTES: Final = 64 * 1024
_HEAD_SECONDS: Final = 60.0
_PIECE_BYTES: Final = 64 * 1024
#: A refused client may send for so long.
_LINGER_SECONDS: Final = 2.0
#: Connections that are open at once.
_MOST: Final = 4096
#: Headers that the listener sets, or that are about the connection of the client.
_DROPPED: Final = frozenset(
    "authorization connection cookie forwarded host keep-alive proxy-authorization proxy-connection x-api-key x-polar-control-token".split()
)


@click.command()
@click.argument("name")
@click.option(
    "--listen", default=LOOPBACK, show_default=True, metavar="ADDRESS:PORT", help="Port 0: any."
)
@click.option("--task", help="Task of the actions [the name of the door].")
@click.option("--cpu", help="Cores of each command: a count, or counts as 1,2,4 [1].")
@click.option("--image", help="Image of the environments.")
@click.option("--network", help="Network of the environments: none, egress [none].")
@click.option("--handler", help="Handler of rollouts [the one that the client names].")
@click.option("--llm", help="Pool of backends that rollouts sample from, or fleet:NAME.")
@click.option(
    "--token-ids",
    type=click.Choice(["response", "full"]),
    help="prorl: token_ids of a response with or without its prompt; NeMo RL's client needs full [response].",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1.0),
    help="prorl: seconds of work of a job [the limits of rollouts].",
)
@connected
@pass_shell
def door(
    shell: Shell, /, name: str, listen: str, task: str | None, cpu: str | None, image: str | None,
    network: str | None, handler: str | None, llm: str | None, token_ids: str | None,
    timeout: float | None,
) -> None:  # fmt: skip
    """Serve the door NAME to clients without a token: tangram door sandboxfusion --project P.

    Clients of this machine use http://127.0.0.1:8080 as if it were their own server. Ctrl-C ends it.
    """
    if shell.project is None:
        shell.project = _PROJECTS.get(name)
    if shell.project is None:
        raise click.UsageError("give --project: what the clients submit belongs to it")
    if not name.isalnum():
        raise click.BadParameter(f"{name!r}: a door is named like sandboxfusion", param_hint="NAME")
    host, port = address_of(listen)
    if reason := open_pools(shell):
        raise click.ClickException(reason)
    headers = settings_headers(task, cpu, image, network)
    rollouts = {"X-Tangram-Handler": handler, "X-Tangram-Llm": llm}
    headers |= {name: value for name, value in rollouts.items() if value is not None}
    if token_ids is not None:
        headers["X-Tangram-Token-Ids"] = token_ids
    if timeout is not None:
        headers["X-Tangram-Timeout"] = f"{timeout:g}"
    with shell.client() as client:
        body = {
            "name": f"door {name}", "project": shell.project,
            "scopes": ["read", "submit", *_SCOPES.get(name, [])],
            "expires_at": (datetime.now(UTC) + timedelta(days=_TOKEN_DAYS)).isoformat(),
        }  # fmt: skip
        made = client.send(create_token(body))
    patience = _PATIENCE_SECONDS.get(name, 0.0)
    forwarding = Forwarding(
        shell.context.url, f"/{name}", made["token"], headers, patience_seconds=patience
    )
    try:
        asyncio.run(_serve(shell, forwarding, host, port, made["id"], name))
    except OSError as error:
        raise click.ClickException(f"{host}:{port}: {error.strerror or error}") from None
    finally:
        if name == "prorl":
            stop_session(shell, forwarding)
        with shell.client() as client, suppress(TangramClientError):
            client.send(revoke_token(made["id"]))


def stop_session(shell: Shell, forwarding: Forwarding) -> None:
    """End the session of the door's task, if one runs."""
    headers = {**forwarding.headers, "Authorization": f"Bearer {forwarding.token}"}
    url = f"{forwarding.url.rstrip('/')}{forwarding.prefix}/stop"
    with (
        suppress(httpx.HTTPError),
        httpx.Client(transport=shell.transport, timeout=_STOP_SECONDS) as client,
    ):
        client.post(url, headers=headers)


def address_of(text: str) -> tuple[str, int]:
    """Return address and port. Raises BadParameter."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    try:
        ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number < 65_536:
        raise click.BadParameter(
            f"{text!r}: give ADDRESS:PORT, as {LOOPBACK}", param_hint="--listen"
        )
    return host, number


def settings_headers(
    task: str | None, cpu: str | None, image: str | None, network: str | None
) -> dict[str, str]:
    """Return the headers that the door takes the settings of its actions from."""
    environment = {"image": image, "network": network}
    declared = {name: value for name, value in environment.items() if value is not None}
    given = {
        "X-Tangram-Task": task,
        "X-Tangram-Cpu": cpu,
        "X-Tangram-Environment": json.dumps(declared) if declared else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def open_pools(shell: Shell) -> str:
    """Return why sandboxes could reach the loopback of this machine; empty: they cannot."""
    with shell.client() as client:
        for pool in every_row(client, "pools"):
            name = pool["name"]
            if pool["host_network"]:
                return (
                    f"pool {name!r} allows network: host, so its commands could use this address without a"
                    " token: set host_network: false there"
                )
            if pool["sandbox"] != "required":
                return (
                    f"pool {name!r} runs commands without a sandbox, which could use this address without a"
                    " token: set sandbox: required there"
                )
    return ""


async def _serve(
    shell: Shell, forwarding: Forwarding, host: str, port: int, token: str, name: str
) -> None:
    """Forward until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    server = await asyncio.start_server(forwarding.serve, host, port, limit=_HEAD_BYTES)
    upkeep = asyncio.ensure_future(_keep_up(shell, forwarding, token))
    local = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    say(f"http://{shown}:{local} is the door {name} of project {shell.project}")
    if not ip_address(host).is_loopback:
        say("every machine that reaches this address submits to the project without a token")
    try:
        await ended.wait()
    finally:
        upkeep.cancel()
        server.close()
        await forwarding.close()


async def _keep_up(shell: Shell, forwarding: Forwarding, token: str) -> None:
    """Renew the token, and look whether the pools still permit the door."""
    loop = asyncio.get_running_loop()
    renewed = loop.time()
    while not loop.is_closed():
        await asyncio.sleep(CHECK_SECONDS)
        try:
            forwarding.refused = await asyncio.to_thread(open_pools, shell)
            if loop.time() - renewed > _RENEW_SECONDS:
                await asyncio.to_thread(_renew, shell, token)
                renewed = loop.time()
        except TangramClientError as error:
            forwarding.refused = f"the pools cannot be checked: {error}"


def _renew(shell: Shell, token: str) -> None:
    with shell.client() as client:
        client.send(renew_token(token, days=_TOKEN_DAYS))


@dataclass
class Forwarding:
    """Forwards connections with one request each."""

    url: str
    #: Path of the door.
    prefix: str
    token: str
    #: Settings of the actions.
    headers: Mapping[str, str]
    #: Why requests are refused now; empty: they are not.
    refused: str = ""
    #: How long a connection to Tangram is tried.
    patience_seconds: float = 0.0
    _open: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the request of one connection, and its answer."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one of the two has gone, or the door closes
        finally:
            self._open.discard(task)
            writer.close()

    async def close(self) -> None:
        """End the open connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            rewritten = self.head(head)
        except asyncio.IncompleteReadError:
            return None
        except TimeoutError:
            return await _refuse(
                reader, writer, HTTPStatus.REQUEST_TIMEOUT, "the request has no end"
            )
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return await _refuse(reader, writer, status, "the headers are too large")
        except ValueError as error:
            return await _refuse(reader, writer, HTTPStatus.BAD_REQUEST, str(error))
        if self.refused:
            return await _refuse(reader, writer, HTTPStatus.FORBIDDEN, self.refused)
        if len(self._open) > _MOST:
            return await _refuse(reader, writer, HTTPStatus.GATEWAY_TIMEOUT, "too many connections")
        try:
            there, back = await self._connected()
        except OSError as error:
            status = HTTPStatus.GATEWAY_TIMEOUT
            return await _refuse(reader, writer, status, f"Tangram cannot be reached: {error}")
        try:
            back.write(rewritten)
            await _both(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()
        return None

    def head(self, head: bytes) -> bytes:
        """Return the head of a request as Tangram gets it. Raises ValueError for one that is not forwarded."""
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, version = (*first.split(" "), "", "", "")[:3]
        if not target.startswith("/") or version not in {"HTTP/1.1", "HTTP/1.0"}:
            raise ValueError("this is no request of HTTP/1.1")
        path = unquote(urlsplit(f"http://h{target}").path)
        if "\\" in path or any(part in {".", ".."} for part in path.split("/")):
            raise ValueError("a path with . or .. is not forwarded")
        parts = urlsplit(self.url)
        kept = [line for line in lines if _is_forwarded(line)]
        own = {
            "Host": parts.netloc, "Authorization": f"Bearer {self.token}", "Connection": "close",
            **self.headers,
        }  # fmt: skip
        added = [f"{name}: {value}" for name, value in own.items()]
        request = f"{method} {parts.path.rstrip('/')}{self.prefix}{target} HTTP/1.1"
        return "\r\n".join([request, *added, *kept, "", ""]).encode("latin-1")

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to Tangram, within the patience of the door. Raises OSError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_seconds
        while True:
            try:
                return await self._connect()
            except OSError:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_TRY_SECONDS)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        context = ssl.create_default_context() if secure else None
        port = parts.port or (443 if secure else 80)
        return await asyncio.open_connection(parts.hostname, port, ssl=context)


def _is_forwarded(line: str) -> bool:
    """Whether a header goes on. Raises ValueError for a line that is none."""
    name, colon, _ = line.partition(":")
    if not colon or not name or name != name.strip():
        raise ValueError("a header is malformed")
    lower = name.lower()
    return lower not in _DROPPED and not lower.startswith("x-tangram-")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()


async def _both(sending: Any, answering: Any) -> None:
    """Copy in both directions until one ends: the answer is complete, or the client has gone."""
    tasks = [asyncio.ensure_future(sending), asyncio.ensure_future(answering)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refuse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: HTTPStatus, detail: str
) -> None:
    body = json.dumps({"detail": detail}).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    writer.write_eof()
    # Closed with unread input, the connection would be reset before the client has read the answer.
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while await reader.read(_PIECE_BYTES):
                pass
