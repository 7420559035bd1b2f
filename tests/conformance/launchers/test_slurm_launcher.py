"""The launcher for Slurm, on a small cluster of this machine (`tests.slurm_cluster`)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState, LaunchError, LaunchOrder
from managers.launch.plan import NodeWork, plan
from managers.launch.slurm_cluster import SlurmLauncher, make
from tests.conformance.launchers.suite import *  # noqa: F403 - the suite's tests run here
from tests.conformance.launchers.suite import Group, lives, until
from tests.slurm_cluster import (
    SlurmCluster,
    has_control_groups,
    running_cluster,
    skip_without_slurm,
)

#: As that of Ray: a cluster takes two minutes. What Slurm prints is read in tests/unit/managers/test_slurm_launcher.py.
pytestmark = pytest.mark.long
CGROUPS = has_control_groups()


class SlurmHarness:
    """One cluster for all tests of the module."""

    restarts = False

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        #: Processes below node workers that were killed: without control groups they outlive them.
        self.below: list[psutil.Process] = []
        self.spec = NodeGroupSpec(
            engine="slurm", count=1, memory_bytes=300 * 2**20, labels={"fast": "", "zone": "a"}
        )

    def launcher(self, **options: str) -> SlurmLauncher:
        return make({"conf": str(self.cluster.conf), **options})

    def kill(self, instance: Instance) -> None:
        pid = batch_process(instance)
        assert pid is not None
        worker = psutil.Process(pid)
        self.below += worker.children(recursive=True)
        worker.kill()

    def close(self) -> None:
        for each in self.below:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def unreachable(self) -> SlurmLauncher:
        return self.changed(f"SlurmctldPort={self.cluster.port}", "SlurmctldPort=1")

    def changed(self, before: str, after: str) -> SlurmLauncher:
        """Return a launcher whose slurm.conf differs from that of the cluster."""
        other = self.cluster.directory / "other.conf"
        text = self.cluster.conf.read_text()
        assert before in text
        other.write_text(f"{text.replace(before, after)}\nMessageTimeout=2\n")
        return make({"conf": str(other)})


def batch_process(instance: Instance) -> int | None:
    """Return the process of a job's script: the child of its slurmstepd."""
    job = instance.handle.removeprefix("job ")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            variables = (stat.parent / "environ").read_bytes().split(b"\0")
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            above = Path(f"/proc/{parent}/cmdline").read_text()
        except (OSError, IndexError):
            continue
        if f"SLURM_JOB_ID={job}".encode() in variables and above.startswith("slurmstepd"):
            return int(stat.parent.name)
    return None


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    skip_without_slurm()
    with running_cluster(nodes=2, cgroups=CGROUPS) as cluster:
        yield cluster


@pytest.fixture
def harness(cluster: SlurmCluster) -> Iterator[SlurmHarness]:
    harness = SlurmHarness(cluster)
    yield harness
    harness.close()


def facts_of(group: Group, number: int = 1) -> dict[str, list[int]]:
    facts: dict[str, list[int]] = json.loads(group.facts(number).read_text())
    return facts


def test_an_engine_that_can_place_node_workers_has_no_problems(  # type: ignore[no-redef]  # in place of that of the suite
    harness: SlurmHarness,
):
    problems = harness.launcher().problems()
    if CGROUPS:
        assert problems == []
    else:
        assert [each.partition(":")[0] for each in problems] == [
            "ProctrackType is proctrack/linuxproc"
        ]


def test_nothing_is_left_of_a_job_that_was_cancelled_from_outside(
    group: Group, cluster: SlurmCluster
):
    name = group.launch()
    instance = group.running(1)[name]
    cluster.call("scancel", instance.handle.removeprefix("job "))
    until(lambda: not group.listed())
    assert [pid for pid in facts_of(group)["pids"] if lives(pid)] == []


def test_a_killed_node_worker_leaves_nothing_where_jobs_have_control_groups(
    group: Group, harness: SlurmHarness
):
    name = group.launch()
    instance = group.running(1)[name]
    child = facts_of(group)["pids"][1]
    harness.kill(instance)
    until(lambda: group.listed()[name].state is InstanceState.FAILED)
    assert lives(child) != CGROUPS, "elsewhere it is named as a problem of the cluster"
    assert "killed by signal 9" in group.listed()[name].reason


