"""The port to serve on."""

from __future__ import annotations

import socket

from tangram_web.supervisor.errors import StartFailed

DEFAULT_PORT = 8000
_TRIES = 100


def choose_port(host: str, wanted: int | None) -> int:
    """Return ``wanted`` if it is free; without a wish, the first free one from 8000 on."""
    _check_host(host)
    if wanted is not None:
        if not is_free(host, wanted):
            raise StartFailed(f"port {wanted} on {host} is taken or not allowed: give another")
        return wanted
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIES):
        if is_free(host, port):
            return port
    raise StartFailed(f"no free port on {host} from {DEFAULT_PORT} on: give one with --port")


def _check_host(host: str) -> None:
    """Raise StartFailed for an address on which no port could ever be free."""
    try:
        with socket.socket(_family(host)) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:
        raise StartFailed(
            f"cannot listen on {host!r} ({error}): give an address of this machine with --host"
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def is_free(host: str, port: int) -> bool:
    """Say whether a server could listen there now."""
    with socket.socket(_family(host)) as probe:
        # As the server does it: connections of an earlier life may still linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True
