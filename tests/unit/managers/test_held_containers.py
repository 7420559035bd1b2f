"""Processes of a container are held and released beside the event loop of the node worker: a hostile one has many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec
from managers.cpu.containers.environment import Environment, to_its_end


class SlowPart:
    """A held part whose moves last until the event loop ends them."""

    def __init__(self) -> None:
        self.moving, self.go_on = threading.Event(), threading.Event()
        self.released = 0

    def hold(self, pids: Iterable[int]) -> None:
        """Move processes there."""

    def release(self) -> None:
        """Move them back, when the loop says so."""
        self.moving.set()
        assert self.go_on.wait(60), "the event loop does not run meanwhile"
        self.released += 1


@pytest.fixture
def part() -> SlowPart:
    return SlowPart()


@pytest.fixture
def container(tmp_path: Path, part: SlowPart) -> Environment:
    group: Any = type("Group", (), {"held": part})()
    spec = EnvironmentSpec()
    return Environment("c1", "default/t", spec, tmp_path, tmp_path, 0.0, group=group)


async def until(event: threading.Event) -> None:
    """Wait while the event loop runs."""
    async with asyncio.timeout(60):
        while not event.is_set():
            await asyncio.sleep(0)


async def test_the_loop_runs_while_processes_are_moved(
    container: Environment, part: SlowPart
) -> None:
    releasing = asyncio.create_task(container.release_held())
    await until(part.moving)

    part.go_on.set()
    await asyncio.wait_for(releasing, 60)

    assert part.released == 1


async def test_a_move_is_not_left_behind_by_a_cancelled_caller(
    container: Environment, part: SlowPart
) -> None:
    """Else the next one would move the same processes at the same time."""
    releasing = asyncio.create_task(container.release_held())
    await until(part.moving)
    releasing.cancel()
    await asyncio.sleep(0)
    assert not releasing.done()
    assert container.moving.locked()

    part.go_on.set()
    await asyncio.wait({releasing})

    assert part.released == 1
    assert not container.moving.locked()


async def test_an_error_of_a_move_is_raised() -> None:
    def fails() -> None:
        raise OSError("no such group")

    with pytest.raises(OSError, match="no such group"):
        await to_its_end(fails)
