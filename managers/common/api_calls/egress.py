"""Egress guard: the addresses that a call may connect to, whatever a name resolves to.

A declared host is resolved here, every address is checked, and the connection is made to a checked
address: a second answer of DNS cannot replace it. One bad address refuses the host. TLS still uses
the declared host name. Errors name the host and never an address; the log has it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

import httpcore

from domain.apis import Reach

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 1024
IDLE_SECONDS: Final = 15.0
#: IPv6 networks that embed IPv4 addresses.
_TRANSLATED: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


class EgressRefused(httpcore.ConnectError):
    """The address of a host is outside the reach of the API."""


def may_call(address: str, reach: Reach) -> bool:
    """Say whether ``address`` is within ``reach``. Link-local ones (cloud metadata) never are."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip.sixtofour or ip.teredo or any(ip in network for network in _TRANSLATED):
            return False
    if reach is Reach.LOOPBACK:
        return ip.is_loopback
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return False
    return ip.is_global or (reach is Reach.PRIVATE and ip.is_private)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of ``host``, in the system's order."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for an invalid name: an empty label
        raise httpcore.ConnectError(f"{host} has no address: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that `may_call` allows."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the base class has it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve, check, connect. Raises EgressRefused or ConnectError."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await resolve(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from None
        refused = [address for address in addresses if not may_call(address, self._reach)]
        if refused:
            # The caller of an API must not learn addresses of the network behind it.
            log.warning("%s is at %s, which is not %s", host, refused[0], self._reach)
            raise EgressRefused(f"{host} has an address that is not {self._reach}")
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Refuse: APIs have hosts."""
        raise EgressRefused("APIs have hosts")

    async def sleep(self, seconds: float) -> None:
        """Wait, as connection retries of the pool would."""
        await asyncio.sleep(seconds)


@lru_cache(1)
def _certificates() -> ssl.SSLContext:
    """Read the certificates of this machine once: it takes 20 ms, and each driver and delivery has a pool."""
    return ssl.create_default_context()


def open_connections(reach: Reach) -> httpcore.AsyncConnectionPool:
    """Return a pool of connections to addresses within ``reach``."""
    return httpcore.AsyncConnectionPool(
        ssl_context=_certificates(),
        max_connections=MOST_CONNECTIONS,
        max_keepalive_connections=MOST_CONNECTIONS,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=GuardedNetwork(reach),
    )
