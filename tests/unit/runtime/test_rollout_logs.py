"""Logs of rollouts: whole records alone, one writer at a time, nothing lost, and a bound."""

from __future__ import annotations

import errno
import os
import struct
import threading
from pathlib import Path

import pytest

from domain.errors import CapacityError, Conflict, InvalidRequest, NotFound, Unavailable
from rollout.ports import Record, Superseded
from scheduler.runtime.rollouts import log_store
from scheduler.runtime.rollouts.log_frames import RolloutLogDamaged
from scheduler.runtime.rollouts.log_store import LogLimits, RolloutLogs

ROLLOUT = f"rol_{1:028x}"
OTHER = f"rol_{2:028x}"
REQUEST = Record("request", {"instance": {"id": "django-1"}})
TURN = Record(
    "turn", {"message": "ls"}, {"ids": struct.pack("<3i", 1, 2, 3), "logprobs": b"\0" * 12}
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rollouts"


@pytest.fixture
def logs(folder: Path) -> RolloutLogs:
    logs = RolloutLogs(folder)
    logs.create([(ROLLOUT, REQUEST)])
    return logs


def file_of(folder: Path) -> Path:
    return folder / ROLLOUT / "log"


def another_process(folder: Path) -> RolloutLogs:
    """Return a store that knows nothing of what the first one has in memory."""
    return RolloutLogs(folder)


def test_records_are_read_as_they_were_appended(logs: RolloutLogs, folder: Path) -> None:
    logs.append(ROLLOUT, 1, 1, TURN)
    assert logs.read(ROLLOUT) == [REQUEST, TURN]
    assert another_process(folder).read(ROLLOUT) == [REQUEST, TURN]
    assert logs.first(ROLLOUT) == REQUEST


def test_an_append_returns_after_its_bytes_are_flushed(
    logs: RolloutLogs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, int]] = []
    flush = os.fsync

    def recorded(descriptor: int) -> None:
        flushed.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    logs.append(ROLLOUT, 1, 1, TURN)
    path = file_of(folder)
    assert flushed == [(str(path), path.stat().st_size)]
    flushed.clear()
    logs.create([(OTHER, REQUEST)])
    assert [name for name, _ in flushed] == [
        str(folder / OTHER / "log"),
        str(folder / OTHER),
        str(folder),
    ]


def test_a_repeated_record_is_written_once_and_must_be_equal(
    logs: RolloutLogs, folder: Path
) -> None:
    logs.append(ROLLOUT, 1, 1, TURN)
    before = file_of(folder).stat().st_size
    another_process(folder).append(ROLLOUT, 2, 1, TURN)
    assert file_of(folder).stat().st_size == before
    with pytest.raises(Conflict, match="another content"):
        logs.append(ROLLOUT, 2, 1, Record("turn", {"message": "pwd"}))
    with pytest.raises(Conflict, match=r"record 2 .* is next"):
        logs.append(ROLLOUT, 2, 5, TURN)


def test_a_writer_of_an_earlier_attempt_is_superseded(logs: RolloutLogs, folder: Path) -> None:
    """The worker was stopped for a minute; its successor has taken the rollout."""
    logs.append(ROLLOUT, 1, 1, TURN)
    successor = another_process(folder)
    successor.fence(ROLLOUT, 2)
    with pytest.raises(Superseded):
        logs.append(ROLLOUT, 1, 2, TURN)
    assert successor.read(ROLLOUT) == [REQUEST, TURN]  # a fence is no record
    successor.append(ROLLOUT, 2, 2, TURN)
    with pytest.raises(Superseded):
        logs.fence(ROLLOUT, 1)
    logs.fence(ROLLOUT, 2)
    assert len(another_process(folder).read(ROLLOUT)) == 3


