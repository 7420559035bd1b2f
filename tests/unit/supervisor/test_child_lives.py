"""A child process is restarted when it ends, and not after a request to end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from tangram_web.supervisor.children import Child, Program, describe_exit
from tests.unit.supervisor.conftest import DEAF, WAITS, a_program, line_in


@pytest.fixture
def make_child(tmp_path, announce):
    """Make children, with waits between their lives that the test sees."""

    def make(program, pause=asyncio.sleep):
        return Child(
            program, cwd=tmp_path, log=tmp_path / "child.log", announce=announce, pause=pause
        )

    return make


def is_alive(pid: int) -> bool:
    """Say whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_child_runs_in_a_process_group_of_its_own(make_child):
    child = make_child(a_program(WAITS))
    await child.start()

    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    await child.stop()


async def test_stopped_child_is_gone(make_child):
    child = make_child(a_program(WAITS))
    await child.start()
    await line_in(child.log, "up")
    pid = child.pid

    await child.stop()

    assert not is_alive(pid)
    assert child.pid is None


async def test_child_deaf_to_sigterm_is_killed_after_its_grace(make_child):
    child = make_child(a_program(DEAF, grace_seconds=0.05))
    await child.start()
    await line_in(child.log, "up")
    pid = child.pid

    await child.stop()

    assert not is_alive(pid)


async def test_kill_ends_a_stop_that_waits(make_child):
    child = make_child(a_program(DEAF, grace_seconds=3600))
    await child.start()
    await line_in(child.log, "up")
    stopping = asyncio.create_task(child.stop())
    await asyncio.sleep(0)

    child.kill()

    await asyncio.wait_for(stopping, 120)


@pytest.mark.cpu_seconds(0.5)  # three starts of Python
async def test_dead_child_starts_again_and_says_so(make_child, announced):
    again = asyncio.Event()

    async def pause(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            again.set()
            await asyncio.Event().wait()

    waits: list[float] = []
    child = make_child(a_program("raise SystemExit(3)"), pause)
    await child.start()
    await asyncio.wait_for(again.wait(), 120)
    await child.stop()

    assert waits == [0.5, 1.0, 2.0]
    assert child.deaths == 3
    assert announced[0].startswith("child ended (exit code 3), starts again in 0.5 s")


async def test_child_that_cannot_start_again_is_tried_again(make_child, tmp_path, announced):
    program = tmp_path / "vanishing"
    program.write_text(f"#!{sys.executable}\nimport os; os.unlink({str(program)!r})\n")
    program.chmod(0o700)
    tried = asyncio.Event()

    async def pause(_):
        if len(announced) == 2:
            tried.set()
            await asyncio.Event().wait()

    child = make_child(Program("child", (str(program),)), pause)
    await child.start()
    await asyncio.wait_for(tried.wait(), 120)
    await child.stop()

    assert "No such file or directory" in announced[1]


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (-signal.SIGKILL, "killed by SIGKILL")]
)
def test_exit_is_described_in_words(code, words):
    assert describe_exit(code) == words


async def test_child_dies_with_a_parent_that_is_killed(tmp_path):
    """1. A supervisor starts a child. 2. kill -9 hits the supervisor. 3. The child goes with it."""
    source = f"""
import asyncio, os, pathlib, signal, sys
from tangram_web.supervisor.children import Program, spawn
async def main():
    program = Program("grandchild", (sys.executable, "-ISc", {WAITS!r}))
    child = await spawn(program, pathlib.Path("/"), asyncio.subprocess.PIPE)
    await child.stdout.readline()
    print(child.pid, flush=True)
    signal.pause()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    watch = os.pidfd_open(child)

    parent.kill()
    await parent.wait()

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watch, ended.set)
    await asyncio.wait_for(ended.wait(), 120)
    loop.remove_reader(watch)
    os.close(watch)
