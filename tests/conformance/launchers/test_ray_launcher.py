"""The launcher of Ray, over a real cluster: the rules of all launchers, and what Ray does to instances."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState, LaunchError
from managers.launch.ray_cluster import RayLauncher, make
from tests.conformance.launchers.suite import *  # noqa: F403 - the rules are tests
from tests.conformance.launchers.suite import Group, lives, until
from tests.doors.environments import python_of
from tests.ray_machines import RayMachines

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


class RayHarness:
    """Three machines with two cores and two GPUs each; those of one test are added by it, with a resource of their own."""

    restarts = True

    def __init__(self, machines: RayMachines) -> None:
        self.machines = machines
        self.made: list[RayLauncher] = []
        self.options = {"python": str(machines.python), "address": machines.address}
        self.spec = NodeGroupSpec("ray", count=1, cpus=2, options=self.options)

    def launcher(self) -> RayLauncher:
        self.made.append(make(self.options))
        return self.made[-1]

    def kill(self, instance: Instance) -> None:
        os.kill(node_worker(instance.name), signal.SIGKILL)

    def unreachable(self) -> RayLauncher:
        return make({**self.options, "address": "127.0.0.1:1"})


def node_worker(name: str) -> int:
    """Return the pid of the process that has the variable and whose parent has not."""
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_of(path, name)]
    (top,) = [pid for pid in found if _parent(pid) not in found]
    return top


def _is_of(process: Path, name: str) -> bool:
    try:
        return f"TANGRAM_NODE={name}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def machines() -> Iterator[RayMachines]:
    running = RayMachines(python_of("ray"))
    for number in (1, 2, 3):
        running.add(f"m{number}", num_cpus=2, num_gpus=2, resources={"tangram": 1})
    yield running
    running.close()


@pytest.fixture
def harness(machines: RayMachines) -> Iterator[RayHarness]:
    harness = RayHarness(machines)
    yield harness
    for launcher in harness.made:
        launcher.close()


@pytest.fixture
def own_machine(machines: RayMachines, group: Group) -> Callable[..., str]:
    """Add a machine that the group of the test alone uses; its name is unique in the cluster."""
    own = f"only-{group.name}"
    spec_of(group, labels={own: "0.5"})

    def add(suffix: str, resources: Mapping[str, float] | None = None, **fields: object) -> str:
        name = f"{group.name}-{suffix}"
        offered = {"tangram": 1, own: 1, **(resources or {})}
        machines.add(name, num_cpus=2, resources=offered, **fields)
        return name

    return add


def pids(group: Group, number: int) -> list[int]:
    found: list[int] = json.loads(group.facts(number).read_text())["pids"]
    return found


def spec_of(group: Group, **fields: object) -> None:
    group.harness.spec = msgspec.structs.replace(group.harness.spec, **fields)


def test_no_machine_has_two_instances_and_the_last_one_waits(group: Group) -> None:
    spec_of(group, cpus=1)
    for number in (1, 2, 3, 4):
        group.launch(number)

    def three_run() -> bool:
        return sum(each.state is InstanceState.RUNNING for each in group.listed().values()) == 3

    until(three_run)
    listed = sorted(group.listed().values(), key=lambda each: each.machine)
    assert [each.machine for each in listed] == ["", "m1", "m2", "m3"]
    assert listed[0].state is InstanceState.PENDING
    assert "no machine of Ray has free: CPU 1, tangram 1" in listed[0].reason


def test_ray_schedules_nothing_else_on_what_is_reserved(
    group: Group, machines: RayMachines
) -> None:
    spec_of(group, gpus=1, memory_bytes=2**30)
    name = group.launch()
    machine = group.running(1)[name].machine
    free = machines.free(machine)
    assert "CPU" not in free
    assert "tangram" not in free
    assert free["GPU"] == 1


def test_a_killed_actor_takes_its_node_worker_along_and_ray_starts_another(group: Group) -> None:
    name = group.launch()
    group.running(1)
    before = pids(group, 1)
    group.facts(1).unlink()
    group.launcher.close()  # the program that launched it is gone, as after an upgrade of the keeper
    (actor,) = [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if (path / "comm").exists() and (path / "comm").read_text().startswith("ray::NodeInst")
    ]
    os.kill(actor, signal.SIGKILL)
    until(lambda: not any(lives(pid) for pid in before))
    instance = group.running(1)[name]
    assert instance.restarts == 1


def test_an_instance_whose_actor_was_killed_for_good_is_listed_until_nothing_is_left(
    group: Group, machines: RayMachines
) -> None:
    name = group.launch()
    group.running(1)
    machines.kill_actor(f"{group.installation}/{group.name}/{name}")
    until(lambda: group.listed()[name].state is InstanceState.ENDING)
    until(lambda: not group.listed())
    assert not any(lives(pid) for pid in pids(group, 1))
    group.launch()
    group.running(1)


def test_a_lost_machine_is_replaced_by_another_without_a_hand(
    group: Group,
    machines: RayMachines,
    own_machine: Callable[..., str],
) -> None:
    first = own_machine("a")
    name = group.launch()
    assert group.running(1)[name].machine == first
    before = pids(group, 1)
    group.facts(1).unlink()

    machines.kill(first)

    until(lambda: group.listed()[name].state is InstanceState.PENDING)
    until(lambda: not any(lives(pid) for pid in before))
    until(lambda: "its machine left Ray" in group.listed()[name].reason)
    second = own_machine("b")
    assert group.running(1)[name].machine == second


def test_notice_of_ray_is_when_the_instance_ends(
    group: Group,
    machines: RayMachines,
    own_machine: Callable[..., str],
) -> None:
    machine = own_machine("a")
    name = group.launch()
    assert group.running(1)[name].ends_at is None
    machines.drain(machine, 600)
    until(lambda: group.listed()[name].ends_at is not None)
    notice = group.listed()[name]
    assert notice.ends_at == pytest.approx(time.time() + 600, abs=60)
    assert notice.reason == "Ray drains its machine"


def test_labels_choose_machines(group: Group, own_machine: Callable[..., str]) -> None:
    own_machine("plain")
    own_machine("big", resources={"big": 1})
    wanted = own_machine("both", resources={"big": 1}, labels={"zone": "east"})
    spec_of(group, labels={"zone": "east", "big": "0.5"})
    name = group.launch()
    assert group.running(1)[name].machine == wanted


def test_a_node_worker_that_cannot_be_started_says_why(group: Group) -> None:
    launcher = make({**group.harness.options, "node_python": "/nowhere/python"})  # type: ignore[attr-defined]
    name = group.launch(launcher=launcher)
    until(lambda: "/nowhere/python" in group.listed()[name].reason)
    assert group.listed()[name].state is not InstanceState.RUNNING
    launcher.close()


def test_an_instance_that_waits_is_taken_back_at_once(group: Group) -> None:
    spec_of(group, cpus=64)
    name = group.launch()
    assert group.listed()[name].state is InstanceState.PENDING
    group.launcher.end(group.installation, group.name, name)
    assert group.listed() == {}


def test_a_python_without_ray_is_named(harness: RayHarness) -> None:
    launcher = make({**harness.options, "python": "/usr/bin/env"})
    with pytest.raises(LaunchError, match="has ended"):
        launcher.instances("i", "g")
    launcher = make({"address": harness.options["address"]})
    with pytest.raises(LaunchError, match="set the option python"):
        launcher.instances("i", "g")


def test_a_cluster_without_the_resource_is_a_problem_with_a_cure(harness: RayHarness) -> None:
    launcher = make({**harness.options, "resource": "nothing"})
    (problem,) = launcher.problems()
    assert "ray start --resources='{\"nothing\": 1}'" in problem
    launcher.close()