@pytest.mark.parametrize("kept", [1, 7, 8, 20, -1])
def test_a_torn_last_record_is_left_out_and_cut_off(
    logs: RolloutLogs, folder: Path, kept: int
) -> None:
    whole = file_of(folder).stat().st_size
    logs.append(ROLLOUT, 1, 1, TURN)
    path = file_of(folder)
    content = path.read_bytes()
    path.write_bytes(content[: whole + kept] if kept > 0 else content[:kept])
    successor = another_process(folder)
    assert successor.read(ROLLOUT) == [REQUEST]
    successor.append(ROLLOUT, 2, 1, TURN)
    assert another_process(folder).read(ROLLOUT) == [REQUEST, TURN]


@pytest.mark.parametrize("torn", [b"\0" * 4096, b"\xff" * 3, b"\x40\0\0\0" + b"\0" * 100])
def test_zeros_and_garbage_behind_the_last_record_are_left_out(
    logs: RolloutLogs, folder: Path, torn: bytes
) -> None:
    """A file system may extend a file before it writes its content."""
    with file_of(folder).open("ab") as file:
        file.write(torn)
    successor = another_process(folder)
    assert successor.read(ROLLOUT) == [REQUEST]
    successor.append(ROLLOUT, 1, 1, TURN)
    assert another_process(folder).read(ROLLOUT) == [REQUEST, TURN]


