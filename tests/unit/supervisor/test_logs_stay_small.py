"""Logs of `up` are put aside when they are large, and only so many are kept."""

from __future__ import annotations

import asyncio
import os
import signal

from tangram_web.supervisor.supervisor import Supervisor, rotate
from tests.unit.supervisor.conftest import a_program, line_in

#: Writes a line whenever it is sent SIGUSR1.
COUNTS = """
import itertools, signal, sys
numbers = itertools.count()
def say(*_):
    sys.stdout.write(f"line {next(numbers)}\\n"); sys.stdout.flush()
signal.signal(signal.SIGUSR1, say)
sys.stdout.write("up\\n"); sys.stdout.flush()
while True: signal.pause()
"""


def test_a_log_within_its_size_is_left_alone(tmp_path):
    log = tmp_path / "web.log"
    log.write_bytes(b"x" * 100)

    assert rotate(log, most_bytes=100) is False
    assert rotate(tmp_path / "missing.log") is False
    assert os.listdir(tmp_path) == ["web.log"]


def test_the_newest_part_is_put_aside_and_the_oldest_goes(tmp_path):
    log = tmp_path / "web.log"
    for text in (b"1" * 11, b"2" * 11, b"3" * 11, b"4" * 25):
        with log.open("ab") as file:
            file.write(text)
        assert rotate(log, most_bytes=10, kept=2) is True

    assert log.read_bytes() == b""
    assert (tmp_path / "web.log.1").read_bytes() == b"4" * 10
    assert (tmp_path / "web.log.2").read_bytes() == b"3" * 10
    assert sorted(os.listdir(tmp_path)) == ["web.log", "web.log.1", "web.log.2"]
    assert (tmp_path / "web.log.1").stat().st_mode & 0o077 == 0


async def test_a_child_goes_on_writing_into_the_emptied_log(home, announce, announced, monkeypatch):
    monkeypatch.setattr(rotate, "__defaults__", (4, 2))
    looked = asyncio.Event()

    async def pause(_: float) -> None:
        looked.set()
        await asyncio.Event().wait()

    supervisor = Supervisor(home, home.path, announce, pause)
    await supervisor.start([a_program(COUNTS, name="web")])
    log, pid = home.log("web"), supervisor.children[0].pid
    assert pid is not None
    await line_in(log, "up")
    os.kill(pid, signal.SIGUSR1)
    await line_in(log, "line 0")

    keeping = asyncio.create_task(supervisor.rotate_logs())
    await asyncio.wait_for(looked.wait(), 120)
    os.kill(pid, signal.SIGUSR1)
    await line_in(log, "line 1")
    keeping.cancel()
    await supervisor.stop()

    assert log.read_text() == "line 1\n"
    assert (home.logs / "web.log.1").read_text() == "e 0\n"
    assert announced == []


async def test_a_log_that_cannot_be_rotated_is_reported_once(
    home, announce, announced, monkeypatch
):
    """1. The disk is full. 2. It is reported. 3. Rounds later it has not been reported again."""
    rounds = asyncio.Semaphore(0)

    def full(log: object) -> bool:
        raise OSError(28, "No space left on device")

    async def pause(_: float) -> None:
        rounds.release()
        await asyncio.sleep(0)

    monkeypatch.setattr("tangram_web.supervisor.supervisor.rotate", full)
    supervisor = Supervisor(home, home.path, announce, pause)
    await supervisor.start([a_program("import signal; signal.pause()", name="web")])
    keeping = asyncio.create_task(supervisor.rotate_logs())
    for _ in range(3):
        await asyncio.wait_for(rounds.acquire(), 120)
    keeping.cancel()
    await supervisor.stop()

    assert len(announced) == 1
    assert "No space left" in announced[0]
