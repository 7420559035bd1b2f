"""Tangram's own parts leave the cores of actions, or have a lower weight than actions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from managers.common.affinity import confine, usable_cores
from managers.cpu.shared_cores import SharedCores
from tangram_web.supervisor import stack
from tangram_web.supervisor.children import Program, end, spawn
from tangram_web.supervisor.options import Options
from tangram_web.supervisor.part_placement import NICE, SHARES, PartPlacement, partition_of

WEB, NODE = Program("web", ("sleep", "600")), Program("node", ("sleep", "600"), cpus=(0, 1))
FIRST, LAST = usable_cores()[0], usable_cores()[-1]


@pytest.fixture
def part() -> Iterator[int]:
    """The id of a process."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def free_again() -> Iterator[None]:
    """Return this process to all cores."""
    yield
    confine(os.getpid(), usable_cores())


def workers(tmp_path: Path, *, root: bool, **given: object) -> dict[str, Program]:
    """Return the workers of a start by name."""
    placement = PartPlacement(SharedCores(usable_cores(), frozenset()), tmp_path)
    found = stack.workers(Options(**given), {"A": "1"}, placement, root=root)  # type: ignore[arg-type]
    return {program.name: program for program in (*found.needed, *found.later)}


@pytest.mark.parametrize("root", [True, False])
def test_every_part_has_a_worker_unless_asked_otherwise(tmp_path: Path, *, root: bool) -> None:
    assert set(workers(tmp_path, root=root)) == {"loop", "projector", "node", "jobs", "rollout"}


def test_one_worker_hosts_all_parts_and_runs_jobs(tmp_path: Path) -> None:
    (worker,) = workers(tmp_path, root=False, together=True).values()
    assert set(worker.environment["TANGRAM_ROLE"].split(",")) == {
        "loop", "projector", "node", "jobs", "rollout",
    }  # fmt: skip
    assert worker.environment["TANGRAM_NODE"]
    assert worker.cpus == usable_cores()
    assert "threads" in worker.command
    assert worker.command[worker.command.index("-Q") + 1] == "jobs"


@pytest.mark.parametrize(("root", "nodes"), [(True, 1), (False, 2), (False, 0)])
def test_node_workers_stay_separate_where_there_is_not_one_of_an_ordinary_user(
    tmp_path: Path, *, root: bool, nodes: int
) -> None:
    found = workers(tmp_path, root=root, nodes=nodes, together=True)
    assert "node" not in found.pop("worker").environment["TANGRAM_ROLE"].split(",")
    assert all(program.environment["TANGRAM_ROLE"] == "node" for program in found.values())
    assert len(found) == nodes


@pytest.mark.usefixtures("free_again")
def test_parts_run_on_shared_cores_once_all_are_ready(part: int, tmp_path: Path) -> None:
    placement = PartPlacement(SharedCores(usable_cores(), frozenset({FIRST})), tmp_path, tmp_path)
    placement.place(WEB, part)
    assert os.sched_getaffinity(part) == set(usable_cores()), "they start on all cores"
    placement.settle([(WEB, part), (WEB, None)])
    assert os.sched_getaffinity(part) == os.sched_getaffinity(0) == {FIRST}


@pytest.mark.usefixtures("free_again")
def test_what_a_part_has_started_is_placed_with_it(tmp_path: Path) -> None:
    placement = PartPlacement(SharedCores(usable_cores(), frozenset({FIRST})), tmp_path, tmp_path)
    script = "sleep 600 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout is not None
        watchdog = int(loop.stdout.readline())
        try:
            placement.settle([(WEB, loop.pid)])
            assert os.sched_getaffinity(watchdog) == {FIRST}
        finally:
            os.kill(watchdog, signal.SIGKILL)


@pytest.mark.usefixtures("free_again")
def test_a_part_that_starts_later_is_on_shared_cores_too(part: int, tmp_path: Path) -> None:
    placement = PartPlacement(SharedCores(usable_cores(), frozenset({LAST})), tmp_path, tmp_path)
    placement.settle([])
    placement.place(WEB, part)
    assert os.sched_getaffinity(part) == {LAST}


