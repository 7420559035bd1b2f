"""The launcher of Kubernetes keeps the rules, on a server that plays its API over HTTP and pods as processes of this machine."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from managers.launch import kubernetes_cluster
from managers.launch.kubernetes_cluster import CLUSTER_PERMISSIONS, PERMISSIONS, KubernetesLauncher
from managers.launch.kubernetes_objects import INSTANCE, resource_name
from managers.launch.launcher import Instance, InstanceState, LaunchError, NodeLauncher
from tests.conformance.launchers.kubernetes_rules import *  # noqa: F403 - of the server
from tests.conformance.launchers.kubernetes_rules import Ask
from tests.conformance.launchers.kubernetes_server import TOKEN, KubernetesServer
from tests.conformance.launchers.suite import *  # noqa: F403 - the rules
from tests.conformance.launchers.suite import Group, until

TEMPLATE = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "tangram-node"},
    "spec": {
        "replicas": 0,
        "serviceName": "tangram-node",
        "selector": {"matchLabels": {INSTANCE: "declared"}},
        "template": {
            "metadata": {"labels": {INSTANCE: "declared", "app.kubernetes.io/component": "node"}},
            "spec": {
                "containers": [
                    {
                        "name": "node",
                        "image": "tangram",
                        "env": [{"name": "TANGRAM_NODE", "value": "that of the template"}],
                    }
                ]
            },
        },
    },
}  # fmt: skip


class KubernetesHarness:
    """One namespace of the server."""

    spec = NodeGroupSpec(engine="kubernetes", count=2, cpus=1)
    restarts = True

    def __init__(self, server: KubernetesServer, folder: Path) -> None:
        self.server = server
        self.token = folder / "token"
        self.token.write_text(f"{TOKEN}\n")
        server.store.create("statefulsets", "tangram", TEMPLATE)
        self._made: list[KubernetesLauncher] = []

    def launcher(self, **options: str) -> KubernetesLauncher:
        given = {"server": self.server.url, "token_file": str(self.token), "python": sys.executable}
        self._made.append(kubernetes_cluster.make({**given, **options}))
        return self._made[-1]

    def close(self) -> None:
        for each in self._made:
            each.close()
        self.server.close()

    def kill(self, instance: Instance) -> None:
        process = self.server.store.process(instance.handle.removeprefix("pod "))
        os.kill(process.pid, signal.SIGKILL)

    def unreachable(self) -> NodeLauncher:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return self.launcher(server=f"http://127.0.0.1:{port}")


@pytest.fixture
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesHarness]:
    server = KubernetesServer()
    harness = KubernetesHarness(server, tmp_path_factory.mktemp("account"))
    yield harness
    harness.close()


@pytest.fixture
def server(harness: KubernetesHarness) -> KubernetesServer:
    return harness.server


@pytest.fixture
def ask(server: KubernetesServer) -> Iterator[Ask]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:

        def send(method: str, path: str, body: object = None, *, accept: str = "application/json", **parameters: str) -> httpx.Response:  # fmt: skip
            return client.request(method, path, json=body, params=parameters, headers={"Accept": accept})  # fmt: skip

        yield send


def pod_of(group: Group, name: str) -> str:
    return f"tangram/{resource_name(group.installation, group.name, name)}-0"


def test_restarts_of_the_container_are_counted(group: Group) -> None:
    name = group.launch()
    instance = group.running(1)[name]
    assert instance.restarts == 0
    group.harness.kill(instance)
    until(lambda: group.listed()[name].restarts == 1)


def test_a_pod_that_is_evicted_has_an_end_and_runs_again(
    group: Group, server: KubernetesServer
) -> None:
    name = group.launch()
    group.running(1)
    with server.controllers:
        group.facts(1).unlink()
        server.store.delete("pods", pod_of(group, name), {})
        said = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}  # fmt: skip
        server.store.change("pods", pod_of(group, name), status={"conditions": [said]})
        instance = group.listed()[name]
    assert (instance.state, instance.reason) == (InstanceState.RUNNING, "preempted")
    assert instance.ends_at is not None
    assert group.running(1)[name].ends_at is None


@pytest.mark.parametrize(
    "spec",
    [
        {"unschedulable": True},
        {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
        {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]},
    ],
)
def test_a_machine_that_leaves_gives_notice(
    group: Group, server: KubernetesServer, spec: dict[str, object]
) -> None:
    name = group.launch()
    group.running(1)
    server.store.change("nodes", "machine-1", spec=spec)
    other = group.harness.launcher()
    (instance,) = other.instances(group.installation, group.name)
    other.close()
    assert instance.name == name
    assert instance.ends_at is not None
    assert "machine-1 has the taint" in instance.reason


def test_a_machine_that_does_not_answer_for_a_while_gives_none(
    group: Group, server: KubernetesServer
) -> None:
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    server.store.change("nodes", "machine-1", spec={"taints": [taint]})
    name = group.launch()
    assert group.running(1)[name].ends_at is None


def test_an_instance_that_finds_no_machine_waits_with_the_words_of_the_scheduler(
    group: Group, server: KubernetesServer
) -> None:
    server.store.change("nodes", "machine-1", spec={"unschedulable": True})
    name = group.launch()
    until(lambda: "Insufficient cpu" in group.listed()[name].reason)
    assert group.listed()[name].state is InstanceState.PENDING


def test_a_successor_of_the_same_name_is_not_ended_by_what_was_read_before(
    group: Group, server: KubernetesServer
) -> None:
    """The precondition fails with 409, and the launcher reads again."""
    name = group.launch()
    group.running(1)
    key = f"tangram/{resource_name(group.installation, group.name, name)}"
    seen: list[str] = []

    def replaced(read: str) -> None:
        if read == key and not seen:
            found = server.store.get("statefulsets", read)
            seen.append(found["metadata"]["uid"])
            with server.store.lock:
                server.store.delete("statefulsets", read, {})
                made = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": found["metadata"], "spec": found["spec"]}  # fmt: skip
                for member in ("uid", "resourceVersion", "namespace"):
                    made["metadata"].pop(member)
                server.store.create("statefulsets", "tangram", made)

    server.after_get = replaced
    before = len(server.requests)
    group.launcher.end(group.installation, group.name, name)
    asked = [each.split()[0] for each in server.requests[before:] if "/statefulsets/" in each]
    assert asked == ["GET", "DELETE", "GET", "DELETE"]
    until(lambda: not group.listed())


def test_the_variables_are_in_a_secret_that_ends_with_the_instance(
    group: Group, server: KubernetesServer
) -> None:
    name = group.launch()
    group.running(1)
    made = server.store.get("statefulsets", pod_of(group, name).removesuffix("-0"))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["env"] == []
    assert len(server.store.listed("secrets", "tangram", {})) == 1
    group.launcher.end(group.installation, group.name, name)
    assert server.store.listed("secrets", "tangram", {}) == []


def test_an_instance_whose_set_was_deleted_in_the_background_is_listed_until_its_pod_has_ended(
    group: Group, server: KubernetesServer
) -> None:
    name = group.launch()
    group.running(1)
    with server.controllers:
        server.store.delete("statefulsets", pod_of(group, name).removesuffix("-0"), {})
        server.store.delete("pods", pod_of(group, name), {})
        assert group.listed()[name].state is InstanceState.ENDING
    until(lambda: not group.listed())


def test_long_lists_come_in_pages(
    group: Group, server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("managers.launch.kubernetes_api.PAGE", 1)
    names = {group.launch(1), group.launch(2), group.launch(3)}
    assert set(group.listed()) == names
    assert any("continue=2" in each for each in server.requests)


def test_names_that_are_no_labels_are_distinct(harness: KubernetesHarness) -> None:
    launcher = harness.launcher()
    first, second = "A name of the lab" + "x" * 60, "A name of the lab" + "y" * 60
    assert launcher.instances(first, "g") == launcher.instances(second, "g") == []
    assert len(resource_name(first, "a group of many words " * 4, "a group of many words -1")) <= 49
    launcher.close()


def test_a_token_that_is_refused_is_named(harness: KubernetesHarness) -> None:
    harness.token.write_text("old")
    launcher = harness.launcher()
    with pytest.raises(LaunchError, match="token_file"):
        launcher.instances("i", "g")
    launcher.close()


@pytest.mark.parametrize(
    "denied", [f"{verb} {resource}" for verb, _, resource in PERMISSIONS + CLUSTER_PERMISSIONS]
)
def test_a_permission_that_is_missing_is_a_problem(harness: KubernetesHarness, denied: str) -> None:
    harness.server.denied.add(denied)
    launcher = harness.launcher()
    (problem,) = launcher.problems()
    assert f"may not {denied} in" in problem
    launcher.close()


def test_without_permission_to_list_machines_a_group_works_without_notices(
    group: Group, server: KubernetesServer
) -> None:
    server.denied.add("list nodes")
    name = group.launch()
    assert group.running(1)[name].ends_at is None


def test_a_refusal_names_the_role(group: Group, server: KubernetesServer) -> None:
    server.denied.add("create statefulsets")
    with pytest.raises(LaunchError, match="tangram-launcher"):
        group.launch()


def test_a_template_that_is_missing_is_a_problem_and_a_refusal(
    group: Group, server: KubernetesServer
) -> None:
    server.store.delete("statefulsets", "tangram/tangram-node", {})
    (problem,) = group.launcher.problems()
    assert "apply deploy/kubernetes" in problem
    with pytest.raises(LaunchError, match="tangram-node"):
        group.launch()


def test_a_cluster_whose_machines_are_all_cordoned_has_a_problem(
    harness: KubernetesHarness,
) -> None:
    harness.server.store.change("nodes", "machine-1", spec={"unschedulable": True})
    launcher = harness.launcher()
    assert "kubectl get nodes" in launcher.problems()[0]
    launcher.close()


def test_outside_of_a_cluster_the_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    launcher = kubernetes_cluster.make({})
    with pytest.raises(LaunchError, match="server, token_file and ca_file"):
        launcher.instances("i", "g")
    launcher.close()


def test_a_token_is_not_sent_in_plain_text(harness: KubernetesHarness) -> None:
    launcher = harness.launcher(server="http://api.example")
    with pytest.raises(LaunchError, match="https"):
        launcher.instances("i", "g")
    launcher.close()


def test_an_option_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="namespace"):
        kubernetes_cluster.make({"pod": "x"})


def test_the_server_compares_resource_versions(server: KubernetesServer) -> None:
    """What the other tests rely on."""
    from tests.conformance.launchers.kubernetes_store import Refusal

    found = server.store.get("nodes", "machine-1")
    server.store.replace("nodes", "machine-1", found)
    with pytest.raises(Refusal, match="modified"):
        server.store.replace("nodes", "machine-1", found)
