"""A Tangram whose nodes run on Ray: a job of the same Ray submits its actions, and a machine is lost meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.steady_trainers import SteadyTrainers
from domain.ids import trajectory_key
from managers.cpu.workspaces import safe_name
from managers.launch.launcher import InstanceState
from tangram_client.client import Client
from tests.faults.audit import Audit
from tests.faults.code_trees import PRESENT, interpreter
from tests.faults.ray_nodes import WITHIN_SECONDS, RayNodes, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

_ACTIONS = 4

#: The job of a trainer: each task asks for its actions one after the other; a line in the workspace counts each start.
_TRAINER = """
import json, sys
import ray
from tangram_client.payloads import exec_action
from tangram_client.ray import connect

address, name, tasks, actions, seconds, cores = sys.argv[1:]
ray.init(address, log_to_driver=False)

@ray.remote(num_cpus=0.1, resources={"trainers": 1})
def act(number):
    tangram, trajectory = connect(), f"{name}-{number}"
    ended = []
    for count in range(int(actions)):
        line = f"echo started >> ran.{count}; sleep {seconds}; echo $((40 + {count}))"
        action = exec_action("ray", ["sh", "-c", line], trajectory=trajectory, cpu=json.loads(cores))
        done = tangram.run(action)
        ended.append([done.id, done.outcome, done.stdout, done.node])
    return ended

print(json.dumps(ray.get([act.remote(n) for n in range(int(tasks))])))
"""
_UNPUBLISHED = """
import sys
import ray
from tangram_client.ray import NotPublished, connect

def refused():
    try:
        connect("another")
    except NotPublished as error:
        return str(error)

print(refused())
ray.init(sys.argv[1], log_to_driver=False)
print(refused())
"""


@pytest.fixture(scope="module")
def ray_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    running = RayNodes(tmp_path_factory.mktemp("r"))
    try:
        running.start()
        running.launch(2)
        yield running
    finally:
        running.stop()


def starts_of(ray_nodes: RayNodes, name: str) -> Counter[tuple[str, int]]:
    """Return how often each action of a trainer started, over the homes of all machines."""
    lines: Counter[tuple[str, int]] = Counter()
    for number in range(16):
        workspace = safe_name(trajectory_key("default", f"{name}-{number}"))
        place = f"machine-*/.local/share/tangram/nodes/*/cpu/environments/{workspace}/layer/workspace/ran.*"
        for file in ray_nodes.directory.glob(place):
            lines[workspace, int(file.suffix[1:])] += len(file.read_text().splitlines())
    return lines


def test_tasks_of_a_ray_job_get_results_of_their_actions(ray_nodes: RayNodes) -> None:
    trainer = ray_nodes.train(_TRAINER, "calm", "8", str(_ACTIONS), "0.5", "1")
    ended = json.loads(trainer.communicate(timeout=WITHIN_SECONDS)[0].splitlines()[-1])
    assert [[each[1:3] for each in task] for task in ended] == [
        [["completed", f"{40 + count}\n"] for count in range(_ACTIONS)]
    ] * 8
    assert {each[3] for task in ended for each in task} == {"onray-1", "onray-2"}
    assert list(starts_of(ray_nodes, "calm").values()) == [1] * 8 * _ACTIONS
    # A web process reaches the machine by the address that Ray has of it.
    with Client(ray_nodes.system.address.url, ray_nodes.system.token) as client:
        assert client.files("calm-0").read("ran.0") == b"started\n"


def test_a_program_without_its_tangram_reads_what_to_do(ray_nodes: RayNodes) -> None:
    said = ray_nodes.train(_UNPUBLISHED).communicate(timeout=WITHIN_SECONDS)[0].splitlines()
    assert "call ray.init" in said[-2]
    assert said[-1].endswith("not published in this Ray cluster; there is tangram-tests")


def test_a_lost_machine_is_replaced_and_each_action_ends_once(ray_nodes: RayNodes) -> None:
    audit = Audit(ray_nodes.system)
    audit.replay()
    before = dict(audit.finishes)
    trainer = ray_nodes.train(_TRAINER, "lossy", "16", str(_ACTIONS), "2", "0.1")
    until(lambda: ray_nodes.system.running() >= 8)
    lost = ray_nodes.instances()["onray-1"]

    ray_nodes.machines.kill(lost.machine)

    until(lambda: ray_nodes.nodes()["onray-1"]["state"] == "lost")
    # The list goes from its old machine over pending to another one.
    until(lambda: ray_nodes.instances()["onray-1"].state is InstanceState.PENDING)
    until(lambda: ray_nodes.instances()["onray-1"].state is InstanceState.RUNNING)
    assert ray_nodes.instances()["onray-1"].machine not in (lost.machine, "")
    until(lambda: ray_nodes.ready_nodes() == {"onray-1", "onray-2"})

    ended = json.loads(trainer.communicate(timeout=WITHIN_SECONDS)[0].splitlines()[-1])
    outcomes = Counter(each[1] for task in ended for each in task)
    assert sum(outcomes.values()) == 16 * _ACTIONS
    assert set(outcomes) <= {"completed", "unknown", "infra_failed"}
    assert outcomes["completed"] >= 8 * _ACTIONS
    ran = starts_of(ray_nodes, "lossy")
    assert set(ran.values()) == {1}
    assert len(ran) >= outcomes["completed"]
    audit.replay()
    assert {each[0] for task in ended for each in task} <= audit.finishes.keys() - before.keys()
    assert set(audit.finishes.values()) == {1}


def test_a_changed_shape_replaces_nodes_on_ray_and_another_way_to_reach_it_none(
    ray_nodes: RayNodes, tmp_path: Path
) -> None:
    ray_nodes.end_instances()
    ray_nodes.group = "rolling"
    ray_nodes.add_machine("more")
    try:
        _replace_under_load(ray_nodes, tmp_path)
    finally:
        ray_nodes.declare(0)
        until(lambda: not ray_nodes.instances())


def _replace_under_load(ray_nodes: RayNodes, tmp_path: Path) -> None:
    ray_nodes.declare(2)
    until(lambda: ray_nodes.ready_nodes() >= {"rolling-1", "rolling-2"})
    first = ray_nodes.instances()
    load = SteadyTrainers([ray_nodes.system.address.url], ray_nodes.system.token, Path("in-the-workspace"), trainers=4, actions=5)  # fmt: skip
    load.start()

    # The file with the access of trainers is no part of the shape.
    other = tmp_path / "client.json"
    other.write_text((ray_nodes.directory / "client.json").read_text())
    ray_nodes.declare(2, client=str(other))
    until(lambda: ray_nodes.report()["spec"]["options"]["client"] == str(other))
    # That pass has compared all instances with the new options.
    assert not any(each["outdated"] for each in ray_nodes.report()["instances"])
    load.wait_for(40)
    assert ray_nodes.instances() == first

    python = interpreter(tmp_path / "python", PRESENT.folder)
    ray_nodes.declare(2, client=str(other), node_python=python)
    former = {each.fingerprint for each in first.values()}
    # Names are used again.
    until(lambda: former.isdisjoint(each.fingerprint for each in ray_nodes.instances().values()))
    until(lambda: len(ray_nodes.ready_nodes() & ray_nodes.instances().keys()) == 2)
    load.wait_for(40)
    load.stop()

    assert set(load.outcomes.values()) == {"completed"}
    # Idle trajectories may have moved (decision 0328), each with its files.
    assert (load.failures, load.torn) == ([], set())
    assert len(former) == 1
    assert former != {""}
    assert all(ray_nodes.program_of(name) == python for name in ray_nodes.instances())
