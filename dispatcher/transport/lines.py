"""A line of the control plane: messages over one connection that never blocks, with the time at which the other side was last heard."""

from __future__ import annotations

import socket
import time
from typing import Any

from dispatcher.transport.frames import Ended, message_bytes, take_message

#: What may wait to be sent to a rank that does not read; it is silent long before.
_WAITING_BYTES = 8 << 20


class Line:
    """A connection to one rank. Of one thread."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.rank, self.connection = rank, connection
        self.opened_at = self.heard_at = time.monotonic()
        self._received, self._waiting = bytearray(), bytearray()

    @property
    def has_waiting(self) -> bool:
        """Say whether something waits until the connection can be written."""
        return bool(self._waiting)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, or keep it until `flush`. An error of the connection shows when it is read."""
        if len(self._waiting) < _WAITING_BYTES:
            self._waiting += message_bytes(message)
        self.flush()

    def flush(self) -> None:
        """Send what the kernel takes now."""
        try:
            while self._waiting:
                del self._waiting[: self.connection.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()

    def receive(self) -> list[dict[str, Any]]:
        """Return messages that arrived. Raises OSError at the end of the connection, ValueError for what is no message."""
        ended: OSError | None = None
        try:
            while got := self.connection.recv(1 << 16):
                self._received += got
            ended = Ended("its connection ended")
        except BlockingIOError:
            pass
        except OSError as error:
            ended = error
        self.heard_at = time.monotonic()
        found: list[dict[str, Any]] = []
        while (message := take_message(self._received)) is not None:
            found.append(message)
        if ended is not None and not found:
            raise ended
        return found

    def finish(self) -> None:
        """Send nothing more; the other side reads what it was sent, and then the end."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.connection.close()
