"""Local nodes, as the leader sees them: the listening socket, and a connection for each node worker of this machine.

All is done in the thread of the loop, between its passes; nothing here blocks but `wait`.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from os import fspath, geteuid
from pathlib import Path
from time import monotonic
from typing import Final

from domain.redis_keys import Keys
from scheduler.runtime.local_nodes.frames import (
    BrokenFrame,
    Commands,
    Confirmed,
    Frame,
    FrameReader,
    Hello,
    Opened,
    Reports,
    framed,
)
from scheduler.runtime.redis.journal import id_parts

log = logging.getLogger(__name__)

#: Linux takes no longer path of a Unix socket.
MOST_PATH_BYTES: Final = 107
RECEIVE_BYTES: Final = 256 * 1024
#: A larger body is only announced: the node reads its stream. A node whose socket is full is disconnected.
MOST_BODY_BYTES: Final = 64 * 1024
BUFFER_BYTES: Final = 1024 * 1024
#: Confirmations are sent with the next command, at the latest after this time, or this many reports.
CONFIRM_SECONDS: Final = 0.1
CONFIRM_REPORTS: Final = 500
_CREDENTIALS: Final = struct.Struct("3i")


class _Node:
    """The connection of one node worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = FrameReader()
        self.stream = ""
        #: The last entry that the node wrote to the inbox before it connected.
        self.inbox_id = ""
        self.opened = False
        #: The last report that was received, handed to the pass, is in the journal, was confirmed.
        self.received = self.handed = self.committed = self.confirmed = 0
        #: The last entry of its stream that was sent.
        self.sent_id = ""

    def send(self, frame: Frame) -> None:
        """Send a frame. Raises OSError, also when the node reads nothing."""
        data = framed(frame)
        if self.connection.send(data) != len(data):
            raise OSError("the node does not read")


