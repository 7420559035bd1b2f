"""The port to serve on."""

from __future__ import annotations

import socket

from tangram_web.supervisor.errors import StartFailed

DEFAULT_PORT = 8000
_TRIES = 100


def choose_port(host: str, wanted: int | None) -> int:
    """Return ``wanted`` if it is free; without a wish, the first free one from 8000 on."""
    if wanted is not None:
        if not is_free(host, wanted):
            raise StartFailed(f"port {wanted} on {host} is taken or not allowed: give another")
        return wanted
    for port in range(DEFAULT_PORT, DEFAULT_PORT + _TRIES):
        if is_free(host, port):
            return port
    raise StartFailed(f"no free port on {host} from {DEFAULT_PORT} on: give one with --port")


def is_free(host: str, port: int) -> bool:
    """Say whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As the server does it: connections of an earlier life may still linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True
