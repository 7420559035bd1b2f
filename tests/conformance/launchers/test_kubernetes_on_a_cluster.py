"""The launcher of Kubernetes keeps the rules on a real control plane: its controllers make pods, its scheduler binds them, a kubelet runs them.

`tests.kubernetes_build` says which Kubernetes that is. Pods have the network and the processes of this machine, and the service
account is that of the manifests.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from domain.node_groups import NodeGroupSpec
from managers.launch import kubernetes_cluster
from managers.launch.kubernetes_cluster import KubernetesLauncher
from managers.launch.kubernetes_objects import INSTANCE, resource_name
from managers.launch.launcher import Instance, InstanceState, LaunchError, LaunchOrder, NodeLauncher
from tests.conformance.launchers.kubernetes_rules import *  # noqa: F403 - of the API
from tests.conformance.launchers.kubernetes_rules import PODS, SECRETS, SETS, Ask
from tests.conformance.launchers.suite import *  # noqa: F403 - the rules
from tests.conformance.launchers.suite import Group, lives, until
from tests.kubernetes_build import skip_without_programs
from tests.kubernetes_cluster import KubernetesCluster, Object, running_cluster
from tests.kubernetes_namespace import options, prepare, template
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

NAME = {"name": "TANGRAM_NODE", "value": "that of the template"}


class ClusterHarness:
    """The namespace of Tangram in the cluster, asked with the token of the launcher's service account."""

    spec = NodeGroupSpec(engine="kubernetes", count=2, cpus=1)
    restarts = True

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        self.cluster = cluster
        self.token = folder / "token"
        self._options = options(cluster, folder)
        self._made: list[KubernetesLauncher] = []

    def launcher(self, **changed: str) -> KubernetesLauncher:
        self._made.append(kubernetes_cluster.make({**self._options, **changed}))
        return self._made[-1]

    def close(self) -> None:
        for each in self._made:
            each.close()

    def kill(self, instance: Instance) -> None:
        """Kill it, and wait until the restart is reported: a kubelet of 1.20 may never end a pod that is deleted sooner."""
        path = f"/api/v1/namespaces/{instance.handle.removeprefix('pod ').replace('/', '/pods/')}"
        os.kill(main_process(instance.name), signal.SIGKILL)

        def runs_again() -> bool:
            (status,) = self.cluster.get(path)["status"]["containerStatuses"]
            return status["restartCount"] > instance.restarts and "running" in status["state"]

        until(runs_again)

    def unreachable(self) -> NodeLauncher:
        return self.launcher(server=f"https://127.0.0.1:{free_port()}")


def main_process(node: str) -> int:
    """Return the process of the container of a node worker: the one whose parent is none of them."""
    wanted, found = f"TANGRAM_NODE={node}".encode(), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if wanted in (stat.parent / "environ").read_bytes().split(b"\0"):
                found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    (main,) = [pid for pid, parent in found.items() if parent not in found]
    return main


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    skip_without_programs()
    with running_cluster(machines=2) as cluster:
        shared = tmp_path_factory.getbasetemp()
        prepare(cluster, template(shared, variables=[NAME], hostPID=True), shared)
        yield cluster


@pytest.fixture
def harness(
    cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterHarness]:
    harness = ClusterHarness(cluster, tmp_path_factory.mktemp("account"))
    yield harness
    harness.close()


@pytest.fixture
def ask(cluster: KubernetesCluster) -> Ask:
    return functools.partial(cluster.ask, check=False)


def set_of(group: Group, name: str) -> str:
    return resource_name(group.installation, group.name, name)


def pod_of(cluster: KubernetesCluster, group: Group, name: str) -> Object:
    return cluster.get(f"{PODS}/{set_of(group, name)}-0")


def facts_of(group: Group, number: int = 1) -> Any:
    return json.loads(group.facts(number).read_text())


def test_restarts_of_the_container_are_counted(group: Group) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    assert instance.restarts == 0
    group.harness.kill(instance)
    until(lambda: group.listed()[name].restarts == 1)


def test_an_instance_reserves_what_it_declares_and_has_its_variables_from_a_secret(
    group: Group, cluster: KubernetesCluster
) -> None:
    name = group.launch()
    group.running(1)
    (container,) = pod_of(cluster, group, name)["spec"]["containers"]
    assert (
        container["resources"]["limits"]["cpu"] == container["resources"]["requests"]["cpu"] == "1"
    )
    assert [each["name"] for each in container["env"]] == ["TANGRAM_HOME"]
    chosen = f"{INSTANCE}={set_of(group, name)}"
    listed = cluster.ask("GET", SECRETS, labelSelector=chosen)
    assert len(listed.json()["items"]) == 1
    group.launcher.end(group.installation, group.name, name)
    listed = cluster.ask("GET", SECRETS, labelSelector=chosen)
    assert listed.json()["items"] == []


