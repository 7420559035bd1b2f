"""Frames of a rollout's log: how a record is encoded in the file, and what of a file is whole. Pure.

    u32 length of the body · u32 crc32 of the body · body: u32 length of the head · head (msgpack) · arrays

Rules
1. Integers are little-endian. Arrays are stored as their bytes, in the order in which the head names them.
2. A frame without a kind is a fence: it only raises the attempt of the log. It has no number.
3. The last frame of a file may be incomplete: its write was interrupted, and its sender never got an answer. A frame
   that is damaged with others behind it is an error: the disk changed what it had stored.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from domain.errors import Gone, InvalidRequest
from rollout.ports import Record

#: Largest body of a frame.
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
_PREFIX: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
#: Read of each frame at first: most heads are shorter.
_BEGINNING_BYTES: Final = 4096
#: What is read at once behind a damaged frame.
_BLOCK_BYTES: Final = 1024 * 1024


class RolloutLogDamaged(Gone):
    """A record of a rollout's log cannot be read."""

    def __init__(self, rollout: str, reason: str) -> None:
        super().__init__(f"the log of {rollout} is damaged: {reason}")
        self.code = "rollout_log_damaged"


class _Head(msgspec.Struct, array_like=True):
    """What a frame says of its record."""

    attempt: int
    kind: str = ""
    header: dict[str, Any] = {}
    #: Name and bytes of each array.
    arrays: list[tuple[str, int]] = []


class Frame(NamedTuple):
    """A whole frame of a file."""

    attempt: int
    #: None: a fence.
    record: Record | None
    #: Bytes of the whole frame.
    length: int


_heads = msgspec.msgpack.Decoder(_Head)
_encode = msgspec.msgpack.Encoder().encode


def packed(attempt: int, record: Record | None) -> bytes:
    """Return the frame of a record, or of a fence. Raises InvalidRequest above `MAX_RECORD_BYTES`."""
    if record is None:
        head, arrays = _Head(attempt), {}
    else:
        arrays = record.arrays
        sizes = [(name, len(content)) for name, content in arrays.items()]
        head = _Head(attempt, record.kind, record.header, sizes)
    encoded = _encode(head)
    body = b"".join((_LENGTH.pack(len(encoded)), encoded, *arrays.values()))
    if len(body) > MAX_RECORD_BYTES:
        raise InvalidRequest(
            f"a record has {len(body)} bytes, at most {MAX_RECORD_BYTES} are stored: divide it"
        )
    return _PREFIX.pack(len(body), zlib.crc32(body)) + body


def unpacked(rollout: str, content: bytes) -> tuple[list[Frame], int]:
    """Return the whole frames of ``content``, and the position behind them. Raises RolloutLogDamaged."""
    frames: list[Frame] = []
    at, view = 0, memoryview(content)
    while (end := _end_of(view, at)) is not None:
        body = view[at + _PREFIX.size : end]
        if zlib.crc32(body) != _PREFIX.unpack_from(view, at)[1]:
            if end < len(view) and any(view[end:]):
                raise RolloutLogDamaged(rollout, f"record {len(frames)} fails its checksum")
            break
        frames.append(_frame(rollout, body, end - at))
        at = end
    return frames, at


def read_frames(rollout: str, file: BinaryIO) -> Iterator[Frame]:
    """Yield the whole frames of a file, with one of them in memory at a time. Raises RolloutLogDamaged."""
    number = 0
    while len(prefix := file.read(_PREFIX.size)) == _PREFIX.size:
        length, checksum = _PREFIX.unpack(prefix)
        body = file.read(length)
        if not length or len(body) < length:
            return
        if zlib.crc32(body) != checksum:
            if any(any(block) for block in iter(lambda: file.read(_BLOCK_BYTES), b"")):
                raise RolloutLogDamaged(rollout, f"record {number} fails its checksum")
            return
        yield _frame(rollout, memoryview(body), _PREFIX.size + length)
        number += 1


def _end_of(view: memoryview, at: int) -> int | None:
    """Return the end of the frame at ``at``; None where it is incomplete."""
    if at + _PREFIX.size > len(view):
        return None
    length = _PREFIX.unpack_from(view, at)[0]
    end = at + _PREFIX.size + length
    # A file system may extend a file by zeros before it writes its content.
    return int(end) if length and end <= len(view) else None


def _frame(rollout: str, body: memoryview, length: int) -> Frame:
    start = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    try:
        head = _heads.decode(body[_LENGTH.size : start])
    except msgspec.DecodeError as error:
        raise RolloutLogDamaged(rollout, f"a newer version wrote it? {error}") from None
    if not head.kind:
        return Frame(head.attempt, None, length)
    arrays: dict[str, bytes] = {}
    for name, size in head.arrays:
        arrays[name] = bytes(body[start : start + size])
        start += size
    return Frame(head.attempt, Record(head.kind, head.header, arrays), length)


class RecordHead(NamedTuple):
    """A record without the bytes of its arrays, and where its frame is in the file."""

    kind: str
    header: dict[str, Any]
    #: Name of each array → its bytes.
    sizes: dict[str, int]
    position: int
    length: int


def heads_of(size: int, read: Callable[[int, int], bytes]) -> list[RecordHead] | None:
    """Return the heads of the records of a file; None: only the whole content can say what is in it.

    ``read``: returns so many bytes at a position, fewer at the end. The bytes of arrays are not read, apart from those of
    the last frame, whose write may have been interrupted.
    """
    found: list[RecordHead] = []
    at = 0
    while at + _PREFIX.size + _LENGTH.size <= size:
        beginning = read(at, _BEGINNING_BYTES)
        length, checksum = _PREFIX.unpack_from(beginning)
        end = at + _PREFIX.size + length
        if length == 0 or end > size:
            break
        start = _PREFIX.size + _LENGTH.size
        stop = start + _LENGTH.unpack_from(beginning, _PREFIX.size)[0]
        if at + stop > end:
            return None
        encoded = beginning[start:stop]
        if len(beginning) < stop:
            encoded = read(at + start, stop - start)
        if end == size and zlib.crc32(read(at + _PREFIX.size, length)) != checksum:
            break
        try:
            head = _heads.decode(encoded)
        except msgspec.DecodeError:
            return None
        if head.kind:
            found.append(RecordHead(head.kind, head.header, dict(head.arrays), at, end - at))
        at = end
    return found


def heads_of_frames(frames: Iterable[Frame]) -> list[RecordHead]:
    """Return the heads of the records of frames, which begin a file."""
    found: list[RecordHead] = []
    at = 0
    for frame in frames:
        if (record := frame.record) is not None:
            sizes = {name: len(content) for name, content in record.arrays.items()}
            found.append(RecordHead(record.kind, record.header, sizes, at, frame.length))
        at += frame.length
    return found
