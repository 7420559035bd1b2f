"""Limits of memory: the share of one environment, of all, and the files of both versions of groups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from domain.action import Outcome
from managers.cpu.memory_groups import (
    LEAST_BYTES,
    MemoryLimits,
    describe_kills,
    open_memory_groups,
)
from managers.cpu.process.memory_watch import stop_above_limit, used_bytes

GIB = 2**30


def test_environments_leave_memory_to_the_machine() -> None:
    limits = MemoryLimits.of(real_bytes=16 * GIB, offered_bytes=16 * GIB)
    assert limits == MemoryLimits(default_bytes=15 * GIB // 2, total_bytes=15 * GIB)


def test_more_than_exists_is_never_a_limit() -> None:
    limits = MemoryLimits.of(real_bytes=4 * GIB, offered_bytes=400 * GIB, default_bytes=64 * GIB)
    assert limits.default_bytes == limits.total_bytes < 4 * GIB


def test_a_declaration_is_the_limit_and_never_below_what_a_shell_needs() -> None:
    limits = MemoryLimits.of(16 * GIB, 16 * GIB)
    assert limits.of_environment(GIB) == GIB
    assert limits.of_environment(1) == LEAST_BYTES
    assert limits.of_environment(0) == limits.default_bytes


def test_a_kill_names_the_limit_that_was_reached() -> None:
    own = describe_kills(2, GIB, GIB)
    assert own == (
        f"the kernel killed 2 times for lack of memory: the environment may use {GIB} bytes,"
        " declare a higher environment.memory_bytes"
    )
    assert "all environments of this node together" in describe_kills(1, 9, GIB)


def test_a_machine_without_the_memory_controller_says_so(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    (tmp_path / "cgroup").write_text("0::/user.slice\n")
    (tmp_path / "cgroup.controllers").write_text("cpu io\n")
    with pytest.raises(OSError, match="no memory controller"):
        open_memory_groups("tangram-x", GIB, proc=tmp_path)


def test_a_group_that_takes_no_process_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(f"cgroup {tmp_path}/tree cgroup rw,memory 0 0\n")
    (tmp_path / "cgroup").write_text("4:memory:/\n")
    (tmp_path / "tree").mkdir()
    with pytest.raises(OSError, match="tangram-x"):
        open_memory_groups("tangram-x", GIB, proc=tmp_path)


def test_a_job_of_slurm_makes_no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(OSError, match="those of job 7 are Slurm's"):
        open_memory_groups("tangram-x", GIB, proc=tmp_path)


class Run:
    """A run that records its stop."""

    tag, memory_limit_bytes, stopped = 7, 100, ""

    def stop(self, outcome: Outcome, reason: str) -> None:
        self.stopped = f"{outcome}: {reason}"


@pytest.mark.parametrize(
    ("used", "stops"), [({7: 101}, True), ({7: 100}, False), ({8: 999}, False)]
)
def test_a_watched_run_is_stopped_above_its_limit(used: dict[int, int], stops: bool) -> None:
    run = Run()
    stop_above_limit([run], used)
    assert run.stopped.startswith("oom_killed: ") is stops


MIB = 2**20
#: Holds 32 MiB in eight processes that share it, says so, and waits for the end of its input.
_FORKED = """
import os, sys
held = bytearray(32 * 2**20)
for _ in range(7):
    if os.fork() == 0:
        break
os.write(1, b"%d\\n" % os.getpid())
sys.stdin.read()
"""


class Table:
    """Processes of one tag."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def find_all(self) -> dict[int, list[int]]:
        return {7: self._pids}


@pytest.mark.cpu_seconds(1)
def test_memory_that_forked_processes_share_counts_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        table = Table([int(parent.stdout.readline()) for _ in range(8)])
        assert used_bytes(table, {7: 64 * MIB})[7] < 64 * MIB
        assert used_bytes(table, {7: 16 * MIB})[7] > 16 * MIB