def test_an_instance_that_is_evicted_has_an_end_and_runs_again_with_its_volume(
    group: Group, cluster: KubernetesCluster
) -> None:
    name = group.launch()
    machine = group.running(1)[name].machine
    before = facts_of(group)
    kept = Path(before["data"], "kept")
    pod = f"{set_of(group, name)}-0"
    assert kept.parent == Path("/var/lib/tangram")
    claim = cluster.get(f"/api/v1/namespaces/tangram/persistentvolumeclaims/home-{pod}")
    volume = claim["spec"]["volumeName"]
    group.facts(1).unlink()
    with silent(cluster, machine):
        body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "tangram"}}  # fmt: skip
        cluster.ask("POST", f"{PODS}/{pod}/eviction", body)
        instance = group.listed()[name]
        assert instance.state is InstanceState.RUNNING
        assert instance.ends_at is not None
    again = group.running(1)[name]
    assert (again.ends_at, facts_of(group)["pids"] == before["pids"]) == (None, False)
    claim = cluster.get(f"/api/v1/namespaces/tangram/persistentvolumeclaims/home-{pod}")
    assert claim["spec"]["volumeName"] == volume


@contextlib.contextmanager
def silent(cluster: KubernetesCluster, machine: str) -> Iterator[None]:
    """Let a machine not answer while the context lasts; its containers go on."""
    (found,) = [each for each in cluster.machines if each.name == machine]
    found.kill_kubelet()
    try:
        yield
    finally:
        found.start_kubelet()


def test_an_instance_that_is_ended_on_a_silent_machine_is_listed_until_its_processes_have_ended(
    group: Group, cluster: KubernetesCluster
) -> None:
    name = group.launch()
    machine = group.running(1)[name].machine
    pids = facts_of(group)["pids"]
    with silent(cluster, machine):
        until(lambda: machine not in cluster.ready())
        instance = group.listed()[name]
        assert (instance.state, instance.ends_at) == (InstanceState.RUNNING, None)
        group.launcher.end(group.installation, group.name, name)
        until(lambda: "deletionTimestamp" in pod_of(cluster, group, name)["metadata"])
        assert group.listed()[name].state is InstanceState.ENDING
        assert all(lives(pid) for pid in pids)
    until(lambda: not group.listed())
    assert [pid for pid in pids if lives(pid)] == []
    until(lambda: machine in cluster.ready())


@pytest.mark.parametrize(
    "spec",
    [
        {"unschedulable": True},
        {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
    ],
)
def test_a_machine_that_leaves_gives_notice(
    group: Group, cluster: KubernetesCluster, spec: Object
) -> None:
    name = group.launch()
    machine = group.running(1)[name].machine
    cluster.ask("PATCH", f"/api/v1/nodes/{machine}", {"spec": spec})
    try:
        other = group.harness.launcher()
        (instance,) = other.instances(group.installation, group.name)
    finally:
        undo = {"spec": {"unschedulable": None, "taints": None}}
        cluster.ask("PATCH", f"/api/v1/nodes/{machine}", undo)
    other.close()
    assert instance.ends_at is not None
    assert f"{machine} has the taint" in instance.reason


def launch(group: Group, **members: Any) -> str:
    """Launch an instance of another shape."""
    name = f"{group.name}-1"
    spec = NodeGroupSpec(engine="kubernetes", count=1, **members)
    order = LaunchOrder(group.installation, group.name, name, spec, [sys.executable, "-c", "import time; time.sleep(600)"], {"TANGRAM_NODE": name})  # fmt: skip
    group.launcher.launch(order)
    return name


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"cpus": 4000}, "Insufficient cpu"),
        ({"cpus": 1, "memory_bytes": 2**60}, "Insufficient memory"),
        ({"cpus": 1, "gpus": 1}, "Insufficient nvidia.com/gpu"),
        ({"cpus": 1, "labels": {"zone": "elsewhere"}}, "didn't match"),
        ({"cpus": 1, "image": "tangram-tests-of-no-registry:1"}, "ErrImageNeverPull"),
    ],
)
def test_an_instance_that_cannot_run_waits_with_the_words_of_the_scheduler_or_the_kubelet(
    group: Group, members: Object, words: str
) -> None:
    name = launch(group, **members)
    until(lambda: words in group.listed()[name].reason)
    assert group.listed()[name].state is InstanceState.PENDING


