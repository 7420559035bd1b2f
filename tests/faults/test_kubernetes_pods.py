"""A whole Tangram whose node workers are pods of a real Kubernetes, kept by its keeper: actions run in them, and nothing outlives them.

`tests.kubernetes_build` says which Kubernetes that is. Pods have the network of this machine, are privileged as with the component
privileged-nodes, and one runs on each machine, as in the manifests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.architecture.tree import ROOT
from tests.faults.engine_actions import endless_processes, submit, submit_endless, view
from tests.faults.slurm_nodes import wait_until
from tests.faults.system import System
from tests.kubernetes_build import skip_without_programs
from tests.kubernetes_cluster import KubernetesCluster, Object, running_cluster
from tests.kubernetes_namespace import PODS, SECRETS, SETS, of_manifests, prepare, template

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


class Pods:
    """The group ``batch`` of a system, on a cluster."""

    def __init__(self, system: System, cluster: KubernetesCluster, options: dict[str, str]) -> None:
        self.system, self.cluster, self._options = system, cluster, options

    def want(self, count: int) -> None:
        """Declare the group with so many nodes."""
        spec = {"engine": "kubernetes", "count": count, "cpus": 1, "memory_bytes": 2**30, "drain_seconds": 60, "options": self._options}  # fmt: skip
        self.system.apply(json.dumps({"apiVersion": "tangram/v1", "kind": "NodeGroup", "metadata": {"name": "batch"}, "spec": spec}))  # fmt: skip

    def answers(self) -> bool:
        """Return whether the system has a leader that answers."""
        try:
            return bool(self.system.status())
        except OSError:
            return False

    def ready(self) -> dict[str, Any]:
        """Return the nodes that the scheduler has as ready."""
        found = self.system.status()["nodes"]
        return {each["name"]: each for each in found if each["state"] == "ready"}

    def instances(self) -> dict[str, Any]:
        """Return what the keeper reported last of the group."""
        groups = self.system.ask("GET", "/api/v1/node-groups")["groups"]
        return {each["name"]: each for group in groups for each in group["instances"]}

    def pod(self, node: str) -> Object:
        """Return the pod of a node."""
        (found,) = [each for each in self.pods() if each["metadata"]["annotations"]["tangram/node"] == node]  # fmt: skip
        return found

    def pods(self) -> list[Object]:
        """Return the pods of all groups."""
        found: list[Object] = self.cluster.ask("GET", PODS, labelSelector="tangram/group").json()["items"]  # fmt: skip
        return found


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    skip_without_programs()
    folder = tmp_path_factory.mktemp("f")
    system = System(folder, nodes=0, tcp=True)
    with running_cluster(machines=2) as cluster:
        options = prepare(cluster, node_of(folder), folder)
        budget = of_manifests("PodDisruptionBudget", "tangram-node")
        cluster.apply({**budget, "apiVersion": "policy/v1beta1"})
        pods = Pods(system, cluster, options)
        try:
            system.start_only(*(name for name in system.parts if name != "redis"))
            wait_until(pods.answers, "the API does not answer")
            yield pods
        finally:
            system.stop()


def node_of(folder: Path) -> Object:
    """Return the declared StatefulSet: of its pod the anti-affinity is kept, and what the component privileged-nodes adds."""
    affinity = of_manifests("StatefulSet", "tangram-node")["spec"]["template"]["spec"]["affinity"]
    variables = [{"name": "TANGRAM_CPU_BACKEND", "value": "process"}, {"name": "PYTHONPATH", "value": str(ROOT)}]  # fmt: skip
    # Process 1 reaps orphans, as the entry point of the image does.
    node = template(folder, variables=variables, affinity=affinity, shareProcessNamespace=True)
    (container,) = node["spec"]["template"]["spec"]["containers"]
    container["securityContext"] = {"privileged": True}
    return node


def long_action(pods: Pods) -> tuple[str, str]:
    """Start an action that does not end, with a process that has left its session; return its id and its node."""
    action = submit_endless(pods.system)
    wait_until(lambda: len(endless_processes()) >= 2, "the action does not run")
    return action, view(pods.system, action)["placement"]["node"]


def test_node_worker_pods_join_and_run_actions(pods: Pods) -> None:
    pods.want(2)
    wait_until(lambda: set(pods.ready()) == {"batch-1", "batch-2"}, "nodes do not join")
    machines = {each["spec"]["nodeName"] for each in pods.pods()}
    assert machines == {"machine-1", "machine-2"}
    done = submit(pods.system, "cat", "/proc/self/cgroup", wait=60)
    assert (done["outcome"], done["reward"]) == ("completed", 1.0)
    node = pods.ready()[done["placement"]["node"]]
    assert node["resources"]["cpu"]["capacity"] == 1
    assert node["resources"]["memory"]["capacity"] == 2**30
    assert {each["machine"] for each in pods.instances().values()} == machines


def test_a_pod_that_is_deleted_is_replaced_and_its_action_ends_without_a_reward(pods: Pods) -> None:
    action, node = long_action(pods)
    before = pods.pod(node)["metadata"]
    pods.cluster.ask("DELETE", f"{PODS}/{before['name']}")
    wait_until(lambda: view(pods.system, action)["state"] == "finished", "the action does not end")
    assert view(pods.system, action)["reward"] is None
    wait_until(lambda: endless_processes() == [], "processes of the action are left")
    wait_until(lambda: pods.pod(node)["metadata"]["uid"] != before["uid"], "there is no other pod")
    wait_until(lambda: node in pods.ready(), "the node is not back")
    assert submit(pods.system, "true", wait=60)["outcome"] == "completed"


def test_a_container_that_is_killed_starts_again_and_its_action_ends_without_a_reward(pods: Pods) -> None:  # fmt: skip
    action, node = long_action(pods)
    (worker,) = [each for each in psutil.process_iter(["cmdline"]) if f"{node}@%h" in (each.info["cmdline"] or [])]  # fmt: skip
    worker.kill()
    wait_until(lambda: view(pods.system, action)["state"] == "finished", "the action does not end")
    assert view(pods.system, action)["reward"] is None
    assert endless_processes() == []
    wait_until(lambda: pods.instances()[node]["restarts"] == 1, "it does not start again")
    wait_until(lambda: node in pods.ready(), "the node is not back")


def test_a_drained_machine_is_left_once_its_trajectories_have_ended(pods: Pods) -> None:
    pods.want(1)
    wait_until(lambda: len(pods.pods()) == 1, "one instance is not ended")
    (pod,) = pods.pods()
    machine, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name, "namespace": "tangram"}}  # fmt: skip
    refused = pods.cluster.ask("POST", f"{PODS}/{name}/eviction", eviction, check=False)
    assert refused.status_code == 429
    running = submit(pods.system, "sleep", "5")["id"]
    wait_until(lambda: view(pods.system, running)["state"] == "running", "the action does not run")
    pods.cluster.cordon(machine)
    try:
        wait_until(lambda: machine not in {each["spec"].get("nodeName") for each in pods.pods()}, "it is not left")  # fmt: skip
        assert view(pods.system, running)["outcome"] == "completed"
        wait_until(lambda: len(pods.ready()) == 1, "there is no other node")
        assert submit(pods.system, "true", wait=60)["outcome"] == "completed"
    finally:
        pods.cluster.cordon(machine, cordoned=False)


def test_a_group_of_none_leaves_nothing(pods: Pods) -> None:
    pods.want(0)
    wait_until(lambda: not pods.instances(), "instances do not end")
    for path in (PODS, SETS, SECRETS):
        assert pods.cluster.ask("GET", path, labelSelector="tangram/group").json()["items"] == []
    left = [each for each in psutil.process_iter(["cmdline"]) if any(word.startswith("batch-") and word.endswith("@%h") for word in each.info["cmdline"] or [])]  # fmt: skip
    assert left == []
