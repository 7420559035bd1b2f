"""Log store of rollouts: one append-only file per rollout, on disk beside Redis, until it is acknowledged.

The folder is ``rollouts`` in the folder of stored bodies, which all parts share: on one machine by itself, on several
ones by a shared file system. What a worker does is a function of the log, so another worker can continue from it.

Rules
1. `create`, `fence` and `append` return when the file is flushed to disk. A full disk or another error of a write
   leaves the log as it was (CapacityError).
2. Each frame has the attempt of its writer, and the largest one fences the log: a writer of an earlier attempt gets
   `Superseded`, from then on. A new attempt fences the log before it reads it.
3. Records are counted from 0. A record that is appended again must be equal, and is written once.
4. Writers of all processes take the lock of the file. An incomplete last frame is cut off by the next writer and left
   out by readers.
5. New rollouts are refused above `LogLimits.accept_bytes`, with what they would write, records of accepted ones above
   `append_bytes`. Sizes are measured at most every `MEASURE_SECONDS`, so a burst can pass them by what it writes meanwhile.
6. Record 0 has at most `MAX_FIRST_BYTES`, and those that are created together at most `MAX_CREATED_BYTES`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.errors import CapacityError, Conflict, InvalidRequest, NotFound, Unavailable
from rollout.ports import Record, Superseded
from scheduler.runtime.rollouts.log_frames import (
    Frame,
    RecordHead,
    RolloutLogDamaged,
    heads_of,
    heads_of_frames,
    packed,
    read_frames,
    unpacked,
)

MEASURE_SECONDS: Final = 5.0
#: Most bytes of all logs at which rollouts are accepted, unless the operator sets another limit.
ACCEPT_BYTES: Final = 8 * 1024**3
#: Most bytes of record 0, which each sample of an instance stores, and of all those of one request.
MAX_FIRST_BYTES: Final = 1024**2
MAX_CREATED_BYTES: Final = 256 * 1024**2
#: Logs of one request that are written at once.
CREATED_AT_ONCE: Final = 16
#: Logs whose index is in memory.
INDEXED: Final = 4096
_LOG: Final = "log"
_ID: Final = re.compile("rol_[0-9a-f]{28}")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class LogLimits:
    """Most bytes of all logs together."""

    accept_bytes: int = ACCEPT_BYTES
    #: Above the former, so that rollouts which have begun can end.
    append_bytes: int = ACCEPT_BYTES + ACCEPT_BYTES // 4


@dataclass
class _Index:
    """What this process knows of a log: all of it up to ``end``."""

    end: int = 0
    attempt: int = 0
    #: Position and length of the frame of each record.
    places: list[tuple[int, int]] = field(default_factory=list)


class RolloutLogs:
    """The logs below one folder; None: this part has none. All methods block."""

    def __init__(self, folder: Path | None, limits: LogLimits | None = None) -> None:
        self._folder = folder
        self._limits = limits or LogLimits()
        self._indexes: OrderedDict[str, _Index] = OrderedDict()
        self._guard = threading.Lock()
        self._bytes = 0
        self._measured_at = float("-inf")

    @property
    def folder(self) -> Path:
        """The folder of the logs. Raises Unavailable where there is none."""
        if self._folder is None:
            raise Unavailable("rollouts need a folder for their logs: set TANGRAM_BODIES_DIRECTORY")
        return self._folder

    @property
    def is_kept(self) -> bool:
        """Whether this part has the folder of the logs."""
        return self._folder is not None

    def create(self, first: Iterable[tuple[str, Record]]) -> None:
        """Begin logs with their record 0. Raises InvalidRequest, CapacityError; then none of them exists."""
        frames = _first_frames(first)
        coming = sum(len(frame) for _, frame in frames)
        self._check_room(self._limits.accept_bytes, "no rollout is accepted", coming)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._begin_all(frames)
            _flush_folder(self.folder)
        except BaseException as error:
            for rollout, _ in frames:
                self.remove(rollout)
            if isinstance(error, OSError):
                raise _write_failed(error) from error
            raise

    def fence(self, rollout: str, attempt: int) -> None:
        """Refuse all writers of attempts before ``attempt``. Raises Superseded, NotFound, CapacityError."""
        with self._locked(rollout) as (file, index):
            if attempt < index.attempt:
                raise Superseded(f"{rollout} is in attempt {index.attempt}")
            if attempt > index.attempt:
                self._write(file, index, packed(attempt, None))
                index.attempt = attempt

    def append(self, rollout: str, attempt: int, number: int, record: Record) -> None:
        """Store record ``number``. Raises Superseded, Conflict, CapacityError.

        A log that was removed is that of a rollout that is over: Superseded.
        """
        self._check_room(self._limits.append_bytes, "no record is stored")
        frame = packed(attempt, record)
        try:
            with self._locked(rollout) as (file, index):
                if attempt < index.attempt:
                    raise Superseded(f"{rollout} is in attempt {index.attempt}")
                if number != len(index.places):
                    self._check_equal(rollout, file, index, number, record)
                    return
                start = index.end
                self._write(file, index, frame)
                index.attempt = attempt
                index.places.append((start, len(frame)))
        except NotFound as error:
            raise Superseded(str(error)) from None

    def read(self, rollout: str) -> Sequence[Record]:
        """Return the whole records. Raises NotFound, RolloutLogDamaged, Unavailable."""
        frames = self._frames(rollout)
        return [frame.record for frame in frames if frame.record is not None]

    def heads(self, rollout: str) -> Sequence[RecordHead]:
        """Return the whole records without the bytes of their arrays, which are not read. Raises as `read`."""
        with self._reading(rollout) as file:
            found = heads_of(os.fstat(file).st_size, lambda at, count: os.pread(file, count, at))
        return heads_of_frames(self._frames(rollout)) if found is None else found

    def record(self, rollout: str, head: RecordHead) -> Record:
        """Return the record of a head. Raises as `read`."""
        [record] = self.records(rollout, [head])
        return record

    def records(self, rollout: str, heads: Iterable[RecordHead]) -> list[Record]:
        """Return the records of some heads, in their order. Raises as `read`."""
        with self._reading(rollout) as file:
            return [_record_at(rollout, file, head) for head in heads]

    def _frames(self, rollout: str) -> list[Frame]:
        with self._reading(rollout) as file, open(file, "rb", closefd=False) as whole:
            content = whole.read()
        return unpacked(rollout, content)[0]

    @contextmanager
    def _reading(self, rollout: str) -> Iterator[int]:
        """Open a log to read it. Raises NotFound, Unavailable."""
        try:
            file = os.open(self._path(rollout), os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield file
            finally:
                os.close(file)
        except FileNotFoundError:
            raise _missing(rollout) from None
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"the log of {rollout} cannot be read: {why}") from error

    def scan(self, rollout: str) -> Iterator[Record]:
        """Yield the whole records, with one of them in memory at a time. Raises as `read`."""
        with self._reading(rollout) as file, open(file, "rb", closefd=False) as whole:
            for frame in read_frames(rollout, whole):
                if frame.record is not None:
                    yield frame.record

    def first(self, rollout: str) -> Record:
        """Return record 0, the request. Raises NotFound, RolloutLogDamaged."""
        records = self.read(rollout)
        if not records:
            raise _missing(rollout)
        return records[0]

    def remove(self, rollout: str) -> bool:
        """Delete a log; False when there is none. May be repeated."""
        path = self._path(rollout).parent
        with self._guard:
            self._indexes.pop(rollout, None)
        if not path.is_dir():
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True

    def untouched(self, seconds: float) -> list[str]:
        """Return the rollouts whose log was not written for ``seconds``."""
        if self._folder is None or not self._folder.is_dir():
            return []
        before = time.time() - seconds
        found = (path for path in self._folder.iterdir() if is_rollout_id(path.name))
        return [path.name for path in found if _written_at(path) < before]

    def size(self, rollout: str) -> int:
        """Return the bytes of a log; 0 without one, and of one that cannot be read."""
        try:
            return 0 if self._folder is None else _size(self._path(rollout))
        except OSError:
            return 0

    @property
    def used_bytes(self) -> int:
        """Size of all logs, measured now."""
        if self._folder is None or not self._folder.is_dir():
            return 0
        return sum(_size(path / _LOG) for path in self._folder.iterdir())

    def _begin_all(self, frames: Sequence[tuple[str, bytes]]) -> None:
        """Write first frames; a disk flushes several at once in the time of one."""
        if len(frames) == 1:
            self._begin(*frames[0])
            return
        with ThreadPoolExecutor(min(CREATED_AT_ONCE, len(frames)), "rollout-logs") as threads:
            begun = [threads.submit(self._begin, *each) for each in frames]
            try:
                for each in begun:
                    each.result()
            except BaseException:
                threads.shutdown(
                    wait=False, cancel_futures=True
                )  # those that run end before the error is raised
                raise

    def _begin(self, rollout: str, frame: bytes) -> None:
        path = self._path(rollout)
        path.parent.mkdir(mode=0o700)
        with path.open("xb") as file:
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        _flush_folder(path.parent)
        with self._guard:
            self._bytes += len(frame)

    @contextmanager
    def _locked(self, rollout: str) -> Iterator[tuple[int, _Index]]:
        """Hold the lock of a log, with an index of all that is in it."""
        try:
            file = os.open(self._path(rollout), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _missing(rollout) from None
        except OSError as error:
            raise _write_failed(error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file).st_nlink:  # it was removed while this writer waited
                raise _missing(rollout)
            yield file, self._caught_up(rollout, file)
        except OSError as error:
            raise _write_failed(error) from error
        finally:
            os.close(file)

    def _caught_up(self, rollout: str, file: int) -> _Index:
        with self._guard:
            index = self._indexes.setdefault(rollout, _Index())
            self._indexes.move_to_end(rollout)
            if len(self._indexes) > INDEXED:
                self._indexes.popitem(last=False)
        size = os.fstat(file).st_size
        if size < index.end:  # not a log of this process any more
            index.end, index.attempt, index.places = 0, 0, []
        if size > index.end:
            frames, _ = unpacked(rollout, os.pread(file, size - index.end, index.end))
            for frame in frames:
                if frame.record is not None:
                    index.places.append((index.end, frame.length))
                index.end += frame.length
                index.attempt = max(index.attempt, frame.attempt)
        return index

    def _write(self, file: int, index: _Index, frame: bytes) -> None:
        """Write a frame behind the whole ones, and flush it."""
        try:
            os.ftruncate(file, index.end)
            written = 0
            while written < len(frame):
                written += os.pwrite(file, frame[written:], index.end + written)
            os.fsync(file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file, index.end)
            raise _write_failed(error) from error
        index.end += len(frame)
        self._bytes += len(frame)

    def _check_equal(
        self, rollout: str, file: int, index: _Index, number: int, record: Record
    ) -> None:
        """Raise Conflict unless record ``number`` is stored, and equal."""
        if not 0 <= number < len(index.places):
            raise Conflict(f"record {len(index.places)} of {rollout} is next, not {number}")
        start, length = index.places[number]
        stored = os.pread(file, length, start)
        frames, _ = unpacked(rollout, stored)
        if packed(frames[0].attempt, record) != stored:
            raise Conflict(f"record {number} of {rollout} is stored, with another content")

    def _check_room(self, most: int, consequence: str, coming: int = 0) -> None:
        with self._guard:
            due = time.monotonic() - self._measured_at >= MEASURE_SECONDS
            if due:
                self._measured_at = time.monotonic()
        if due:
            self._bytes = self.used_bytes
        if self._bytes + coming > most:
            more = f" and would get {coming} more" if coming else ""
            raise CapacityError(
                f"the logs of rollouts have {self._bytes} bytes{more}, and {consequence} above {most}:"
                " acknowledge rollouts that are finished, or raise TANGRAM_ROLLOUT_LOG_BYTES",
                retry_after_seconds=MEASURE_SECONDS,
            )

    def _path(self, rollout: str) -> Path:
        if not is_rollout_id(rollout):
            raise InvalidRequest(f"{rollout[:64]!r} is no id of a rollout")
        return self.folder / rollout / _LOG


def rollout_logs(bodies: str, limit_bytes: int) -> RolloutLogs:
    """Return the logs beside the stored bodies in folder ``bodies``; empty: there is none."""
    folder = Path(bodies) / "rollouts" if bodies else None
    return RolloutLogs(folder, LogLimits(limit_bytes, limit_bytes + limit_bytes // 4))


def is_rollout_id(text: str) -> bool:
    """Whether ``text`` can be the id of a rollout, and so the name of a folder."""
    return _ID.fullmatch(text) is not None


def _first_frames(first: Iterable[tuple[str, Record]]) -> list[tuple[str, bytes]]:
    """Return the frame of record 0 of each rollout; samples of one instance share it. Raises InvalidRequest."""
    given, frames = list(first), dict[int, bytes]()
    for _, record in given:
        if id(record) not in frames:
            frames[id(record)] = frame = packed(0, record)
            if len(frame) > MAX_FIRST_BYTES:
                raise InvalidRequest(
                    f"an instance, with sampling, environment and options, has {len(frame)} bytes, at most"
                    f" {MAX_FIRST_BYTES} are stored: leave large data in files of its environment",
                    pointer="/instances",
                )
    total = sum(len(frames[id(record)]) for _, record in given)
    if total > MAX_CREATED_BYTES:
        raise InvalidRequest(
            f"the samples of the instances have {total} bytes, at most {MAX_CREATED_BYTES} are stored"
            " together: divide the request",
            pointer="/samples",
        )
    return [(rollout, frames[id(record)]) for rollout, record in given]


def _record_at(rollout: str, file: int, head: RecordHead) -> Record:
    frames, _ = unpacked(rollout, os.pread(file, head.length, head.position))
    if not frames or frames[0].record is None:
        raise RolloutLogDamaged(rollout, f"the record at byte {head.position} cannot be read")
    return frames[0].record


def _missing(rollout: str) -> NotFound:
    return NotFound(f"{rollout} has no log: it was acknowledged, or its retention is over")


def _write_failed(error: OSError) -> CapacityError:
    full = error.errno in _FULL
    why = "the disk is full" if full else (error.strerror or str(error))
    return CapacityError(f"a log of a rollout cannot be written: {why}", retry_after_seconds=5.0)


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):  # a stray file
        return 0


def _written_at(folder: Path) -> float:
    """Return when a log was written last; a folder without one counts from when it was made."""
    for path in (folder / _LOG, folder):
        try:
            return path.stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            continue
    return float("inf")  # it was removed meanwhile
