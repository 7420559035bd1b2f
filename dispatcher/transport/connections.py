"""Connections of a group: a listener for each rank, and a handshake by which both sides prove that they know the group's secret.

The side that accepts sends a challenge; the other one answers with its rank, the purpose of the connection and an HMAC over both challenges;
the side that accepts answers with its own HMAC or a reason. A stranger learns nothing and is refused before a message of his is read.

Rules
1. The secret proves membership; it does not encrypt. Tensors travel as they are, so the network between ranks has to be trusted as for
   NCCL or gloo.
2. A handshake has `HANDSHAKE_SECONDS`. At most `HANDSHAKES` run at a time, in threads of their own: a connection that says nothing delays
   no other one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from dispatcher.transport.errors import JoinRefused

#: An address of a rank: host and port.
Address = tuple[str, int]
HANDSHAKE_SECONDS = 5.0
HANDSHAKES = 64
#: Purposes of a connection.
CONTROL, DATA = 1, 2
_MAGIC = b"tgdsp1\r\n"
_CHALLENGE = 16
_HELLO = struct.Struct("!III16s32s")
_ANSWER = struct.Struct("!B32s64s")


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Return a socket that listens; its address is ``listener.getsockname()[:2]``."""
    return socket.create_server((host, port), backlog=1024)


def _proof(secret: bytes, *parts: bytes) -> bytes:
    return hmac.new(secret, b"|".join(parts), hashlib.sha256).digest()


def _numbers(rank: int, to: int, purpose: int) -> bytes:
    return f"{rank} to {to} for {purpose}".encode()


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        got = connection.recv(count - len(found))
        if not got:
            raise ConnectionError("closed during the handshake")
        found += got
    return found


def prepare(connection: socket.socket, silence_seconds: float) -> None:
    """Set what all connections have: no delay of small frames, and an end when the other side acknowledges nothing for so long."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(silence_seconds * 1000))
    )
    connection.settimeout(None)


def connect(
    address: Address,
    secret: bytes,
    ranks: tuple[int, int],
    purpose: int,
    until: float,
    silence_seconds: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> socket.socket:
    """Connect from the first of the ``ranks`` to the second; tries again until the monotonic time ``until``, while it is wanted.

    Raises `JoinRefused` where the other side answers so, and OSError where none answers in time.
    """
    while True:
        try:
            connection = socket.create_connection(
                address, timeout=min(HANDSHAKE_SECONDS, max(0.1, until - time.monotonic()))
            )
            try:
                _ask(connection, secret, ranks, purpose)
                prepare(connection, silence_seconds)
            except BaseException:
                connection.close()
                raise
            return connection
        except OSError:
            if time.monotonic() + 0.05 >= until or not is_wanted():
                raise
            time.sleep(0.05)


def _ask(connection: socket.socket, secret: bytes, ranks: tuple[int, int], purpose: int) -> None:
    """Prove membership to the side that accepted, and check its proof."""
    rank, to = ranks
    greeting = _exactly(connection, len(_MAGIC) + _CHALLENGE)
    theirs, ours = greeting[len(_MAGIC) :], os.urandom(_CHALLENGE)
    if not greeting.startswith(_MAGIC):
        raise JoinRefused(to, "another program answers at its address")
    proof = _proof(secret, b"ask", theirs, ours, _numbers(rank, to, purpose))
    connection.sendall(_HELLO.pack(rank, to, purpose, ours, proof))
    accepted, proof, reason = _ANSWER.unpack(_exactly(connection, _ANSWER.size))
    if not accepted:
        raise JoinRefused(to, reason.rstrip(b"\0").decode(errors="replace"))
    if not hmac.compare_digest(proof, _proof(secret, b"answer", ours, theirs)):
        raise JoinRefused(to, "it does not have the secret of this group")


#: Takes a connection by (rank, purpose, connection); returns why it is refused, or "".
Admit = Callable[[int, int], str]
Take = Callable[[int, int, socket.socket], None]


class Acceptor:
    """A thread that accepts connections of the group's ranks until it is closed."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        rank: int,
        silence_seconds: float,
        admit: Admit,
        take: Take,
    ) -> None:
        self._listener, self._secret, self._rank = listener, secret, rank
        self._silence_seconds, self._admit, self._take = silence_seconds, admit, take
        self._slots = threading.BoundedSemaphore(HANDSHAKES)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dispatcher-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more. Idempotent."""
        self._closed = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        except OSError:
            pass
        self._listener.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # out of file descriptors, for instance
                continue
            self._slots.acquire()
            threading.Thread(target=self._shake, args=(connection,), daemon=True).start()

    def _shake(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            rank, purpose = self._handshake(connection)
            prepare(connection, self._silence_seconds)
            self._take(rank, purpose, connection)
        except (OSError, ValueError, JoinRefused):
            connection.close()
        finally:
            self._slots.release()

    def _handshake(self, connection: socket.socket) -> tuple[int, int]:
        ours = os.urandom(_CHALLENGE)
        connection.sendall(_MAGIC + ours)
        rank, to, purpose, theirs, proof = _HELLO.unpack(_exactly(connection, _HELLO.size))
        expected = _proof(self._secret, b"ask", ours, theirs, _numbers(rank, to, purpose))
        if not hmac.compare_digest(proof, expected):
            reason = "another secret"
        elif to != self._rank:
            reason = f"rank {self._rank} has this address, not rank {to}"
        else:
            reason = self._admit(rank, purpose)
        answer = _proof(self._secret, b"answer", theirs, ours) if not reason else b""
        connection.sendall(_ANSWER.pack(not reason, answer, reason.encode()[:64]))
        if reason:
            raise JoinRefused(rank, reason)
        return rank, purpose
