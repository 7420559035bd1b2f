"""Connections to ports of environments.

    socket = await connector.connect(name, network, 8000)

A helper process in the network namespace of the environment makes each socket (`namespace_sockets`); the worker
connects it to the loopback of that namespace, which nothing but the environment's programs can listen on. The
helper is kept while it is used, because starting one takes 20 ms and a socket of a kept one 0.1 ms; it ends when
idle, with its environment, and when the environment has a new namespace.

Where the environment shares the network of the host, a port is connected only while one of its own processes
listens there, before and after the connection is made; else it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest, Unavailable
from domain.ports.networks import NoListener
from managers.cpu.egress.gateway import PORT as EGRESS_PORT
from managers.cpu.ports.listeners import is_listener

_PROGRAM: Final = Path(__file__).with_name("namespace_sockets.py")
#: A helper that made no socket for so long ends.
IDLE_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 5.0
_START_SECONDS: Final = 10.0
_LOOPBACKS: Final = ((b"4", "127.0.0.1"), (b"6", "::1"))
_OWN_NETWORK: Final = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class EnvironmentNetwork:
    """The network of an environment that runs."""

    #: Host id of one of its processes, and whether that process still lives.
    pid: int
    is_alive: Callable[[], bool]
    #: Returns the host ids of all its processes.
    processes: Callable[[], Iterable[int]]
    #: It reaches hosts through the node's proxy, which listens in its namespace.
    has_egress: bool = False
    #: Loopback address of its own; empty: it has the usual one.
    address: str = ""

    def open(self) -> int:
        """Return a descriptor of its namespace. Raises Unavailable when it has ended."""
        try:
            handle = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the environment has no network now: {error.strerror}") from error
        # A process id may be another process's by now; the namespace is its own if it still lives.
        if not self.is_alive():
            os.close(handle)
            raise Unavailable("the environment has ended")
        return handle


class _Helper:
    """A running `namespace_sockets`."""

    def __init__(self, namespace: int) -> None:
        self.inode = os.fstat(namespace).st_ino
        self._using = asyncio.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_START_SECONDS)
        with theirs:
            command = [sys.executable, "-I", "-S", str(_PROGRAM)]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(namespace)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), namespace), env={}, cwd="/", start_new_session=True,
            )  # fmt: skip
        self.users = 0
        self.ending: asyncio.TimerHandle | None = None

    async def make(self, family: bytes) -> socket.socket:
        """Return a new socket of the namespace. Raises Unavailable."""
        async with self._using:
            return await asyncio.to_thread(self._make, family)

    def _make(self, family: bytes) -> socket.socket:
        try:
            self._channel.send(family)
            answer, handles, _, _ = socket.recv_fds(self._channel, 16, 1)
        except OSError as error:
            raise Unavailable(
                f"the network of the environment cannot be entered: {error}"
            ) from error
        if not handles:
            reason = os.strerror(int(answer)) if answer.isdigit() else "its helper ended"
            raise Unavailable(f"the network of the environment cannot be entered: {reason}")
        made = socket.socket(fileno=handles[0])
        made.setblocking(False)
        return made

    def end(self) -> None:
        """End the process. Waits for it, which takes a moment."""
        if self.ending is not None:
            self.ending.cancel()
        self._channel.close()
        self._process.kill()
        self._process.wait()


class PortConnector:
    """Connections to ports of the environments of one driver."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._helpers: dict[str, _Helper] = {}

    async def connect(self, name: str, network: EnvironmentNetwork, port: int) -> socket.socket:
        """Return a socket that is connected to a port of an environment, and does not block.

        Raises NoListener, InvalidRequest for a port that is not its own, Unavailable.
        """
        if network.has_egress and port == EGRESS_PORT:
            raise InvalidRequest(
                f"port {port} is the node's proxy, not a server of the environment", pointer="/port"
            )
        namespace = network.open()
        try:
            if os.fstat(namespace).st_ino == _OWN_NETWORK.stat().st_ino:
                return await self._connect_on_host(network, port)
            helper = self._helper(name, namespace)
        finally:
            os.close(namespace)
        with self._used(name, helper):
            own = [(b"4", network.address)] if network.address else []
            for family, address in (*_LOOPBACKS, *own):
                with contextlib.suppress(NoListener):
                    return await _connected(await helper.make(family), address, port)
        raise NoListener(port)

    async def make_socket(self, name: str, network: EnvironmentNetwork) -> socket.socket:
        """Return a new socket in the network of an environment; it does not block.

        Raises Unavailable, also where the environment has the network of the node.
        """
        namespace = network.open()
        try:
            if os.fstat(namespace).st_ino == _OWN_NETWORK.stat().st_ino:
                raise Unavailable("the environment has the network of the node")
            helper = self._helper(name, namespace)
        finally:
            os.close(namespace)
        with self._used(name, helper):
            return await helper.make(b"4")

    def _helper(self, name: str, namespace: int) -> _Helper:
        known = self._helpers.get(name)
        if known is not None and known.inode != os.fstat(namespace).st_ino:
            self.end(name)
            known = None
        if known is None:
            known = self._helpers[name] = _Helper(namespace)
        return known

    @contextlib.contextmanager
    def _used(self, name: str, helper: _Helper) -> Iterator[None]:
        """Keep a helper while it is used, and for some time after."""
        helper.users += 1
        if helper.ending is not None:
            helper.ending.cancel()
        try:
            yield
        finally:
            helper.users -= 1
            if not helper.users and self._helpers.get(name) is helper:
                loop = asyncio.get_running_loop()
                helper.ending = loop.call_later(self._idle_seconds, self.end, name)

    async def _connect_on_host(self, network: EnvironmentNetwork, port: int) -> socket.socket:
        own = network.address
        processes = list(network.processes())
        if own != "" and await asyncio.to_thread(is_listener, port, processes, address=own):
            # No other process can listen there while this one does.
            made = socket.socket(socket.AF_INET)
            made.setblocking(False)
            return await _connected(made, own, port)
        if not await asyncio.to_thread(is_listener, port, list(network.processes())):
            raise NoListener(
                port, "it shares the node's network, and only its own ports are reached"
            )
        for family, address in _LOOPBACKS:
            made = socket.socket(socket.AF_INET if family == b"4" else socket.AF_INET6)
            made.setblocking(False)
            with contextlib.suppress(NoListener):
                found = await _connected(made, address, port)
                if await asyncio.to_thread(is_listener, port, list(network.processes())):
                    return found
                found.close()
        raise NoListener(port)

    def end(self, name: str) -> None:
        """End the helper of an environment; an unknown one is ignored."""
        helper = self._helpers.pop(name, None)
        if helper is not None:
            helper.end()

    def close(self) -> None:
        """End all helpers."""
        for name in list(self._helpers):
            self.end(name)


async def _connected(made: socket.socket, address: str, port: int) -> socket.socket:
    """Connect a socket. Raises NoListener."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(made, (address, port))
    except OSError as error:  # TimeoutError is one
        made.close()
        raise NoListener(port) from error
    except BaseException:
        made.close()
        raise
    return made
