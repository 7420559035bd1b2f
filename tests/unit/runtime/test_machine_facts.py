"""What a node reports of its machine: control groups, user namespaces, disks, and its clock."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from contract.machine_facts import CgroupFacts, ClockDifference, DiskFacts, MachineFacts
from managers.common.disk_space import DiskFloors, DiskSpace
from managers.cpu.apptainer.program import forbidden_namespaces
from scheduler.runtime.node import disk_guard
from scheduler.runtime.node.disk_guard import DiskGuard
from scheduler.runtime.node.machine_facts import cgroup_facts, machine_facts

GIB = 2**30


def machine(folder: Path, mounts: str, group: str) -> Path:
    """Make ``/proc/self`` of a machine whose control groups are below ``folder``."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "mounts").write_text(mounts.format(folder))
    (proc / "cgroup").write_text(group)
    return proc


def unified(folder: Path, *places: str, controllers: str = "cpu memory pids\n") -> None:
    """Make control groups of version 2; those in ``places`` can be divided."""
    (folder / "cgroup.controllers").write_text(controllers)
    for place in places:
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / "cgroup.subtree_control").write_text("")


V2 = "cgroup2 {} cgroup2 rw 0 0\n"


@pytest.mark.parametrize(
    ("places", "delegated"),
    [(["a/b"], True), (["a"], True), (["."], True), ([], False)],
    ids=["its own", "beside its own", "at the root", "nowhere"],
)
def test_groups_of_version_2_are_delegated_where_one_can_be_divided(
    tmp_path: Path, places: list[str], delegated: bool
) -> None:
    unified(tmp_path, *places)
    proc = machine(tmp_path, V2, "0::/a/b\n")
    assert cgroup_facts(proc) == CgroupFacts(2, delegated)


def test_groups_without_the_controller_of_memory_limit_none(tmp_path: Path) -> None:
    unified(tmp_path, "a", controllers="cpu pids\n")
    assert cgroup_facts(machine(tmp_path, V2, "0::/a\n")) == CgroupFacts(2)


def test_a_root_that_has_a_limit_is_that_of_a_container(tmp_path: Path) -> None:
    unified(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_facts(machine(tmp_path, V2, "0::/\n")) == CgroupFacts(2, contained=True)


def test_groups_of_version_1_are_known_by_their_controllers(tmp_path: Path) -> None:
    proc = machine(tmp_path, "cgroup {}/memory cgroup rw,memory 0 0\n", "4:memory:/w\n")
    assert cgroup_facts(proc) == CgroupFacts(1)
    (tmp_path / "memory" / "w").mkdir(parents=True)
    assert cgroup_facts(proc) == CgroupFacts(1, delegated=True)


def test_a_machine_without_control_groups_has_version_0(tmp_path: Path) -> None:
    assert cgroup_facts(machine(tmp_path, "proc /proc proc rw 0 0\n", "")) == CgroupFacts(0)


def test_the_groups_of_a_job_are_those_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert cgroup_facts() == CgroupFacts(job="17")


def test_root_may_make_user_namespaces_that_ordinary_accounts_may_not(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "unprivileged_userns_clone").write_text("0\n")
    assert forbidden_namespaces(tmp_path)
    assert not forbidden_namespaces(tmp_path, for_root=True)
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "max_user_namespaces").write_text("0\n")
    assert "user.max_user_namespaces=15000" in forbidden_namespaces(tmp_path, for_root=True)


async def test_the_guard_reports_its_disks_with_their_floors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = DiskSpace("/data", 10 * GIB, GIB // 2, 0, 0)
    monkeypatch.setattr(disk_guard, "read_space", lambda _: [space])
    guard = DiskGuard([], [], DiskFloors(), lambda _: None)
    assert guard.disk_facts() == ()
    await guard.look()
    facts = machine_facts(guard, ClockDifference(0.5, 0.001))
    assert facts.disks == (DiskFacts("/data", GIB // 2, 10 * GIB, GIB),)
    assert facts.disk_refusal == "the disk of /data has 512 of 10240 MiB free"
    assert facts.clock == ClockDifference(0.5, 0.001)


def test_facts_of_a_later_version_can_be_read() -> None:
    body = b'{"clock":[1.5,0.1,7],"no_user_namespaces":"","colour":"red"}'
    assert msgspec.json.decode(body, type=MachineFacts).clock == ClockDifference(1.5, 0.1)
