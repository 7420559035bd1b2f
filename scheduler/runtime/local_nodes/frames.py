"""Frames of the socket: msgpack behind a length of four bytes. Both ends are of one machine, versions may differ by one."""

from __future__ import annotations

from typing import Final

import msgspec

#: A larger frame ends the connection; messages of the inbox are smaller.
MOST_BYTES: Final = 256 * 1024 * 1024
_LENGTH: Final = 4


class Hello(msgspec.Struct, tag="hello", array_like=True):
    """The first frame of a node: its stream of commands, and the last entry that it wrote to the inbox."""

    stream: str
    inbox_id: str


class Reports(msgspec.Struct, tag="reports", array_like=True):
    """Encoded events of a node, in order; ``last`` counts all those of this connection."""

    last: int
    messages: list[bytes]


class Opened(msgspec.Struct, tag="opened", array_like=True):
    """The leader takes reports from now on."""


class Commands(msgspec.Struct, tag="commands", array_like=True):
    """An entry of the node's stream, and the id of the entry before it; empty: the node must read the stream."""

    before: str
    entry_id: str
    body: bytes


class Confirmed(msgspec.Struct, tag="confirmed", array_like=True):
    """All reports up to this number are in the journal."""

    last: int


Frame = Hello | Reports | Opened | Commands | Confirmed
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class BrokenFrame(Exception):
    """The other end sent what is no frame of this version."""


def framed(frame: Frame) -> bytes:
    """Return the bytes of a frame with its length."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_LENGTH, "big") + body


class FrameReader:
    """Cuts received bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are whole with ``data``. Raises BrokenFrame."""
        buffer, frames, at = self._buffer, [], 0
        buffer += data
        while len(buffer) - at >= _LENGTH:
            size = int.from_bytes(buffer[at : at + _LENGTH], "big")
            if size > MOST_BYTES:
                raise BrokenFrame(f"a frame of {size} bytes")
            end = at + _LENGTH + size
            if len(buffer) < end:
                break
            try:
                frames.append(_decoder.decode(memoryview(buffer)[at + _LENGTH : end]))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BrokenFrame(str(error)) from error
            at = end
        del buffer[:at]
        return frames
