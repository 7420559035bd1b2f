"""A running environment is forked while its programs go on; a busy one is refused or copied."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from domain.decisions import ForkEnvironment
from domain.errors import Conflict, StorageFull
from domain.ids import TrajectoryKey
from managers.cpu.tree import copying
from managers.cpu.tree.forking import EnvironmentForking
from managers.cpu.tree.layers import MOST_SEALED, LayerStack, TreeRecord
from managers.cpu.tree.records import load_record, store_record
from managers.cpu.tree.switcher import RootSwitcher
from managers.cpu.workspaces import Workspaces
from tests.conformance.process.overlay_environment import OverlayEnvironment, overlay_program

PROGRAM = overlay_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no bwrap with overlays")

SOURCE = TrajectoryKey("p/source")
CHILD = TrajectoryKey("p/child")


class Program(NamedTuple):
    pid: int


class Living:
    """The part of `LivingEnvironment` that forks use, of a real namespace."""

    def __init__(self, environment: OverlayEnvironment) -> None:
        self.environment = environment
        self.pid = environment.pid
        self.frozen = 0

    def processes(self) -> list[Program]:
        init = {self.pid, *self.environment._children(self.pid)}
        return [Program(pid) for pid in self.environment.processes() if pid not in init]

    async def freeze(self) -> None:
        self.frozen += 1
        for each in self.processes():
            os.kill(each.pid, signal.SIGSTOP)

    async def thaw(self) -> None:
        for each in self.processes():
            os.kill(each.pid, signal.SIGCONT)


class InnerTrees:
    """Trees whose overlays bwrap mounts."""

    has_layers = True
    marks = "user"

    def __init__(self, state: Path, switcher: RootSwitcher) -> None:
        self._state, self._switcher = state, switcher

    def adapted(self, record: TreeRecord) -> TreeRecord:
        return record

    async def has_image(self, record: TreeRecord) -> bool:
        return True

    def record_of(self, folder: Path, order: ForkEnvironment) -> TreeRecord:
        return replace(load_record(folder), trajectory=order.source)

    def store(self, folder: Path, record: TreeRecord) -> None:
        store_record(folder, record)

    def can_switch(self, environment: Any) -> bool:
        return True

    def expect_switch(self) -> None:
        self._switcher.begin()

    def switch(self, environment: Any, record: TreeRecord) -> None:
        folder = environment.environment.folder
        lowers = [*record.stack.lowers(self._state), folder.parent / "base"]
        self._switcher.switch(environment.pid, lowers, folder / "layer", folder / "work")


class World:
    """A state directory with environments that run."""

    def __init__(self, state: Path, stack: ExitStack) -> None:
        self.state, self._stack = state, stack
        self.workspaces = Workspaces(state)
        self.workspaces.open()
        (state / "layers").mkdir(exist_ok=True)
        self.living: dict[str, Living] = {}
        switcher = RootSwitcher()
        stack.callback(switcher.close)
        self.forking = EnvironmentForking(
            state,
            self.workspaces,
            InnerTrees(state, switcher),
            self.living.get,  # type: ignore[arg-type]
        )

    def run(self, trajectory: TrajectoryKey, line: str) -> list[str]:
        """Run a line in an environment, which is started when it does not run."""
        living = self.living.get(trajectory)
        if living is None:
            assert PROGRAM is not None
            folder = self.workspaces.ensure(trajectory)
            lowers = load_record(folder).stack.lowers(self.state)
            environment = OverlayEnvironment(folder, PROGRAM, lowers)
            self._stack.callback(environment.close)
            living = self.living[trajectory] = Living(environment)
        return living.environment.run(line)

    async def fork(
        self, *children: TrajectoryKey, source: TrajectoryKey = SOURCE, on_busy: str = "refuse"
    ):
        return await self.forking.fork(
            ForkEnvironment(source, "n1", children, "r1", "web", on_busy)
        )

    def end(self, trajectory: TrajectoryKey) -> None:
        """End an environment and delete its files."""
        living = self.living.pop(trajectory, None)
        if living is not None:
            living.environment._process.kill()
            living.environment._process.wait()
        self.workspaces.remove(self.workspaces.of(trajectory))

    def layers(self) -> list[str]:
        return [each.name for each in (self.state / "layers").iterdir()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path / "state", stack)


async def test_source_and_children_go_on_from_the_same_files(world):
    world.run(SOURCE, "X=7; mkdir /workspace/d; echo old >/workspace/d/a; echo gone >/workspace/g")
    children = [TrajectoryKey(f"p/c{number}") for number in range(4)]

    report = await world.fork(*children)

    assert (report.way, report.frozen_seconds) == ("sealed", 0.0)
    assert world.run(SOURCE, "echo $X; rm /workspace/g; echo new >>/workspace/d/a") == ["7", "0"]
    for child in children:
        assert world.run(child, "cat /workspace/d/a /workspace/g") == ["old", "gone", "0"]
    world.run(children[0], "echo mine >/workspace/d/a")
    assert world.run(children[1], "cat /workspace/d/a") == ["old", "0"]
    assert world.run(SOURCE, "cat /workspace/d/a; ls /workspace") == ["old", "new", "d", "0"]
    assert len(world.layers()) == 1


async def test_an_environment_that_does_not_run_is_forked_by_its_folders_alone(world):
    world.run(SOURCE, "echo 1 >/workspace/a")
    world.living.pop(SOURCE).environment._process.kill()

    report = await world.fork(CHILD)

    assert report.way == "sealed"
    assert world.run(CHILD, "cat /workspace/a") == ["1", "0"]
    assert world.run(SOURCE, "cat /workspace/a") == ["1", "0"]


@pytest.mark.parametrize(
    "busy",
    [
        "exec 4>>/workspace/log; echo begun >&4",
        "(cd /workspace; echo >/dev/shm/f; exec sleep 1000) & read -r _ </dev/shm/f",
    ],
    ids=["writes", "stays"],
)
async def test_a_busy_environment_is_refused_or_copied_while_it_is_frozen(world, busy):
    world.run(SOURCE, "mkfifo /dev/shm/f; echo 1 >/workspace/a")
    world.run(SOURCE, busy)

    with pytest.raises(Conflict, match="on_busy: copy"):
        await world.fork(CHILD)

    assert world.layers() == []
    assert not world.workspaces.of(CHILD).exists()
    assert not (world.workspaces.of(SOURCE) / "sealing").exists()
    report = await world.fork(CHILD, TrajectoryKey("p/c2"), on_busy="copy")
    assert report.way == "copied"
    assert report.seconds >= report.frozen_seconds > 0
    assert world.run(CHILD, "cat /workspace/a") == ["1", "0"]
    assert world.run(SOURCE, "echo 2 >/workspace/a; cat /workspace/a") == ["2", "0"]
    assert world.run(TrajectoryKey("p/c2"), "cat /workspace/a") == ["1", "0"]
    assert len(world.layers()) == 1


async def test_a_background_program_with_its_directory_elsewhere_is_no_hindrance(world):
    world.run(
        SOURCE, "mkfifo /dev/shm/f; (cd /dev/shm; echo >f; exec sleep 1000) & read -r _ </dev/shm/f"
    )

    report = await world.fork(CHILD)

    assert report.way == "sealed"
    assert world.living[SOURCE].frozen == 1
    assert world.run(SOURCE, "kill -0 $!") == ["0"]


async def test_a_chain_of_forks_merges_its_layers(world):
    source = SOURCE
    for number in range(MOST_SEALED + 2):
        world.run(source, f"echo {number} >/workspace/f{number}; rm -f /workspace/f{number - 1}")
        child = TrajectoryKey(f"p/c{number}")
        await world.fork(child, source=source)
        world.end(source)
        source = child

    stack = load_record(world.workspaces.of(source)).stack
    assert len(stack.sealed) < MOST_SEALED
    assert world.run(source, "ls /workspace") == [f"f{MOST_SEALED + 1}", "0"]
    await world.forking.collect()
    assert sorted(world.layers()) == sorted(stack.sealed)


async def test_layers_are_deleted_with_the_last_environment_that_uses_them(world):
    world.run(SOURCE, "echo 1 >/workspace/a")
    await world.fork(CHILD)
    world.end(SOURCE)
    await world.forking.collect()
    assert len(world.layers()) == 1
    assert world.run(CHILD, "cat /workspace/a") == ["1", "0"]

    world.end(CHILD)
    await world.forking.collect()
    assert world.layers() == []


async def test_layers_of_snapshots_are_kept(world):
    kept: list[LayerStack] = []
    world.forking._further_stacks = lambda: kept
    world.run(SOURCE, "echo 1 >/workspace/a")
    await world.fork(CHILD)
    kept.append(load_record(world.workspaces.of(CHILD)).stack)
    world.end(SOURCE)
    world.end(CHILD)
    await world.forking.collect()
    assert len(world.layers()) == 1


async def test_a_copy_that_does_not_fit_leaves_nothing(world, monkeypatch):
    world.run(SOURCE, "exec 4>/workspace/log")

    def no_room(*_: object) -> None:
        raise StorageFull("a copy needs disk")

    monkeypatch.setattr("managers.cpu.tree.forking.make_room", no_room)
    with pytest.raises(StorageFull):
        await world.fork(CHILD, on_busy="copy")

    assert world.layers() == []
    assert not world.workspaces.of(CHILD).exists()
    assert world.run(SOURCE, "echo goes on >&4") == ["0"]


def test_a_copy_asks_for_the_room_that_it_needs(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 4096)
    copying.make_room(tmp_path, tmp_path)
    os.truncate(tmp_path / "a", 2**43)  # sparse: its blocks count, not its length
    copying.make_room(tmp_path, tmp_path)


async def test_many_forks_with_writers_that_come_and_leave_lose_nothing(world):
    """A writer appends lines between forks; each child has all lines before its fork."""
    expected: list[str] = []
    for number in range(12):
        world.run(SOURCE, f"echo {number} >>/workspace/log; sync")
        expected.append(str(number))
        child = TrajectoryKey(f"p/w{number}")
        await world.fork(child)
        assert world.run(child, "cat /workspace/log") == [*expected, "0"]
        world.end(child)
    await world.forking.collect()
    sealed = load_record(world.workspaces.of(SOURCE)).stack.sealed
    assert sorted(world.layers()) == sorted(sealed)
