"""Frames and scripts of the shell in a container survive any output."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managers.cpu.containers.shell import ContainerShell, Frames, ShellLost, action_script

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def frame(kind: int, content: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(content).to_bytes(4) + content


@given(
    frames=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=20))),
    cuts=st.lists(st.integers(0, 100)),
)
def test_frames_are_complete_however_they_arrive(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frame(kind, content) for kind, content in frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parser = Frames()
    parts = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [each for part in parts for each in parser.feed(part)] == frames


@given(words=st.lists(TEXTS, min_size=1, max_size=3), value=TEXTS)
def test_no_argument_or_variable_breaks_out_of_its_quotes(words: list[str], value: str) -> None:
    script = action_script(
        7, ["printf", "%s\\0", *words], cwd="/", variables={"A": value},
        stdin="/dev/null", stdout="/dev/stdout", stderr="/dev/null",
    )  # fmt: skip
    done = subprocess.run(
        [shutil.which("sh") or "sh", "-s"], input=script.encode(), capture_output=True, check=True
    )
    *printed, answer = done.stdout.split(b"\0")
    assert printed == [word.encode() for word in words]
    assert answer == b"7 0\n"


async def a_shell() -> tuple[ContainerShell, socket.socket]:
    ours, theirs = socket.socketpair()
    return ContainerShell(ours), theirs


async def test_only_an_answer_to_what_was_asked_counts_and_only_once() -> None:
    shell, other = await a_shell()
    number = shell.next_number()
    answer = await shell.begin(number, "x")
    for line in (f"{number - 1} 0", f"{number} x", "garbage", "", f"{number} 3", f"{number} 0"):
        other.sendall(frame(1, f"{line}\n".encode()))
    other.sendall(frame(2, f"{number} 9\n".encode()))
    assert await answer == 3
    shell.close()
    other.close()


async def test_a_question_between_takes_nothing_from_a_command_that_is_ending() -> None:
    shell, other = await a_shell()
    number = shell.next_number()
    answer = await shell.begin(number, "x")
    question = asyncio.create_task(shell.ask(":"))
    await asyncio.sleep(0)
    for line in (f"{number} 137", f"{number + 1} 0"):
        other.sendall(frame(1, f"{line}\n".encode()))
    assert (await answer, await question) == (137, 0)
    shell.close()
    other.close()


async def test_frames_of_a_predecessor_are_ignored() -> None:
    first, other_first = await a_shell()
    await asyncio.sleep(0.002)
    second, other_second = await a_shell()
    assert first.next_number() < second.next_number()
    for each in (first, second, other_first, other_second):
        each.close()


async def test_a_stream_that_ends_fails_present_and_later_waiters(tmp_path: Path) -> None:
    shell, other = await a_shell()
    answer = await shell.begin(shell.next_number(), "x")
    other.close()
    with pytest.raises(ShellLost):
        await answer
    with pytest.raises(ShellLost):
        await shell.begin(shell.next_number(), "x")
