"""Process tags: they distinguish processes of one driver's actions from all others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from managers.cpu.process.invocation import ResourceLimits
from managers.cpu.process.process_tag import ProcessTagger

SHELLS = [shell for shell in ("/bin/sh", "/bin/dash", "/bin/bash") if Path(shell).exists()]


@contextmanager
def a_process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command``, which says a line and then reads one, until the block is left."""
    process = subprocess.Popen(
        command, env={"PATH": os.defpath}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.communicate()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_is_sealed_by_whatever_shell_there_is(shell: str) -> None:
    tagger = ProcessTagger(b"key")
    _, *prefix = ResourceLimits().prefix(tagger.tag("act_1#1"))
    with a_process(shell, *prefix, "sh", "-c", "echo; read line") as process:
        assert tagger.read(process.pid) == tagger.tag("act_1#1")
        assert ProcessTagger(b"another key").read(process.pid) is None


def test_a_foreign_process_carries_no_seal() -> None:
    tagger = ProcessTagger(b"key")
    assert tagger.read(os.getpid()) is None
    assert tagger.read(2**22 + 1) is None


def test_a_zombie_still_carries_its_seal() -> None:
    tagger = ProcessTagger(b"key")
    process = subprocess.Popen([*ResourceLimits().prefix(tagger.tag("act_1#1")), "true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert tagger.read(process.pid) == tagger.tag("act_1#1")
    process.wait()


def test_attempts_and_drivers_have_seals_of_their_own() -> None:
    one, other = ProcessTagger(b"one"), ProcessTagger(b"other")
    seals = {
        tagger.tag(f"act_{n}#{k}") for tagger in (one, other) for n in range(50) for k in (1, 2)
    }
    assert len(seals) == 200
    assert all(2**61 <= seal < 2**62 for seal in seals)


def test_the_key_of_a_driver_lasts_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "driver.key"
    seal = ProcessTagger.load(path).tag("act_1#1")
    assert ProcessTagger.load(path).tag("act_1#1") == seal
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"torn")
    assert ProcessTagger.load(path).tag("act_1#1") != seal
