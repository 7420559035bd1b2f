"""A real API server takes the manifests, and its controllers make their pods; no machine runs them.

It is an older one than Tangram needs (`tests.kubernetes_build`): what it does not know is listed here, and checked against schemas alone
(`tests/unit/deploy/test_kubernetes.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.conformance.launchers.suite import until
from tests.kubernetes_build import skip_without_programs
from tests.kubernetes_cluster import KubernetesCluster, Object, running_cluster
from tests.kubernetes_namespace import PODS
from tests.kustomized import built

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

FOLDER = ROOT / "deploy" / "kubernetes"
#: Version of a kind that it does not have → the one with the same members that it has.
OLDER = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}
#: Members that it does not know and leaves out.
NEWER = {"appArmorProfile", "hostUsers", "persistentVolumeClaimRetentionPolicy", "sleep"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    skip_without_programs()
    with running_cluster(machines=0) as cluster:
        yield cluster


def lost(sent: Any, stored: Any) -> set[str]:
    """Return the names of members that were sent and are not stored."""
    if isinstance(sent, dict):
        names = {name for name in sent if name not in stored}
        return names.union(*(lost(sent[name], stored[name]) for name in sent if name in stored))
    if isinstance(sent, list):
        return set().union(*(lost(*pair) for pair in zip(sent, stored, strict=True)))
    return set()


def older(found: Object) -> Object:
    """Return an object as this server can take it."""
    made = copy.deepcopy(found)
    made["apiVersion"] = OLDER.get(made["apiVersion"], made["apiVersion"])
    if (made["kind"], made["metadata"]["name"]) == ("Deployment", "tangram-web"):
        # It knows no other handler than a command or a request.
        (container,) = made["spec"]["template"]["spec"]["containers"]
        assert container.pop("lifecycle") == {"preStop": {"sleep": {"seconds": 5}}}
    return made


def overlay(name: str) -> list[Object]:
    """Return the objects of an overlay, or of the base with a component."""
    if (FOLDER / "overlays" / name).exists():
        return built(FOLDER / "overlays" / name)
    found = built(FOLDER / "components" / name, built(FOLDER / "base"))
    for each in found:
        if each["kind"] not in ("Namespace", "ClusterRole", "ClusterRoleBinding"):
            each["metadata"]["namespace"] = "tangram"
    return found


@pytest.mark.parametrize("name", ["bundled", "external", "privileged-nodes", "object-store"])
def test_the_api_takes_an_overlay_and_its_controllers_make_the_pods(
    cluster: KubernetesCluster, name: str
) -> None:
    objects = [older(each) for each in overlay(name)]
    (namespace,) = [each for each in objects if each["kind"] == "Namespace"]
    cluster.apply(namespace)
    until(lambda: cluster.ask("GET", "/api/v1/namespaces/tangram/serviceaccounts/default", check=False).is_success)  # fmt: skip
    dropped = set[str]()
    for each in objects:
        if each["kind"] == "Namespace":
            continue
        cluster.ask("DELETE", f"{cluster.path_of(each)}/{each['metadata']['name']}", check=False)
        stored = cluster.ask("POST", cluster.path_of(each), each).json()
        dropped |= lost(each, stored)
    assert dropped <= NEWER | {"volumeClaimTemplates"}, name
    wanted = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet", "Job")
    }
    until(lambda: wanted <= components(cluster))
    cluster.ask("DELETE", "/api/v1/namespaces/tangram")
    until(lambda: cluster.ask("GET", "/api/v1/namespaces/tangram", check=False).status_code == 404)


def components(cluster: KubernetesCluster) -> set[str]:
    """Return the parts that have pods."""
    listed = cluster.get(PODS)["items"]
    return {each["metadata"]["labels"].get("app.kubernetes.io/component") for each in listed}