def test_a_failed_job_is_forgotten_once_it_was_ended(group: Group, harness: SlurmHarness):
    name = group.launch()
    harness.kill(group.running(1)[name])
    until(lambda: group.listed()[name].state is InstanceState.FAILED)
    group.launcher.end(group.installation, group.name, name)
    assert group.listed() == {}


def test_a_job_is_confined_to_the_cores_that_it_requested(group: Group):
    group.launch()
    group.running(1)
    assert len(os.sched_getaffinity(facts_of(group)["pids"][1])) == 1


def test_a_job_sees_the_gpus_that_slurm_granted_alone(group: Group):
    for number in (1, 2):
        spec = structs.replace(group.harness.spec, gpus=1)
        seen = group.facts(number)
        script = f"echo $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME > {seen}.part; mv {seen}.part {seen}; sleep 600"
        name = f"{group.name}-{number}"
        order = LaunchOrder(group.installation, group.name, name, spec, ["sh", "-c", script])
        group.launcher.launch(order)
    group.running(1, 2)
    seen_by_both = {group.facts(number).read_text() for number in (1, 2)}
    assert len(seen_by_both) == 2, "they share no GPU"
    assert all(line[0] in "01" and line[1] == " " for line in seen_by_both)


def test_the_variables_of_a_node_worker_are_not_on_a_command_line(
    group: Group, cluster: SlurmCluster
):
    group.launch()
    instance = group.running(1)[f"{group.name}-1"]
    job = instance.handle.removeprefix("job ")
    assert str(group.facts(1)) not in cluster.call("scontrol", "show", "job", job)


def test_a_requeued_job_runs_again_under_its_name(group: Group, cluster: SlurmCluster):
    name = group.launch()
    instance = group.running(1)[name]
    group.facts(1).unlink()
    cluster.call("scontrol", "requeue", instance.handle.removeprefix("job "))
    again = group.running(1)[name]
    assert (again.handle, again.restarts) == (instance.handle, 1)


def test_a_preempted_job_runs_again(group: Group, harness: SlurmHarness, cluster: SlurmCluster):
    name = group.launch()
    instance = group.running(1)[name]
    before = facts_of(group)["pids"]
    group.facts(1).unlink()
    urgent = cluster.call("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--output=/dev/null",
                          f"--nodelist={instance.machine}", "--wrap=sleep 600")  # fmt: skip
    until(lambda: cluster.call("squeue", "-h", "-j", urgent, "-o", "%T") == "RUNNING")
    assert [pid for pid in before if lives(pid)] == []
    cluster.call("scancel", urgent)
    assert group.running(1)[name].restarts == 1


def test_an_instance_that_its_time_limit_ends_soon_is_drained_and_replaced(
    group: Group, harness: SlurmHarness
):
    limited = harness.launcher(time_limit="10")
    name = group.launch(launcher=limited)
    instance = group.running(1)[name]
    assert instance.ends_at is not None
    left = instance.ends_at - time.time()
    assert 400 < left < 600 - 90, "so long before Slurm asks the node worker to end"

    def steps(now: float, work: NodeWork):
        return plan(group.name, harness.spec, 1, list(group.listed().values()), {name: work}, now)

    soon = instance.ends_at - harness.spec.drain_seconds
    assert steps(soon - 1, NodeWork(actions=1)).launch == []
    due = steps(soon, NodeWork(actions=1))
    assert (list(due.drain), list(due.end), due.launch) == ([name], [], [f"{group.name}-2"])
    assert list(steps(soon, NodeWork(drained=True)).end) == [name]


def test_slurm_asks_the_node_worker_alone_to_end_before_the_time_limit(
    group: Group, harness: SlurmHarness, cluster: SlurmCluster
):
    seen = group.facts(1)
    child = f"trap 'touch {seen}.child' TERM; while :; do sleep 0.2; done"
    worker = f"""trap 'touch {seen}.asked; sleep 2; exec sleep 600' TERM
        (trap - TERM; {child}) & touch {seen}; wait; wait"""
    order = dataclasses.replace(order_of(group, harness.spec), command=["sh", "-c", worker])
    harness.launcher(time_limit="1").launch(order)
    instance = group.running(1)[order.name]
    asked, signalled = Path(f"{seen}.asked"), Path(f"{seen}.child")
    until(asked.exists)
    assert instance.ends_at is not None
    assert time.time() < instance.ends_at + 90, "before its limit"
    assert not signalled.exists()


