"""Frames of a connection: messages of the group's control plane, and the head before each part of a tensor.

A message is four bytes of length and JSON. A part of a tensor is a head of fixed size (exchange, number of the part, length, checksum)
and the bytes themselves, gathered from and scattered to memory without a copy.

Rules
1. Nothing that arrives is unpickled, evaluated or allocated by a length that the other side chose, beyond `MESSAGE_BYTES`.
2. The checksum is CRC-32 of zlib, over the bytes of the part; 0 where the group goes without.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

#: The longest message; descriptions are sent as digests, so that it is far away.
MESSAGE_BYTES = 1 << 20
#: Buffers of one system call; Linux takes 1,024.
BUFFERS = 512
_LENGTH = struct.Struct("!I")
_HEAD = struct.Struct("!IIII")


class Head(NamedTuple):
    """What stands before a part: number of the exchange and of the part in its stream, bytes, CRC-32."""

    exchange: int
    part: int
    length: int
    checksum: int


class Ended(ConnectionError):
    """The other side closed the connection."""


def message_bytes(message: dict[str, Any]) -> bytes:
    """Return a message as it is sent."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MESSAGE_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is longer than {MESSAGE_BYTES}")
    return _LENGTH.pack(len(body)) + body


def take_message(buffer: bytearray) -> dict[str, Any] | None:
    """Remove the first message from what was received; None while it is incomplete."""
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is longer than {MESSAGE_BYTES}")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    message = json.loads(bytes(buffer[_LENGTH.size : end]))
    del buffer[:end]
    if not isinstance(message, dict):
        raise ValueError("a message is a JSON object")
    return message


def checksum(parts: Sequence[memoryview]) -> int:
    """Return the CRC-32 of buffers, as of one."""
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found


def send_part(connection: socket.socket, head: Head, parts: Sequence[memoryview]) -> None:
    """Send a head and the buffers after it; blocks until the kernel has them."""
    buffers = [memoryview(_HEAD.pack(*head)), *parts]
    first = 0
    while first < len(buffers):
        sent = connection.sendmsg(buffers[first : first + BUFFERS])
        while first < len(buffers) and sent >= len(buffers[first]):
            sent -= len(buffers[first])
            first += 1
        if sent:
            buffers[first] = buffers[first][sent:]


def receive_head(connection: socket.socket) -> Head:
    """Return the next head; raises `Ended` at the end of the stream."""
    head = bytearray(_HEAD.size)
    receive_into(connection, [memoryview(head)])
    return Head(*_HEAD.unpack(head))


def receive_into(connection: socket.socket, parts: Sequence[memoryview]) -> None:
    """Fill the buffers, in order; blocks. Raises `Ended` where the stream ends before."""
    buffers = list(parts)
    first = 0
    while first < len(buffers):
        if first == len(buffers) - 1:
            got = connection.recv_into(buffers[first], 0, socket.MSG_WAITALL)
        else:
            got = connection.recvmsg_into(buffers[first : first + BUFFERS], 0, socket.MSG_WAITALL)[
                0
            ]
        if got == 0:
            raise Ended("the other side closed the connection")
        while first < len(buffers) and got >= len(buffers[first]):
            got -= len(buffers[first])
            first += 1
        if got:
            buffers[first] = buffers[first][got:]
