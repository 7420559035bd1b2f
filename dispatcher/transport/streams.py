"""Streams of bytes between two ranks: the pieces of one exchange, in an order that both know, cut into parts with a checksum each.

Rules
1. One connection in each direction. The sender's is opened at its first piece and kept for later exchanges.
2. A rank sends to a few others at a time, beginning with the next higher one, so that no rank is sent to by all at once (`rotation`) and no link
   idles while one receiver is busy; it receives from each one in a thread of its own, so that a sender never waits for a rank that waits for it.
3. Memory beside the arrays: one part of at most `PART_BYTES` for each connection, and only where a view has no runs of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dispatcher.transport.errors import Corrupted
from dispatcher.transport.frames import (
    BUFFERS,
    Head,
    checksum,
    receive_head,
    receive_into,
    send_part,
)
from dispatcher.transport.spans import Array, ScatterTarget, readable, spans

#: The longest part: it is checked while a processor's cache still has it.
PART_BYTES = 1 << 20


class TensorPiece(NamedTuple):
    """A view of an array that crosses, and the tensor that it belongs to."""

    tensor: str
    view: Array


def rotation(rank: int, ranks: Sequence[int]) -> list[int]:
    """Return the other ranks in the order in which one sends to them: the next higher one first."""
    ordered = sorted(ranks)
    above = [each for each in ordered if each > rank]
    return above + [each for each in ordered if each < rank]


def size(pieces: Sequence[TensorPiece]) -> int:
    """Return the bytes of pieces."""
    return sum(piece.view.nbytes for piece in pieces)


def parts(pieces: Sequence[TensorPiece]) -> Iterator[list[memoryview]]:
    """Yield the bytes of the pieces, gathered into parts."""
    gathered: list[memoryview] = []
    room = PART_BYTES
    for piece in pieces:
        for span in spans(piece.view, PART_BYTES):
            if span.nbytes > room or len(gathered) == BUFFERS:
                yield gathered
                gathered, room = [], PART_BYTES
            gathered.append(readable(span))
            room -= span.nbytes
    if gathered:
        yield gathered


class PackedStream:
    """The bytes of pieces as a stream that is read in lengths of the reader's choice, each byte copied once."""

    def __init__(self, pieces: Sequence[TensorPiece]) -> None:
        self._buffers = (buffer for part in parts(pieces) for buffer in part)
        self._left = memoryview(b"")

    def read_into(self, target: Array) -> None:
        """Fill a flat array with the next bytes."""
        sink, done = memoryview(target), 0  # type: ignore[arg-type, unused-ignore]
        while done < len(sink):
            if not self._left:
                self._left = next(self._buffers)
            taken = self._left[: len(sink) - done]
            sink[done : done + len(taken)] = taken
            self._left, done = self._left[len(taken) :], done + len(taken)


def send(
    connection: socket.socket, exchange: int, pieces: Sequence[TensorPiece], checked: bool
) -> None:
    """Send pieces; returns when the kernel has them."""
    for number, part in enumerate(parts(pieces)):
        length = sum(map(len, part))
        head = Head(exchange, number, length, checksum(part) if checked else 0)
        send_part(connection, head, part)


def receive(
    connection: socket.socket,
    exchange: int,
    sender: int,
    pieces: Sequence[TensorPiece],
    checked: bool,
) -> None:
    """Receive what `send` sent; returns when each byte is in its place. Raises `Corrupted`, OSError, ValueError."""
    total, done, number = size(pieces), 0, 0
    target = ScatterTarget(piece.view for piece in pieces)
    while done < total:
        head = receive_head(connection)
        expected = head.exchange == exchange and head.part == number
        if not expected or not 0 < head.length <= min(PART_BYTES, total - done):
            raise Corrupted(sender, _tensor_at(pieces, done))
        buffers = target.take(head.length)
        receive_into(connection, buffers)
        if checked and checksum(buffers) != head.checksum:
            raise Corrupted(sender, _tensor_at(pieces, done))
        target.commit()
        done, number = done + head.length, number + 1


def _tensor_at(pieces: Sequence[TensorPiece], offset: int) -> str:
    """Return the tensor whose bytes stand at an offset of the stream."""
    for piece in pieces:
        if offset < piece.view.nbytes:
            return piece.tensor
        offset -= piece.view.nbytes
    return pieces[-1].tensor