def test_labels_choose_the_machine(group: Group) -> None:
    name = launch(group, cpus=1, labels={"zone": "b"})
    until(lambda: group.listed()[name].state is InstanceState.RUNNING)
    assert group.listed()[name].machine == "machine-2"


def test_an_instance_whose_pod_the_api_refuses_waits_and_says_where_to_look(group: Group) -> None:
    """The API takes a StatefulSet without looking into its pod: the controller is refused, and writes it into an event."""
    name = launch(group, cpus=1, labels={"a label": "of two words"})
    until(lambda: "kubectl describe statefulset" in group.listed()[name].reason)
    assert group.listed()[name].state is InstanceState.PENDING


def test_a_successor_of_the_same_name_is_not_ended_by_what_was_read_before(
    group: Group, cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = group.launch()
    group.running(1)
    path = f"{SETS}/{set_of(group, name)}"
    api = group.launcher._api  # type: ignore[attr-defined]
    read, uids = api.get, list[str]()

    def replaced(asked: str) -> Object | None:
        found: Object | None = read(asked)
        if found is not None:
            uids.append(found["metadata"]["uid"])
        if len(uids) == 1:
            cluster.ask("DELETE", path, {"propagationPolicy": "Background"})
            until(lambda: cluster.ask("GET", path, check=False).status_code == 404)
            group.launch(launcher=group.harness.launcher())
        return found

    monkeypatch.setattr(api, "get", replaced)
    group.launcher.end(group.installation, group.name, name)
    assert len(uids) == len(set(uids)) == 2
    until(lambda: not group.listed())


def test_an_instance_whose_set_was_deleted_by_hand_is_listed_until_its_pod_has_ended(
    group: Group, cluster: KubernetesCluster
) -> None:
    name = group.launch()
    machine = group.running(1)[name].machine
    path = f"{SETS}/{set_of(group, name)}"
    with silent(cluster, machine):
        cluster.ask("DELETE", path, {"propagationPolicy": "Background"})
        until(lambda: cluster.ask("GET", path, check=False).status_code == 404)
        assert group.listed()[name].state is InstanceState.ENDING
    until(lambda: not group.listed())


def test_long_lists_come_in_pages(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managers.launch.kubernetes_api.PAGE", 1)
    names = {group.launch(1), group.launch(2), group.launch(3)}
    assert set(group.listed()) == names


def test_the_service_account_may_do_what_it_needs_and_no_more(
    harness: ClusterHarness, cluster: KubernetesCluster
) -> None:
    launcher = harness.launcher()
    assert launcher.problems() == []
    api = launcher._api
    for refused in (
        lambda: api.list(SECRETS),
        lambda: api.list("/api/v1/namespaces/default/pods"),
        lambda: api.delete(f"{PODS}/x", {}),
        lambda: api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
    ):
        with pytest.raises(LaunchError, match="forbidden"):
            refused()


def test_without_its_role_the_launcher_names_what_it_may_not(
    harness: ClusterHarness, cluster: KubernetesCluster
) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/tangram/rolebindings/tangram-launcher"
    kept = cluster.get(path)
    cluster.ask("DELETE", path)
    launcher = harness.launcher()
    try:
        until(lambda: bool(launcher.problems()))
        (problem,) = launcher.problems()
        with pytest.raises(LaunchError, match="tangram-launcher"):
            launcher.instances("i", "g")
    finally:
        for member in ("uid", "resourceVersion"):
            kept["metadata"].pop(member)
        cluster.apply(kept)
    assert "may not get statefulsets, list statefulsets, create statefulsets" in problem
    until(lambda: launcher.problems() == [])


def test_a_token_that_is_refused_is_named(harness: ClusterHarness) -> None:
    harness.token.write_text("old")
    with pytest.raises(LaunchError, match="token_file"):
        harness.launcher().instances("i", "g")


def test_a_cluster_whose_machines_are_all_cordoned_has_a_problem(
    harness: ClusterHarness, cluster: KubernetesCluster
) -> None:
    for each in cluster.machines:
        cluster.cordon(each.name)
    try:
        assert "kubectl get nodes" in harness.launcher().problems()[0]
    finally:
        for each in cluster.machines:
            cluster.cordon(each.name, cordoned=False)
