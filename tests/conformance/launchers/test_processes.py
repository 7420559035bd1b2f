"""The launcher of this machine keeps the rules, also when a supervisor or a machine ends without a word."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from managers.launch import processes
from managers.launch.launcher import Instance, LaunchError, LaunchOrder, NodeLauncher
from managers.launch.machine_program import process_facts
from tests.conformance.launchers.machine_harness import supervisor_of, worker_of
from tests.conformance.launchers.suite import *  # noqa: F403 - the suite's tests run here
from tests.conformance.launchers.suite import Group, lives, until


class ProcessesHarness:
    """This machine, with a folder of its own."""

    restarts = True

    def __init__(self, folder: Path) -> None:
        self.options = {"folder": str(folder)}
        self.spec = NodeGroupSpec("processes", count=2, options=self.options)
        self._file = folder / "a-file"
        self._file.parent.mkdir(exist_ok=True)
        self._file.touch()

    def launcher(self) -> NodeLauncher:
        return processes.make(self.options)

    def kill(self, instance: Instance) -> None:
        os.kill(worker_of(instance), signal.SIGKILL)

    def unreachable(self) -> NodeLauncher:
        return processes.make({"folder": str(self._file / "below")})


@pytest.fixture
def harness(tmp_path: Path) -> ProcessesHarness:
    return ProcessesHarness(tmp_path / "instances")


def test_an_instance_whose_supervisor_was_killed_is_gone_with_all_its_processes(
    group: Group,
) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    pids = json.loads(group.facts(1).read_text())["pids"]
    os.kill(supervisor_of(instance), signal.SIGKILL)
    until(lambda: not group.listed())
    assert [pid for pid in pids if lives(pid)] == []


def test_a_pid_that_another_process_has_now_is_not_taken_for_the_supervisor(
    group: Group, tmp_path: Path
) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    os.kill(supervisor_of(instance), signal.SIGKILL)
    (path,) = (tmp_path / "instances").glob(f"*/*/*/{name}/supervisor.json")
    own = process_facts(os.getpid())
    assert own is not None
    stale = {**json.loads(path.read_text()), "pid": os.getpid(), "start": own[1] - 1}
    path.write_text(json.dumps(stale))
    until(lambda: not group.listed())


def test_instances_of_a_machine_share_no_core(group: Group) -> None:
    group.launch(1)
    listed = group.running(1)
    cores = os.sched_getaffinity(worker_of(listed[f"{group.name}-1"]))
    assert len(cores) == 1
    taken = len(os.sched_getaffinity(0)) - 1
    orders = [group.launch(number) for number in range(2, 2 + taken)]
    listed = group.running(*range(2, 2 + taken))
    for name in orders:
        others = os.sched_getaffinity(worker_of(listed[name]))
        assert len(others) == 1
        assert not others & cores
        cores |= others
    with pytest.raises(LaunchError, match=r"0 of \d+ are free: lower cpus"):
        group.launch(2 + taken)


def gpus_of(group: Group, number: int, gpus: int, launcher: NodeLauncher) -> str:
    """Launch an instance with GPUs; return the setting that its node worker got."""
    spec = NodeGroupSpec("processes", count=2, gpus=gpus, options=group.harness.spec.options)
    path = group.directory / f"gpus-{number}"
    command = ["sh", "-c", f"echo $TANGRAM_NODE_GPUS >{path}.part; mv {path}.part {path}; exec sleep 600"]  # fmt: skip
    launcher.launch(
        LaunchOrder(group.installation, group.name, f"{group.name}-{number}", spec, command, {"TANGRAM_NODE_GPUS": ""})
    )  # fmt: skip
    until(path.exists)
    return path.read_text().strip()


def test_instances_of_a_machine_share_no_gpu(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nfor n in 0 1 2 3 4 5; do echo GPU-$n; done\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    found = processes.make({**group.harness.spec.options, "own_cores": "false"})
    assert gpus_of(group, 1, 1, found) == "nvml:GPU-0"
    # A chunk begins at a multiple of its size.
    assert gpus_of(group, 2, 2, found) == "nvml:GPU-2,GPU-3"
    assert gpus_of(group, 3, 2, found) == "nvml:GPU-4,GPU-5"
    with pytest.raises(LaunchError, match="2 GPUs are wanted and 1 of 6 are free: lower gpus"):
        gpus_of(group, 4, 2, found)
    group.launcher.end(group.installation, group.name, f"{group.name}-2")
    until(lambda: f"{group.name}-2" not in group.listed())
    assert gpus_of(group, 5, 2, found) == "nvml:GPU-2,GPU-3"
    tool.write_text("#!/bin/sh\necho no driver; exit 9\n")
    with pytest.raises(LaunchError, match=r"nvidia-smi fails .no driver.: look at the driver"):
        gpus_of(group, 6, 1, found)


def test_declared_gpus_are_divided_as_well(group: Group) -> None:
    declared = processes.make({**group.harness.spec.options, "declared_gpus": "3", "own_cores": "false"})  # fmt: skip
    assert [gpus_of(group, number, 1, declared) for number in (1, 2, 3)] == ["1"] * 3
    with pytest.raises(LaunchError, match="1 GPUs are wanted and 0 of 3 are free"):
        gpus_of(group, 4, 1, declared)
    with pytest.raises(LaunchError, match="4 GPUs are wanted and this machine has 3: lower gpus"):
        gpus_of(group, 4, 4, declared)
    with pytest.raises(InvalidRequest, match="declared_gpus is a count, not 'two'"):
        processes.make({"declared_gpus": "two"})


def test_an_instance_of_an_earlier_version_has_all_gpus(group: Group, tmp_path: Path) -> None:
    declared = processes.make({**group.harness.spec.options, "declared_gpus": "4", "own_cores": "false"})  # fmt: skip
    gpus_of(group, 1, 1, declared)
    (path,) = (tmp_path / "instances").glob(f"*/*/*/{group.name}-1/order.json")
    order = json.loads(path.read_text())
    del order["gpu_names"]
    path.write_text(json.dumps(order))
    with pytest.raises(LaunchError, match="an earlier version launched has all GPUs"):
        gpus_of(group, 2, 1, declared)


def test_a_worker_that_cannot_start_says_why(group: Group) -> None:
    order = LaunchOrder(
        group.installation, group.name, f"{group.name}-1", group.harness.spec, ["/no/such/worker"]
    )
    group.launcher.launch(order)
    until(lambda: group.listed()[order.name].restarts > 0)
    assert "No such file" in group.listed()[order.name].reason


def test_what_an_instance_left_in_a_session_of_its_own_ends_with_it(
    group: Group, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    script = (
        f"setsid env -i sh -c 'echo $$ >{path}.part; mv {path}.part {path}; sleep 600' & sleep 600"
    )
    order = LaunchOrder(
        group.installation, group.name, f"{group.name}-1", group.harness.spec, ["sh", "-c", script]
    )
    group.launcher.launch(order)
    until(path.exists)
    left = int(path.read_text())
    group.launcher.end(group.installation, group.name, order.name)
    until(lambda: not group.listed())
    assert not lives(left)


def test_an_instance_whose_folder_was_deleted_still_ends_with_its_supervisor(
    group: Group, tmp_path: Path
) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    pids = json.loads(group.facts(1).read_text())["pids"]
    shutil.rmtree(tmp_path / "instances")
    os.kill(supervisor_of(instance), signal.SIGTERM)
    until(lambda: not any(lives(pid) for pid in pids))
