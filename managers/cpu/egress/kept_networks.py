"""Egress of living environments: the proxy listens in the network of each while it runs.

    networks = KeptNetworks(gateway, connector)
    await networks.serve(environment, order)     before each command; the first one opens the socket
    await networks.end(name)                     with the environment

A living environment with ``network: egress`` has a network of its own with the loopback alone. The listening socket is
made there by the helper that makes sockets to its ports (`managers.cpu.ports.connector`), so nothing of ours runs inside.
The rules are those of the latest order: a change of the pool concerns the next command, and connections that are open
keep theirs. Before the first order of this worker, and with a pool that has no such network any more, nothing listens.

A program that has taken the port while no worker listened keeps it: then the environment has no egress, and its
commands fail with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Final

from domain.errors import Unavailable
from domain.ports import RunOrder
from managers.cpu.egress.gateway import PORT, EgressGateway, EgressServer, EgressUnavailable
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.ports.connector import EnvironmentNetwork, PortConnector

_BACKLOG: Final = 512


@dataclass(frozen=True)
class _Served:
    """The socket in the network of one init."""

    init: int
    server: EgressServer


class KeptNetworks:
    """The egress networks of the living environments of one driver."""

    def __init__(self, gateway: EgressGateway, connector: PortConnector) -> None:
        self._gateway = gateway
        self._connector = connector
        self._served: dict[str, _Served] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def serve(self, environment: KeptEnvironment, order: RunOrder) -> None:
        """Let an environment reach what an order says. Raises EgressUnavailable; then it reaches nothing."""
        name = environment.name
        async with self._turns[name]:
            known = self._served.get(name)
            if known is not None and known.init == environment.pid and order.egress is not None:
                known.server.follow(order.egress)
                return
            await self._close(name)
            server = self._gateway.serving(order)
            try:
                listener = await self._listener(environment)
            except (OSError, Unavailable) as error:
                raise EgressUnavailable(
                    f"the proxy cannot listen in the environment: {error}"
                ) from error
            await server.listen(listener)
            self._served[name] = _Served(environment.pid, server)

    async def end(self, name: str) -> None:
        """End the proxy of an environment and its connections; an unknown one is ignored."""
        async with self._turns[name]:
            await self._close(name)
        self._turns.pop(name, None)

    async def close(self) -> None:
        """End all."""
        for name in list(self._served):
            await self.end(name)

    async def _close(self, name: str) -> None:
        served = self._served.pop(name, None)
        if served is not None:
            await served.server.close()

    async def _listener(self, environment: KeptEnvironment) -> socket.socket:
        network = EnvironmentNetwork(
            environment.pid, partial(_lives, environment), environment.pids
        )
        listener = await self._connector.make_socket(environment.name, network)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", PORT))
            listener.listen(_BACKLOG)
        except OSError:
            with contextlib.suppress(OSError):
                listener.close()
            raise
        return listener


def _lives(environment: KeptEnvironment) -> bool:
    return not environment.ended