def test_a_node_worker_keeps_its_priority_for_the_commands_that_it_starts(
    part: int, tmp_path: Path
) -> None:
    placement = PartPlacement(SharedCores(usable_cores(), frozenset()), tmp_path, tmp_path / "no")
    placement.settle([(NODE, part)])
    assert os.getpriority(os.PRIO_PROCESS, part) == os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no groups by session")
async def test_the_session_of_a_node_worker_has_half_the_weight(tmp_path: Path) -> None:
    placement = PartPlacement(SharedCores(usable_cores(), frozenset()), tmp_path, tmp_path / "no")
    program = Program("node", ("sleep", "600"), cpus=usable_cores())
    process = await spawn(program, tmp_path, asyncio.subprocess.DEVNULL)
    try:
        assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
        placement.settle([(program, process.pid)])
        group = Path(f"/proc/{process.pid}/autogroup").read_text()
        assert group.endswith(f" nice {NICE}\n")
    finally:
        await end(process, 10.0)


@pytest.mark.usefixtures("free_again")
async def test_a_node_worker_starts_on_all_cores_of_a_confined_supervisor(tmp_path: Path) -> None:
    confine(os.getpid(), {FIRST})
    program = Program("node", ("sleep", "600"), cpus=usable_cores())
    process = await spawn(program, tmp_path, asyncio.subprocess.DEVNULL)
    try:
        assert os.sched_getaffinity(process.pid) == set(usable_cores())
    finally:
        await end(process, 10.0)


def test_without_shared_cores_parts_have_half_the_weight_of_an_action(
    part: int, tmp_path: Path
) -> None:
    placement = PartPlacement(SharedCores((0, 1), frozenset()), tmp_path, tmp_path, "own")
    (tmp_path / "own").mkdir()
    placement.settle([(WEB, part)])
    (group,) = (tmp_path / "own").iterdir()
    assert (group / "cpu.shares").read_text() == f"{SHARES}\n"
    assert (group / "cgroup.procs").read_text() == f"{part}\n"


def test_where_groups_cannot_be_written_parts_are_nice(part: int, tmp_path: Path) -> None:
    placement = PartPlacement(SharedCores((0, 1), frozenset()), tmp_path, tmp_path / "no")
    placement.settle([(WEB, part)])
    assert os.getpriority(os.PRIO_PROCESS, part) == max(NICE, os.nice(0))


def test_the_nodes_of_one_machine_divide_the_cores_that_are_not_shared(tmp_path: Path) -> None:
    placement = PartPlacement(SharedCores(tuple(range(8)), frozenset({0})), tmp_path)
    first, second = stack.nodes(Options(nodes=2), {}, placement)
    assert first.environment["TANGRAM_NODE_CPUS"] == "1,3,5,7"
    assert second.environment["TANGRAM_NODE_CPUS"] == "2,4,6"
    assert first.environment["TANGRAM_NODE_RESERVED_CPUS"] == "0"
    (alone,) = stack.nodes(Options(), {}, placement)
    assert "TANGRAM_NODE_CPUS" not in alone.environment, "it chooses the same by itself"
    assert alone.cpus == tuple(range(8))


def test_the_options_and_the_settings_of_a_node_decide_what_is_shared() -> None:
    reserved = {"TANGRAM_NODE_RESERVED_CPUS": str(FIRST)}
    assert partition_of(Options(cpus=64), {}).shared == frozenset()
    assert partition_of(Options(), {"TANGRAM_NODE_CPUS": "64"}).shared == frozenset()
    assert partition_of(Options(), {"TANGRAM_NODE_RESERVED_CPUS": "none"}).shared == frozenset()
    if FIRST != LAST:
        assert partition_of(Options(), reserved).shared == {FIRST}
