"""Address of the web process: its URL, its allowed hosts, and the choice of a free port."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tangram_web.supervisor.errors import StartFailed

DEFAULT_PORT = 8000
_TRIES = 100
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class ServerAddress:
    """Host and port of the web process."""

    host: str
    port: int

    @property
    def local_host(self) -> str:
        """A host name by which this machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"http://{host}:{self.port}"

    def allowed_hosts(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the setting that accepts requests for this machine's names."""
        if "TANGRAM_ALLOWED_HOSTS" in environment or self.host in _LOOPBACK:
            return {}
        names = ("localhost", "127.0.0.1", "[::1]", self.host, socket.gethostname())
        return {"TANGRAM_ALLOWED_HOSTS": ",".join(dict.fromkeys((*names, socket.getfqdn())))}


class PortClaim:
    """A free port that no other ``tangram up`` of this machine chooses, until it is released or this process ends.

    The web process listens seconds after its port is chosen. Meanwhile a socket of the host's abstract namespace
    marks the port; systems that have no such namespace have no mark.
    """

    def __init__(self, host: str, port: int) -> None:
        """Claim the port. Raises OSError when it is claimed or in use."""
        self.port = port
        self._mark = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                self._mark.bind(f"\0tangram-up-{host}-{port}")
            _try(host, port)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let others choose it; idempotent."""
        self._mark.close()


def claim_port(host: str, wanted: int | None) -> PortClaim:
    """Claim ``wanted`` if it is free; for None, the first free port from 8000 on. Raises StartFailed."""
    _check_host(host)
    if wanted is not None:
        try:
            return PortClaim(host, wanted)
        except (OSError, OverflowError):
            raise StartFailed(
                f"port {wanted} on {host} is taken or not allowed: give another"
            ) from None
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIES):
        with suppress(OSError):
            return PortClaim(host, port)
    raise StartFailed(f"no free port on {host} from {DEFAULT_PORT} on: give one with --port")


def _check_host(host: str) -> None:
    """Raise StartFailed for an address that is not one of this machine."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:
        raise StartFailed(
            f"cannot listen on {host!r} ({error}): give an address of this machine with --host"
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _try(host: str, port: int) -> None:
    """Raise OSError, OverflowError where a server cannot listen on the port now."""
    with socket.socket(_family(host)) as probe:
        # As the server does: connections of an earlier process may remain.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