def test_damage_before_the_last_record_is_an_error_and_not_a_shorter_log(
    logs: RolloutLogs, folder: Path
) -> None:
    path = file_of(folder)
    place = path.stat().st_size + 30
    for number in (1, 2):
        logs.append(ROLLOUT, 1, number, TURN)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(RolloutLogDamaged, match="record 1 fails its checksum") as raised:
        another_process(folder).read(ROLLOUT)
    assert raised.value.code == "rollout_log_damaged"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_write_that_fails_leaves_the_log_as_it_was(
    logs: RolloutLogs, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    before = file_of(folder).read_bytes()
    real = os.pwrite

    def fails(descriptor: int, *args: object) -> int:
        if args:
            real(descriptor, b"half", len(before))
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(CapacityError, match="cannot be written"):
            logs.append(ROLLOUT, 1, 1, TURN)
    assert file_of(folder).read_bytes() == before
    logs.append(ROLLOUT, 1, 1, TURN)
    assert another_process(folder).read(ROLLOUT) == [REQUEST, TURN]


def test_logs_of_one_request_are_flushed_side_by_side(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, 1,000 rollouts would wait for 2,000 flushes."""
    logs, flush = RolloutLogs(folder), os.fsync
    both, guard, flushing = threading.Event(), threading.Lock(), [0]

    def flushed(descriptor: int) -> None:
        with guard:
            flushing[0] += 1
            if flushing[0] == 2:
                both.set()
        assert both.wait(20), "the second flush waits for the end of the first"
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", flushed)
    logs.create([(ROLLOUT, REQUEST), (OTHER, REQUEST)])
    assert [logs.read(each) for each in (ROLLOUT, OTHER)] == [[REQUEST], [REQUEST]]


def test_a_batch_that_does_not_fit_leaves_no_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, flush, left = RolloutLogs(folder), os.fsync, [3]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CapacityError, match="disk is full"):
        logs.create([(ROLLOUT, REQUEST), (OTHER, REQUEST)])
    assert list(folder.iterdir()) == []


def test_rollouts_are_refused_before_their_records_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "MEASURE_SECONDS", 0.0)
    logs = RolloutLogs(folder, LogLimits(accept_bytes=200, append_bytes=400))
    logs.create([(ROLLOUT, REQUEST)])
    logs.append(ROLLOUT, 1, 1, Record("observation", {}, {"text": b"x" * 200}))
    with pytest.raises(CapacityError, match="TANGRAM_ROLLOUT_LOG_BYTES"):
        logs.create([(OTHER, REQUEST)])
    logs.append(ROLLOUT, 1, 2, Record("observation", {}, {"text": b"x" * 200}))
    with pytest.raises(CapacityError, match="no record is stored"):
        logs.append(ROLLOUT, 1, 3, TURN)
    assert logs.remove(ROLLOUT)
    logs.create([(OTHER, REQUEST)])


def test_what_a_request_would_write_counts_before_it_is_written(folder: Path) -> None:
    large = Record("request", {"instance": {"id": "x" * 1000}})
    logs = RolloutLogs(folder, LogLimits(accept_bytes=1500, append_bytes=3000))
    with pytest.raises(CapacityError, match="would get 2"):
        logs.create([(ROLLOUT, large), (OTHER, large)])
    assert not folder.exists()
    logs.create([(ROLLOUT, large)])


@pytest.mark.parametrize(
    ("limit", "said"), [("MAX_FIRST_BYTES", "an instance"), ("MAX_CREATED_BYTES", "divide")]
)
def test_one_request_writes_a_bounded_amount(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    large = Record("request", {"instance": {"id": "x" * 1000}})
    monkeypatch.setattr(log_store, limit, 900 if limit == "MAX_FIRST_BYTES" else 2000)
    logs = RolloutLogs(folder)
    with pytest.raises(InvalidRequest, match=said):
        logs.create([(ROLLOUT, large), (OTHER, large)])
    assert not folder.exists()


def test_a_removed_log_supersedes_its_writer(logs: RolloutLogs, folder: Path) -> None:
    logs.append(ROLLOUT, 1, 1, TURN)
    assert another_process(folder).remove(ROLLOUT)
    assert not logs.remove(ROLLOUT)
    with pytest.raises(Superseded):
        logs.append(ROLLOUT, 1, 2, TURN)
    with pytest.raises(NotFound):
        logs.read(ROLLOUT)
    with pytest.raises(NotFound):
        logs.fence(ROLLOUT, 2)


def test_logs_without_a_write_for_long_are_listed(logs: RolloutLogs, folder: Path) -> None:
    logs.create([(OTHER, REQUEST)])
    os.utime(file_of(folder), (0, 0))
    assert logs.untouched(3600) == [ROLLOUT]
    assert RolloutLogs(None).untouched(0) == []


def test_what_is_no_id_is_no_path(logs: RolloutLogs) -> None:
    for name in ("../../etc", "rol_", f"rol_{'x' * 28}", ""):
        with pytest.raises(InvalidRequest):
            logs.read(name)


def test_a_part_without_a_folder_says_which_setting_is_missing() -> None:
    with pytest.raises(Unavailable, match="TANGRAM_BODIES_DIRECTORY"):
        RolloutLogs(None).create([(ROLLOUT, REQUEST)])


def test_a_record_that_is_too_large_is_refused(
    logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scheduler.runtime.rollouts import log_frames

    monkeypatch.setattr(log_frames, "MAX_RECORD_BYTES", 100)
    with pytest.raises(InvalidRequest, match="divide it"):
        logs.append(ROLLOUT, 1, 1, Record("artefact", {}, {"patch": b"x" * 200}))
    assert logs.read(ROLLOUT) == [REQUEST]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_log_that_cannot_be_opened_now_is_tried_again(
    logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(CapacityError):
        logs.fence(ROLLOUT, 2)
    with pytest.raises(CapacityError):
        logs.append(ROLLOUT, 1, 1, TURN)


def test_a_log_that_cannot_be_read_now_is_tried_again(
    logs: RolloutLogs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> bytes:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "pread", refused)
    with pytest.raises(CapacityError, match="I/O error"):
        another_process(folder).fence(ROLLOUT, 2)


def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how much is read of files by position from now on."""
    sizes: list[int] = []
    read = os.pread

    def recorded(file: int, count: int, at: int) -> bytes:
        found = read(file, count, at)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(os, "pread", recorded)
    return sizes


def test_heads_are_read_without_the_arrays(
    logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = Record("turn", {"message": "x" * 10_000}, {"ids": bytes(4_000_000)})
    patch = Record("artefact", {"name": "patch"}, {"content": b"diff" * 100_000})
    for number, record in enumerate((big, patch, Record("result", {"detail": {}})), start=1):
        logs.append(ROLLOUT, 1, number, record)
    sizes = bytes_read(monkeypatch)

    heads = logs.heads(ROLLOUT)

    assert [head.kind for head in heads] == ["request", "turn", "artefact", "result"]
    assert heads[1].header == big.header
    assert [head.sizes for head in heads[1:3]] == [{"ids": 4_000_000}, {"content": 400_000}]
    assert sum(sizes) < 50_000
    assert logs.record(ROLLOUT, heads[2]) == patch
    assert sum(sizes) < 500_000


def test_heads_are_those_of_the_whole_records_alone(logs: RolloutLogs, folder: Path) -> None:
    """Whatever a write that was interrupted has left."""
    logs.append(ROLLOUT, 1, 1, TURN)
    logs.fence(ROLLOUT, 2)
    whole = file_of(folder).read_bytes()
    logs.append(ROLLOUT, 2, 2, Record("result", {}))
    content = file_of(folder).read_bytes()
    for end in range(len(whole), len(content) + 1):
        file_of(folder).write_bytes(content[:end])
        expected = [each.kind for each in logs.read(ROLLOUT)]
        assert [head.kind for head in logs.heads(ROLLOUT)] == expected
        file_of(folder).write_bytes(content[:end] + bytes(len(content) - end))
        assert [head.kind for head in logs.heads(ROLLOUT)] == expected


def test_a_damaged_record_is_named_when_it_is_read(logs: RolloutLogs, folder: Path) -> None:
    logs.append(ROLLOUT, 1, 1, Record("artefact", {"name": "a"}, {"content": b"12345678"}))
    logs.append(ROLLOUT, 1, 2, Record("result", {}))
    content = file_of(folder).read_bytes()
    file_of(folder).write_bytes(content.replace(b"12345678", b"12345679"))
    heads = logs.heads(ROLLOUT)

    with pytest.raises(RolloutLogDamaged):
        logs.record(ROLLOUT, heads[1])


def test_an_error_of_the_disk_is_one_that_may_pass(
    logs: RolloutLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "open", fails)
    for read in (logs.read, logs.first, logs.heads):
        with pytest.raises(Unavailable, match="cannot be read: Input/output error"):
            read(ROLLOUT)


@pytest.mark.parametrize("cut", [0, 1, 7, 20])
def test_records_one_by_one_are_those_that_are_read_together(
    logs: RolloutLogs, folder: Path, cut: int
) -> None:
    logs.fence(ROLLOUT, 2)
    logs.append(ROLLOUT, 2, 1, TURN)
    logs.append(ROLLOUT, 2, 2, TURN)
    path = file_of(folder)
    os.truncate(path, path.stat().st_size - cut)
    with path.open("ab") as file:
        file.write(b"\0" * 64 if not cut else b"")
    assert list(logs.scan(ROLLOUT)) == list(logs.read(ROLLOUT)) != []


def test_records_before_a_damaged_one_are_read_and_the_damage_is_an_error(
    logs: RolloutLogs, folder: Path
) -> None:
    for number in (1, 2):
        logs.append(ROLLOUT, 1, number, TURN)
    path = file_of(folder)
    content = bytearray(path.read_bytes())
    content[content.index(b"turn")] ^= 1
    path.write_bytes(content)
    found = logs.scan(ROLLOUT)
    assert next(found) == REQUEST
    with pytest.raises(RolloutLogDamaged, match="record 1 fails"):
        next(found)


def test_a_missing_log_is_not_found_record_by_record(logs: RolloutLogs) -> None:
    with pytest.raises(NotFound):
        next(logs.scan(OTHER))
