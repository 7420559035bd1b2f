"""Frames between a worker and its handler processes: msgpack of tagged structs, with their length, over a socket pair.

Rules
1. Each call, and each question, has a number, and its reply names it: replies arrive in any order.
2. A frame is at most `MAX_FRAME_BYTES`: a longer one is not sent, which fails the call of one job. A longer or unreadable one
   that is received ends the connection, and with it the process. A history is sent in as many frames as it needs.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from domain.errors import (
    CapacityError,
    Conflict,
    Gone,
    InvalidRequest,
    NotFound,
    TangramError,
    Unavailable,
)
from domain.rollouts import Rollout, Stage
from rollout.core.records import RolloutRequest
from rollout.core.results import Failure
from rollout.core.steps import Callback
from rollout.job import CallRefused
from rollout.ports import Record, Seat

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
#: A history is sent in parts of about so many bytes; a record is at most 64 MiB.
PART_BYTES: Final = 32 * 1024 * 1024
_LENGTH: Final = struct.Struct("<I")


class FrameTooLong(ValueError):
    """A message is too long for a handler process."""


class _Frame(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One message."""


class OpenJob(_Frame, frozen=True):
    """Know a rollout, with the first part of the history of its present generation."""

    job: int
    #: ``module:class`` of the handler.
    place: str
    rollout: Rollout
    attempt: int
    request: RolloutRequest
    history: list[Record]


class MoreHistory(_Frame, frozen=True):
    """Further records of a job's history, in their order; before its first call."""

    job: int
    records: list[Record]


class BeginCall(_Frame, frozen=True):
    """Call a method of the job's handler."""

    job: int
    callback: Callback
    stage: Stage
    seat: Seat | None = None
    failure: Failure | None = None


class MoveSeat(_Frame, frozen=True):
    """The lease of the present stage has another seat now."""

    job: int
    seat: Seat | None = None


class StopJob(_Frame, frozen=True):
    """Cancel what the handler does for the job."""

    job: int


class CloseJob(_Frame, frozen=True):
    """Forget the job."""

    job: int


class Question(_Frame, frozen=True):
    """Something is asked of a job from outside, such as by an agent that is not ours."""

    job: int
    number: int
    method: str
    body: dict[str, Any]


class DropQuestion(_Frame, frozen=True):
    """The asking side does not wait for the answer any more."""

    job: int
    number: int


class CallError(msgspec.Struct, frozen=True, array_like=True):
    """Why a call of a handler was refused."""

    message: str


class CallReply(_Frame, frozen=True):
    """Answer to a call of a handler."""

    call: int
    value: Any = None
    error: CallError | None = None


class Ping(_Frame, frozen=True):
    """Asks whether the event loop of the process runs."""

    number: int


class HandlerCall(_Frame, frozen=True):
    """A handler asks the worker for something."""

    call: int
    job: int
    method: str
    arguments: list[Any]


class HandlerEnded(_Frame, frozen=True):
    """A method of a handler has ended: with a value, a failure, or because it was stopped."""

    job: int
    value: Any = None
    failure: Failure | None = None
    stopped: bool = False


class QuestionError(msgspec.Struct, frozen=True, array_like=True):
    """Why a question has no answer: an error of the request, one that may pass, or one of the handler."""

    kind: str
    message: str
    pointer: str = ""
    code: str = ""

    @classmethod
    def of(cls, error: BaseException) -> QuestionError:
        """Return an error as it is sent."""
        if isinstance(error, InvalidRequest):
            kind = next(name for name, type_ in _ERRORS.items() if isinstance(error, type_))
            return cls(kind, str(error), error.pointer, error.code)
        if isinstance(error, CapacityError | CallRefused | asyncio.CancelledError):
            return cls("unavailable", str(error) or "its stage has ended")
        return cls("failed", f"{type(error).__name__}: {error}")

    @property
    def error(self) -> TangramError:
        """The error for the asking side."""
        if self.kind == "unavailable":
            return Unavailable(self.message)
        kind = _ERRORS.get(self.kind)
        if kind is None:
            return TangramError(self.message)
        found = kind(self.message)
        found.pointer, found.code = self.pointer, self.code
        return found


_ERRORS: Final[Mapping[str, type[InvalidRequest]]] = {
    "not_found": NotFound,
    "conflict": Conflict,
    "gone": Gone,
    "invalid": InvalidRequest,
}


class Answered(_Frame, frozen=True):
    """A question has an answer, or none."""

    job: int
    number: int
    value: Any = None
    error: QuestionError | None = None


class Pong(_Frame, frozen=True):
    """The event loop runs."""

    number: int


ToProcess = (
    OpenJob
    | MoreHistory
    | MoveSeat
    | Question
    | DropQuestion
    | BeginCall
    | StopJob
    | CloseJob
    | CallReply
    | Ping
)
FromProcess = HandlerCall | HandlerEnded | Answered | Pong
Received = TypeVar("Received")


def plain(value: object) -> object:
    """Return a number of numpy or torch as Python's, for msgspec. Raises TypeError."""
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    raise TypeError(f"a {type(value).__name__} cannot be an answer: return JSON values")


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=plain)


class FrameConnection(asyncio.Protocol, Generic[Received]):
    """One end of a connection. ``taken`` gets each frame; ``ended`` is called once, with the reason."""

    def __init__(
        self,
        kind: Any,
        taken: Callable[[Received], None],
        ended: Callable[[str], None],
    ) -> None:
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(kind)
        self._taken = taken
        self._ended = ended
        self._unread = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop has transports of its own, which are no asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, frame: _Frame) -> None:
        """Send a frame; nothing after the end. Raises FrameTooLong; TypeError for a value that is not JSON."""
        if self._transport is not None and not self._transport.is_closing():
            body = _encoder.encode(frame)
            if len(body) > MAX_FRAME_BYTES:
                raise FrameTooLong(
                    f"a message of {len(body)} bytes is too long, at most {MAX_FRAME_BYTES} are sent:"
                    " use smaller files"
                )
            self._transport.write(_LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        """Close the connection; ``ended`` follows."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take the frames that are complete."""
        self._unread += data
        start = 0
        while len(self._unread) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread, start)
            if length > MAX_FRAME_BYTES:
                self.close()
                return
            end = start + _LENGTH.size + length
            if len(self._unread) < end:
                break
            try:
                frame = self._decoder.decode(memoryview(self._unread)[start + _LENGTH.size : end])
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.close()
                return
            start = end
            self._taken(frame)
        del self._unread[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that it has ended."""
        self._transport = None
        self._ended(str(exc) if exc else "its connection has ended")


def history_parts(history: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield a history in parts that fit into a frame, at least one; a log may be longer than any frame."""
    part: list[Record] = []
    size = 0
    for record in history:
        length = sum(map(len, record.arrays.values())) + len(_encoder.encode(record.header))
        if part and size + length > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(record)
        size += length
    yield part
