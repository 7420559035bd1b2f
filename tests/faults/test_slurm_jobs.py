"""A whole Tangram whose node workers are jobs of Slurm: actions run in them, and nothing outlives them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from managers.common.memory_shares import real_memory_bytes
from tests.faults.engine_actions import endless_processes, submit, submit_endless, view
from tests.faults.slurm_nodes import SlurmNodes, wait_until
from tests.faults.system import System
from tests.slurm_cluster import has_control_groups, running_cluster, skip_without_slurm

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(tmp_path_factory.mktemp("f"), nodes=0)
    yield system
    system.stop()


@pytest.fixture(scope="module")
def nodes(system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmNodes]:
    skip_without_slurm()
    with running_cluster(nodes=2, cgroups=has_control_groups()) as cluster:
        nodes = SlurmNodes(system, cluster, tmp_path_factory.mktemp("logs"))
        nodes.launch(1)
        nodes.launch(2)
        system.start()
        nodes.wait_until_ready("cpu-1", "cpu-2")
        yield nodes


def test_an_action_runs_within_the_job_of_its_node(system: System, nodes: SlurmNodes) -> None:
    done = submit(system, "grep", "Cpus_allowed_list", "/proc/self/status", wait=60)
    assert (done["outcome"], done["reward"]) == ("completed", 1.0)
    assert done["result"]["stdout"].split()[1] == str(done["placement"]["cpus"][0])
    node = nodes.ready()[done["placement"]["node"]]
    assert node["resources"]["cpu"]["capacity"] == 1
    assert "are Slurm's" in node["protection"]


def test_a_node_offers_no_more_memory_than_its_job_has(nodes: SlurmNodes) -> None:
    offered = {each["resources"]["memory"]["capacity"] for each in nodes.ready().values()}
    # Without control groups Slurm limits no memory.
    assert offered == {nodes.spec.memory_bytes if has_control_groups() else real_memory_bytes()}


def test_a_cancelled_job_leaves_no_process_and_gives_no_reward(
    system: System, nodes: SlurmNodes
) -> None:
    action = submit_endless(system)
    wait_until(lambda: len(endless_processes()) >= 2, "the action does not run")
    name = view(system, action)["placement"]["node"]
    nodes.call("scancel", nodes.job(name))
    wait_until(lambda: name not in nodes.listed(), "the job does not end")
    assert endless_processes() == []
    nodes.launch(int(name.removeprefix("cpu-")))
    wait_until(lambda: view(system, action)["state"] == "finished", "the action is not ended")
    assert view(system, action)["reward"] is None
    nodes.wait_until_ready("cpu-1", "cpu-2")
    assert submit(system, "true", wait=60)["outcome"] == "completed"


def test_a_node_of_a_requeued_job_is_back_under_its_name(system: System, nodes: SlurmNodes) -> None:
    nodes.call("scontrol", "requeue", nodes.job("cpu-1"))
    wait_until(lambda: nodes.listed()["cpu-1"].restarts == 1, "it is not requeued")
    wait_until(lambda: "cpu-1" not in nodes.ready(), "its node is not silent")
    nodes.wait_until_ready("cpu-1")


def test_nodes_end_with_their_jobs(nodes: SlurmNodes) -> None:
    for name in list(nodes.listed()):
        nodes.end(name)
    wait_until(lambda: not nodes.listed(), "jobs do not end")
    left = [each for each in psutil.process_iter(["cmdline"]) if "cpu-1@%h" in (each.info["cmdline"] or [])]  # fmt: skip
    assert left == []


def test_a_node_is_drained_and_replaced_before_the_time_limit_of_its_job(
    system: System, nodes: SlurmNodes
) -> None:
    wait_until(lambda: not nodes.ready(), "nodes of ended jobs are not silent")
    short = nodes.another("short", time_limit="2")
    short.keep(1)
    short.wait_until_ready("short-1")
    # Two minutes, less the 90 s before which Slurm ends a node worker, less 20 s to drain: after ten it is left.
    began = time.monotonic()
    actions: list[Any] = []
    while not actions or actions[-1]["placement"]["node"] == "short-1":
        actions.append(submit(system, "sleep", "0.5", wait=60))
        short.keep(1)
        assert time.monotonic() - began < 90, "it is replaced when its job ends, not before"
    wait_until(lambda: "short-1" not in short.listed(), "the first job does not end")
    assert {each["placement"]["node"] for each in actions} == {"short-1", "short-2"}
    assert {each["outcome"] for each in actions} == {"completed"}
    short.end("short-2")
    wait_until(lambda: not short.listed(), "jobs do not end")