class LocalNodes:
    """Node workers of this machine. Without a path there are none, and `wait` waits for Redis alone."""

    def __init__(self, path: Path | None, keys: Keys) -> None:
        if path is not None and len(fspath(path).encode()) > MOST_PATH_BYTES:
            log.warning("no socket for nodes of this machine: the path %s is too long", path)
            path = None
        self._path = path
        #: Streams of nodes begin with it.
        self._prefix = keys.commands("", "").removesuffix(":")
        self._listener: socket.socket | None = None
        self._nodes: dict[int, _Node] = {}
        self._by_stream: dict[str, _Node] = {}
        self._messages: list[bytes] = []
        self._confirm_at = float("inf")
        self._poll = select.poll()
        self._redis = -1

    @property
    def is_open(self) -> bool:
        """Whether nodes may connect."""
        return self._listener is not None

    def open(self) -> None:
        """Let nodes connect: this process leads."""
        if self._path is None or self._listener is not None:
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._path.unlink(missing_ok=True)
            listener.bind(fspath(self._path))
            self._path.chmod(0o600)
            listener.listen(64)
        except OSError as error:
            listener.close()
            log.warning("no socket for nodes of this machine: %s", error)
            self._path = None
            return
        self._listener = listener
        self._poll.register(listener, select.POLLIN)

    def close(self) -> None:
        """Disconnect all nodes, and let none connect. Their reports that are not in the journal go to the inbox."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._poll.unregister(listener)
            listener.close()
        for node in list(self._nodes.values()):
            self._drop(node, "the leader ends the connection")
        self._messages = []

    def wait(self, redis: int, seconds: float) -> bool:
        """Wait until Redis has answered, a node has reported, or the time is over; return whether Redis has.

        ``redis``: the file descriptor of its connection.
        """
        if redis != self._redis:
            if self._redis not in self._nodes:  # a closed number may be that of a node by now
                with suppress(KeyError, ValueError):
                    self._poll.unregister(self._redis)
            self._poll.register(redis, select.POLLIN)
            self._redis = redis
        if self._messages:
            seconds = 0.0
        until = monotonic() + seconds
        while True:
            pause = min(until, self._confirm_at) - monotonic()
            ready = self._poll.poll(max(0.0, 1000 * pause))
            answered = any(number == redis for number, _ in ready)
            # After the answer of Redis: what a node sent before its message of the inbox is here by now.
            for number, _ in ready:
                self._take(number)
            self.confirm()
            if answered or self._messages or monotonic() >= until:
                return answered

    def reports(self) -> list[bytes]:
        """Return the received messages, for the next pass."""
        if not self._messages:
            return []
        for node in self._nodes.values():
            node.handed = node.received
        messages, self._messages = self._messages, []
        return messages

    def committed(self, settled_id: str) -> None:
        """Record that all messages that `reports` returned are in the journal, and the inbox up to ``settled_id``."""
        for node in list(self._nodes.values()):
            if node.committed != node.handed:
                node.committed = node.handed
                self._confirm_at = min(self._confirm_at, monotonic() + CONFIRM_SECONDS)
                if node.committed - node.confirmed >= CONFIRM_REPORTS:
                    self._confirm_at = 0.0
            if node.stream and not node.opened and id_parts(node.inbox_id) <= id_parts(settled_id):
                node.opened = True
                self._send(node, Opened())

    def send(self, entries: Sequence[tuple[str, str, bytes]]) -> None:
        """Send committed entries of streams: (stream, id, body)."""
        for stream, entry_id, body in entries:
            node = self._by_stream.get(stream)
            if node is None:
                continue
            if node.committed != node.confirmed:
                self._send_confirmation(node)
            if len(body) > MOST_BODY_BYTES:
                self._send(node, Commands("", entry_id, b""))
            else:
                self._send(node, Commands(node.sent_id, entry_id, body))
            node.sent_id = entry_id

    def confirm(self) -> None:
        """Send confirmations that are due."""
        if self._confirm_at > monotonic():
            return
        self._confirm_at = float("inf")
        for node in list(self._nodes.values()):
            if node.committed != node.confirmed:
                self._send_confirmation(node)

    def _send_confirmation(self, node: _Node) -> None:
        node.confirmed = node.committed
        self._send(node, Confirmed(node.committed))

    def _send(self, node: _Node, frame: Frame) -> None:
        try:
            node.send(frame)
        except OSError as error:
            self._drop(node, str(error))

    def _take(self, number: int) -> None:
        if self._listener is not None and number == self._listener.fileno():
            self._accept(self._listener)
            return
        node = self._nodes.get(number)
        if node is None:
            return
        try:
            data = node.connection.recv(RECEIVE_BYTES)
            if not data:
                raise OSError("the node ended the connection")
            for frame in node.reader.feed(data):
                self._received(node, frame)
        except BlockingIOError:
            return
        except (OSError, BrokenFrame) as error:
            self._drop(node, str(error))

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            _, user, _ = _CREDENTIALS.unpack(credentials)
            if user not in (0, geteuid()):
                log.warning("refused a node worker of user %d", user)
                connection.close()
                return
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            self._nodes[connection.fileno()] = _Node(connection)
            self._poll.register(connection, select.POLLIN)

    def _received(self, node: _Node, frame: Frame) -> None:
        if isinstance(frame, Hello) and frame.stream.startswith(self._prefix):
            node.stream, node.inbox_id = frame.stream, frame.inbox_id
            before = self._by_stream.get(frame.stream)
            if before is not None:
                self._drop(before, "the node connected again")
            self._by_stream[frame.stream] = node
        elif isinstance(frame, Reports) and node.opened:
            self._messages += frame.messages
            node.received = frame.last
        else:
            raise BrokenFrame(f"{type(frame).__name__} is not expected now")

    def _drop(self, node: _Node, why: str) -> None:
        if self._nodes.get(node.connection.fileno()) is not node:
            return  # it was dropped by an earlier step of the same call
        log.info("the connection to the node of %s ends: %s", node.stream or "no name", why)
        del self._nodes[node.connection.fileno()]
        if self._by_stream.get(node.stream) is node:
            del self._by_stream[node.stream]
        with suppress(KeyError):
            self._poll.unregister(node.connection)
        node.connection.close()