def test_an_instance_on_a_machine_that_is_drained_ends_now(
    group: Group, harness: SlurmHarness, cluster: SlurmCluster
):
    name = group.launch()
    machine = group.running(1)[name].machine
    cluster.call("scontrol", "update", f"NodeName={machine}", "State=DRAIN", "Reason=new memory")
    try:
        instance = group.listed()[name]
        assert instance.ends_at is not None
        assert instance.ends_at <= time.time()
        assert "new memory" in instance.reason
    finally:
        cluster.call("scontrol", "update", f"NodeName={machine}", "State=RESUME")


def test_a_job_that_no_machine_can_run_says_why_it_waits(group: Group, harness: SlurmHarness):
    order = order_of(group, NodeGroupSpec(engine="slurm", count=1, cpus=4000))
    group.launcher.launch(order)
    until(lambda: "PartitionConfig" in group.listed()[order.name].reason)
    assert group.listed()[order.name].reason.endswith("no machine of the partition has so many cpus")  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "options", "cure"),
    [
        ({}, {"partition": "nowhere"}, "options.partition"),
        ({}, {"time_limit": "soon"}, "options.time_limit"),
        ({}, {"extra": "--no-such-option"}, "options.extra"),
        ({"labels": {"slow": ""}}, {}, "labels must be features"),
        ({"labels": {"a&b": ""}}, {}, "letters, digits"),
        ({"gpus": 3}, {}, "these cpus, gpus"),
        ({"memory_bytes": 2**60}, {}, "lower memory_bytes"),
    ],
)
def test_a_refused_job_is_named_with_a_cure(
    group: Group, harness: SlurmHarness, spec: dict[str, Any], options: dict[str, str], cure: str
):
    order = order_of(group, NodeGroupSpec(engine="slurm", count=1, **spec))
    with pytest.raises(LaunchError, match=cure):
        harness.launcher(**options).launch(order)
    # Slurm remembers some of the jobs that it refused.
    assert {each.state for each in group.listed().values()} <= {InstanceState.FAILED}


def test_jobs_of_other_users_are_not_listed(group: Group, cluster: SlurmCluster):
    """Slurm selects them itself: another user's job with our names is neither listed nor taken for ours."""
    if os.geteuid():
        pytest.skip("only root submits jobs of other users")
    name = group.launch()
    comment = f"tangram/{group.installation}/{group.name}/{group.name}-7"
    other = cluster.call("sbatch", "--parsable", "--uid=daemon", "--gid=daemon", "--hold", f"--comment={comment}",
                         "--chdir=/tmp", "--output=/dev/null", "--wrap=sleep 600")  # fmt: skip
    try:
        assert comment in cluster.call("squeue", "--noheader", f"--jobs={other}", "--format=%k")
        assert list(group.listed()) == [name]
    finally:
        cluster.call("scancel", other)


def test_each_way_in_which_slurm_cannot_be_asked_is_named_with_its_cure(
    harness: SlurmHarness, monkeypatch: pytest.MonkeyPatch
):
    def says() -> str:
        (problem,) = launcher.problems()
        return problem

    launcher: SlurmLauncher = harness.unreachable()
    assert "slurmctld does not answer: start it" in says()
    launcher = harness.changed("munge.socket", "no-munge.socket")
    assert "start munged" in says()
    launcher = make({"conf": "/no/slurm.conf"})
    assert "set options.conf" in says()
    monkeypatch.setenv("PATH", "/no/programs")
    assert "slurm-client" in says()


def test_machines_that_are_down_are_a_problem_with_a_cure(
    harness: SlurmHarness, cluster: SlurmCluster
):
    nodes = ",".join(cluster.nodes)
    cluster.call("scontrol", "update", f"NodeName={nodes}", "State=DOWN", "Reason=broken")
    try:
        assert any("State=RESUME" in problem for problem in harness.launcher().problems())
    finally:
        cluster.call("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
        until(lambda: set(cluster.node_states().values()) == {"idle"})


def test_jobs_outlive_a_restart_of_the_controller(
    group: Group, harness: SlurmHarness, cluster: SlurmCluster
):
    name = group.launch()
    before = group.running(1)[name]
    cluster.stop_controller()
    cluster.start_controller()
    until(lambda: group.listed()[name] == before)
    assert all(lives(pid) for pid in facts_of(group)["pids"])


def order_of(group: Group, spec: NodeGroupSpec) -> LaunchOrder:
    return LaunchOrder(group.installation, group.name, f"{group.name}-1", spec, ["sleep", "600"])
