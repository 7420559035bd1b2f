"""A web process that shares its address with others: ``python -m tangram_web.serving --host HOST --port PORT``.

Each of them listens on a socket of its own with ``SO_REUSEPORT``. The kernel gives a new connection to one of them by a
hash of its addresses, and none to a process that has ended; connections that wait for a process when it is killed
are reset, and their clients try again. What a process holds in memory is a cache or a matter of its own connections
(docs/operations.md); all else is in Redis and the database, so any of them answers any request.

With one process ``python -m uvicorn`` does the same without the shared socket.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence

import uvicorn


def shared_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket whose address other processes of this user may bind too. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m tangram_web.serving")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--timeout-graceful-shutdown",
        type=int,
        default=5,
        metavar="SECONDS",
        help="time for open requests at the end",
    )
    options = parser.parse_args(arguments)
    server = uvicorn.Server(
        uvicorn.Config(
            "tangram_web.asgi:application",
            host=options.host,
            port=options.port,
            http="tangram_web.serving.protocol:LimitedHttp",
            # Frames are compact already; deflating them costs more than it saves.
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=options.timeout_graceful_shutdown,
            access_log=False,
        )
    )
    with shared_socket(options.host, options.port) as listening:
        server.run(sockets=[listening])
    return 0 if server.started else 3


if __name__ == "__main__":
    sys.exit(main())
