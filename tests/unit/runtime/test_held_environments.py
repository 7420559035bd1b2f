"""What is packed for a move is held: requests wait, after a restart of the worker too, until the move has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from domain.decisions import EndMove, MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, Unavailable
from domain.events import EnvironmentPacked, EnvironmentReceived
from domain.ids import TrajectoryKey
from domain.moves import FAILED, IN_USE, PROCESS, packed_name
from scheduler.runtime.node.door.gate import EnvironmentGate
from scheduler.runtime.node.environment_moves import EnvironmentMoves

T1 = TrajectoryKey("default/t1")
ORDER = MoveEnvironment(T1, "n1", 1, "n2", "default")
FETCH = ReceiveEnvironment(T1, "n2", 1, "n1", "default")
KEPT = ("default", packed_name(T1, 1))


class Driver:
    """Packs into a set of names, and receives what it is given."""

    works = True

    def __init__(self) -> None:
        self.kept: set[tuple[str, str]] = set()
        self.received = b""
        self.refuses: Exception | None = None

    @property
    def moving(self) -> Driver:
        return self

    async def pack(self, order: MoveEnvironment) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.kept.add((order.project, packed_name(order.trajectory, order.number)))

    async def receive(self, order: Any, archive: AsyncGenerator[bytes, None]) -> None:
        self.received = b"".join([piece async for piece in archive])

    async def take_snapshot(self, order: Any) -> Any:
        raise AssertionError("a move takes another way")

    async def drop_snapshot(self, project: str, name: str) -> None:
        self.kept.discard((project, name))

    async def snapshots(self) -> list[tuple[str, str]]:
        return sorted(self.kept)

    def export_snapshot(self, project: str, name: str) -> Any:
        raise AssertionError("a move takes another way")


class World:
    """One node on one disk; `start` begins another life of its worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.driver = Driver()
        self.reports: list[Any] = []
        #: Fetches go on when it is set.
        self.sends = asyncio.Event()

    def report(self, event: Any, sent: Any = lambda: None) -> None:
        self.reports.append(event)
        sent()

    async def fetch_from(self, *_: str) -> AsyncGenerator[bytes, None]:
        yield b"a"
        await self.sends.wait()
        yield b"b"

    async def start(self) -> EnvironmentMoves:
        self.gate = EnvironmentGate(wait_seconds=0.01)
        driver: Any = self.driver
        world: Any = self
        moves = EnvironmentMoves("n1", world, driver, world, self.gate, self._folder / "moves")
        await moves.open()
        return moves

    async def waits(self) -> bool:
        """Return whether a request about the environment waits."""
        try:
            async with self.gate.using(T1):
                return False
        except Unavailable:
            return True


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_is_packed_is_held_by_the_next_worker_too_until_the_move_ends(world: World):
    moves = await world.start()
    await moves.pack(ORDER, lambda: None)
    assert await world.waits()

    moves = await world.start()
    assert await world.waits()
    assert world.driver.kept == {KEPT}
    await moves.end(EndMove(T1, "n1", 1, "n1", "no room"), lambda: None)

    assert not await world.waits()
    assert world.driver.kept == set()
    await world.start()
    assert not await world.waits()


@pytest.mark.parametrize(
    ("error", "stays"),
    [(Conflict("2 programs run", code=PROCESS), PROCESS), (OSError("the disk is full"), FAILED)],
)
async def test_what_is_not_packed_is_used_as_before(world: World, error: Exception, stays: str):
    moves = await world.start()
    world.driver.refuses = error

    await moves.pack(ORDER, lambda: None)

    (report,) = world.reports
    assert isinstance(report, EnvironmentPacked)
    assert (report.failed, report.stays) == (str(error), stays)
    assert not await world.waits()


async def test_an_open_request_keeps_an_environment(world: World):
    moves = await world.start()
    async with world.gate.using(T1):
        await moves.pack(ORDER, lambda: None)
    assert world.reports[0].stays == IN_USE


async def test_an_order_to_run_shows_that_the_trajectory_lives_here(world: World):
    moves = await world.start()
    await moves.pack(ORDER, lambda: None)
    moves.used(T1)
    assert not await world.waits()
    await moves.release(T1)
    assert world.driver.kept == set()


async def test_the_end_of_a_former_move_releases_nothing_of_the_present_one(world: World):
    moves = await world.start()
    await moves.pack(MoveEnvironment(T1, "n1", 2, "n2", "default"), lambda: None)
    await moves.end(EndMove(T1, "n1", 1, "n1"), lambda: None)
    assert await world.waits()


async def test_a_fetch_that_is_withdrawn_ends_and_reports_nothing(world: World):
    moves = await world.start()
    fetching = asyncio.create_task(moves.receive(FETCH, lambda: None))
    await asyncio.sleep(0)

    await moves.ended(T1)

    await fetching
    assert world.reports == []
    world.sends.set()
    await moves.receive(FETCH, lambda: None)
    assert world.driver.received == b"ab"
    assert isinstance(world.reports[0], EnvironmentReceived)


async def test_a_torn_file_and_a_packed_snapshot_of_no_move_are_deleted(world: World):
    await world.start()
    (world._folder / "moves" / "torn.json").write_bytes(b'{"traj')
    world.driver.kept.add(KEPT)
    await world.start()
    assert not await world.waits()
    assert world.driver.kept == set()
    assert list((world._folder / "moves").iterdir()) == []
