"""Data connections of a rank: those that it opened to send, and those that other ranks opened to it.

Rules
1. A connection belongs to one direction of one pair, and is kept until the group ends or the other rank is lost.
2. `cut` ends the connections with a rank at once; a thread that is blocked in one gets an OSError.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

#: Opens a connection to a rank until a monotonic time, while it is wanted.
Open = Callable[[int, float, Callable[[], bool]], socket.socket]
#: Offset of ``tcpi_last_data_recv`` in Linux's ``struct tcp_info``.
_LAST_DATA_RECEIVED = 52


class Cut(ConnectionError):
    """The connection was ended on this side: the rank is lost, or the group has ended."""


class DataLinks:
    """The data connections of one rank. Any thread may call it."""

    def __init__(self, connect: Open, seconds: float) -> None:
        self._connect, self._seconds = connect, seconds
        self._changed = threading.Condition()
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._cut: set[int] = set()
        self._closed = False

    def adopt(self, rank: int, connection: socket.socket) -> None:
        """Take a connection that a rank opened in order to send."""
        with self._changed:
            if self._is_cut(rank) or rank in self._in:
                connection.close()
                return
            self._in[rank] = connection
            self._changed.notify_all()

    def outgoing(self, rank: int) -> socket.socket:
        """Return the connection on which a rank is sent to, opened now if it is the first time. Raises OSError."""
        with self._changed:
            if self._is_cut(rank):
                raise Cut(f"rank {rank}")
            if rank in self._out:
                return self._out[rank]
        until = time.monotonic() + self._seconds
        connection = self._connect(rank, until, lambda: not self._is_cut(rank))
        with self._changed:
            if self._is_cut(rank):
                connection.close()
                raise Cut(f"rank {rank}")
            self._out[rank] = connection
        return connection

    def incoming(self, rank: int) -> socket.socket:
        """Return the connection on which a rank sends; waits until it has opened it. Raises `Cut`."""
        with self._changed:
            while rank not in self._in:
                if self._is_cut(rank):
                    raise Cut(f"rank {rank}")
                self._changed.wait()
            return self._in[rank]

    def idle_seconds(self, rank: int) -> float:
        """Return how long the kernel has had no data of a rank; 0 where it has not connected."""
        with self._changed:
            connection = self._in.get(rank)
            if connection is None or self._is_cut(rank):
                return 0.0
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        (milliseconds,) = struct.unpack_from("@I", info, _LAST_DATA_RECEIVED)
        return float(milliseconds) / 1000

    def cut(self, rank: int) -> None:
        """End the connections with a lost rank. Idempotent."""
        with self._changed:
            self._cut.add(rank)
            for side in (self._out, self._in):
                if rank in side:
                    _end(side[rank])
            self._changed.notify_all()

    def cut_all(self) -> None:
        """End all connections; no other one is taken. Idempotent."""
        with self._changed:
            self._closed = True
            for connection in (*self._out.values(), *self._in.values()):
                _end(connection)
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections, of which no thread uses one."""
        self.cut_all()
        with self._changed:
            for connection in (*self._out.values(), *self._in.values()):
                connection.close()

    def _is_cut(self, rank: int) -> bool:
        return self._closed or rank in self._cut


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
