"""Control groups of both versions are read and written as the kernel's documents say."""

from __future__ import annotations

from pathlib import Path

import pytest

from managers.cpu.containers import cgroups
from managers.cpu.containers.cgroups import CgroupMounts, FrozenPart, Usage, quota_microseconds

PARENT = "/tangram-x"
V1 = {
    "cpuset": {"cpuset.cpus": "", "cpuset.effective_cpus": "0-3\n"},
    "cpu": {
        "cpu.cfs_quota_us": "",
        "cpu.shares": "",
        "cpu.stat": "nr_throttled 2\nthrottled_time 1500000000\n",
    },
    "cpuacct": {"cpuacct.usage": "2500000000\n"},
    "freezer": {"freezer.state": "FROZEN\n", "cgroup.procs": "7\n9\n"},
    "memory": {
        "memory.max_usage_in_bytes": "4096\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    },
    "pids": {"pids.current": "2\n", "pids.max": ""},
}
V2 = {
    "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-3\n",
    "cpu.max": "",
    "cpu.weight": "",
    "cpu.stat": "usage_usec 2500000\nthrottled_usec 1500000\n",
    "cgroup.procs": "7\n9\n",
    "cgroup.freeze": "",
    "cgroup.events": "populated 1\nfrozen 1\n",
    "pids.current": "2\n",
    "pids.max": "",
    "memory.peak": "4096\n",
    "memory.events": "low 0\noom 4\noom_kill 3\n",
}


def write(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


def a_tree(root: Path, version: int, path: str = f"{PARENT}/c1") -> tuple[CgroupMounts, Path]:
    """Return the trees of a machine with one container, and its ``/proc``."""
    mounts = []
    if version == 1:
        for name, files in V1.items():
            write(root / "cgroup" / name / path.lstrip("/"), files)
            mounts.append(f"cgroup {root}/cgroup/{name} cgroup rw,relatime,{name} 0 0")
        cgroup = "".join(f"{n}:{name}:{path}\n" for n, name in enumerate(V1, 1)) + "0::/\n"
        mounts.append(f"cgroup2 {root}/cgroup/unified cgroup2 rw 0 0")
    else:
        write(root / "cgroup" / path.lstrip("/"), V2)
        mounts.append(f"cgroup2 {root}/cgroup cgroup2 rw,nosuid 0 0")
        cgroup = f"0::{path}\n"
    (root / "mounts").write_text("\n".join(("proc /proc proc rw 0 0", *mounts)))
    write(root / "proc" / "7", {"cgroup": cgroup})
    return CgroupMounts.find(root / "mounts"), root / "proc"


def content(root: Path, name: str) -> str:
    [file] = [path for path in root.glob(f"cgroup/**/{name}") if path.parent.name == "c1"]
    return file.read_text()


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_a_group_are_parsed(tmp_path: Path, version: int) -> None:
    trees, proc = a_tree(tmp_path, version)
    assert trees.version == version
    group = trees.group_of(7, PARENT, proc)
    assert group.effective_cpus() == {0, 1, 2, 3}
    assert group.processes() == [7, 9]
    assert group.process_count() == 2
    assert group.is_frozen()
    assert group.usage() == Usage(2.5, 1.5, 4096, 3)


@pytest.mark.parametrize(
    ("version", "cpus", "quota", "none", "freeze", "frozen"),
    [
        (1, "cpuset.cpus", ("cpu.cfs_quota_us", "10000"), "-1", "freezer.state", "FROZEN"),
        (2, "cpuset.cpus", ("cpu.max", "10000 100000"), "max 100000", "cgroup.freeze", "1"),
    ],
)
def test_limits_of_a_group_are_written_as_the_kernel_expects(
    tmp_path: Path,
    version: int,
    cpus: str,
    quota: tuple[str, str],
    none: str,
    freeze: str,
    frozen: str,
) -> None:
    trees, proc = a_tree(tmp_path, version)
    group = trees.group_of(7, PARENT, proc)
    group.set_cpus(frozenset({2, 0, 11}))
    group.set_quota(100)
    group.freeze(True)
    group.set_process_limit(64)
    assert content(tmp_path, cpus) == "0,2,11"
    assert content(tmp_path, quota[0]).startswith(quota[1])
    assert content(tmp_path, freeze).startswith(frozen)
    assert content(tmp_path, "pids.max") == "64"
    (path,) = tmp_path.glob(f"cgroup/**/{quota[0]}")
    path.write_text("")
    group.set_quota(None)
    assert path.read_text() == none


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("path", ["/other/c1", "/docker/c1", "/tangram-x/../docker/c1"])
def test_a_group_that_is_not_below_our_parent_is_refused(
    tmp_path: Path, version: int, path: str
) -> None:
    trees, proc = a_tree(tmp_path, version, path)
    with pytest.raises(OSError, match="not below"):
        trees.group_of(7, PARENT, proc)


def test_a_controller_that_is_not_delegated_is_named(tmp_path: Path) -> None:
    trees, proc = a_tree(tmp_path, 2)
    (tmp_path / "cgroup" / "tangram-x" / "c1" / "cpuset.cpus").unlink()
    with pytest.raises(OSError, match="controller is not delegated"):
        trees.group_of(7, PARENT, proc)


def test_a_scope_of_systemd_is_below_its_slice(tmp_path: Path) -> None:
    trees, proc = a_tree(tmp_path, 2, "/tangram.slice/tangram-x.slice/c1")
    assert trees.group_of(7, "tangram-x.slice", proc).processes() == [7, 9]


def test_a_machine_without_control_groups_has_none(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("proc /proc proc rw 0 0\n")
    trees = CgroupMounts.find(tmp_path / "mounts")
    assert trees.version == 0
    with pytest.raises(OSError, match="no control groups"):
        trees.parent_cpus(PARENT)


def test_the_smallest_quota_is_one_that_the_kernel_takes() -> None:
    assert quota_microseconds(1) == 1000
    assert quota_microseconds(100) == 10_000
    assert quota_microseconds(2500) == 250_000


@pytest.mark.parametrize(
    ("version", "file", "least", "normal"),
    [(1, "cpu.shares", "2", "1024"), (2, "cpu.weight", "1", "100")],
)
def test_a_group_gives_way_and_is_one_among_others_again(
    tmp_path: Path, version: int, file: str, least: str, normal: str
) -> None:
    trees, proc = a_tree(tmp_path, version)
    group = trees.group_of(7, PARENT, proc)
    (path,) = [*tmp_path.glob(f"cgroup/**/{file}")]
    for yielding, text in ((True, least), (False, normal)):
        path.write_text("")
        group.set_yielding(yielding)
        assert path.read_text() == text


@pytest.mark.parametrize("version", [1, 2])
def test_a_parent_is_removed_from_every_tree_even_those_we_do_not_use(
    tmp_path: Path, version: int
) -> None:
    trees, _ = a_tree(tmp_path, version)
    made = [root / "tangram-mine" for root in trees.mounted]
    for directory in made:
        directory.mkdir(parents=True)
    assert len(made) > len(trees.roots()) or version == 2
    trees.remove_parent("/tangram-mine")
    assert not any(directory.exists() for directory in made)


@pytest.mark.parametrize("version", [1, 2])
def test_a_part_of_a_container_is_frozen_apart_from_the_rest(tmp_path: Path, version: int) -> None:
    trees, proc = a_tree(tmp_path, version)
    held = trees.group_of(7, PARENT, proc).held
    directory = held._at
    held.release()  # there is none
    write(directory, {"cgroup.procs": "", "freezer.state": "", "cgroup.freeze": ""})
    held.hold([9])
    file, frozen = ("freezer.state", "FROZEN") if version == 1 else ("cgroup.freeze", "1")
    assert (directory / file).read_text() == frozen
    assert (directory / "cgroup.procs").read_text() == "9"
    assert directory.parent.name == "c1"
    (directory / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert held.is_frozen()
    assert sorted(trees.group_of(7, PARENT, proc).processes()) == [7, 9, 9]


@pytest.mark.parametrize(
    ("version", "file", "words"),
    [(1, "freezer.state", ("FROZEN", "THAWED")), (2, "cgroup.freeze", ("1", "0"))],
)
def test_held_processes_move_while_they_are_frozen_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, file: str, words: tuple[str, str]
) -> None:
    """A process that has ended, and threads of it not, is listed for ever; one that runs starts others for ever."""
    trees, proc = a_tree(tmp_path, version)
    held = trees.group_of(7, PARENT, proc).held
    lists = [[7, 9], *([9, 10 + number] for number in range(1000))]
    monkeypatch.setattr(FrozenPart, "processes", lambda self: lists.pop(0))
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(cgroups, "write", lambda at, text: written.append((at.name, text)))

    held.release()

    moved = [text for name, text in written if name == "cgroup.procs"]
    assert sorted(moved[:2]) == ["7", "9"]
    assert len(moved) == len(set(moved)) < 100
    assert written[len(moved) :] == [(file, words[1])]


def test_an_error_of_a_move_leaves_nothing_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, proc = a_tree(tmp_path, 1)
    held = trees.group_of(7, PARENT, proc).held
    [group] = tmp_path.glob("cgroup/freezer/*/c1")
    write(group / "held", {"freezer.state": "FROZEN", "cgroup.procs": "7"})
    (group / "cgroup.procs").unlink()
    (group / "cgroup.procs").mkdir()  # no process can be moved there

    held.release()

    assert not held.is_frozen()
