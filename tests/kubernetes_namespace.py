"""The namespace of Tangram in the Kubernetes of tests: what deploy/kubernetes declares, and node workers that need no image."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tests.architecture.tree import ROOT
from tests.kubernetes_cluster import KubernetesCluster, Object
from tests.kubernetes_machine import host_pod
from tests.kustomized import built

#: Path of the API.
PODS: Final = "/api/v1/namespaces/tangram/pods"
SETS: Final = "/apis/apps/v1/namespaces/tangram/statefulsets"
SECRETS: Final = "/api/v1/namespaces/tangram/secrets"
HOME: Final = "/var/lib/tangram"
_ACCESS: Final = ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")  # fmt: skip


def manifests() -> list[Object]:
    """Return the objects of the base."""
    return built(ROOT / "deploy" / "kubernetes" / "base")


def of_manifests(kind: str, name: str) -> Object:
    """Return one object of the base."""
    (found,) = [
        each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def template(*shared: Path, variables: Iterable[Object] = (), **members: Any) -> Object:
    """Return the StatefulSet of node workers of the manifests, with no replicas, and a pod with programs of this machine.

    ``shared``: folders that it may write; ``members``: further ones of the pod.
    """
    found = copy.deepcopy(of_manifests("StatefulSet", "tangram-node"))
    found["spec"]["replicas"] = 0
    pod = {**host_pod(*shared), **members}
    (container,) = pod["containers"]
    container["volumeMounts"].append({"name": "home", "mountPath": HOME})
    container["env"] = [{"name": "TANGRAM_HOME", "value": HOME}, *variables]
    found["spec"]["template"]["spec"] = pod
    return found


def prepare(cluster: KubernetesCluster, node: Object, folder: Path) -> dict[str, str]:
    """Make the namespace with the accounts of the manifests and a template; return the options of a group."""
    cluster.apply(*(each for each in manifests() if each["kind"] in _ACCESS))
    cluster.apply(node)
    return options(cluster, folder)


def options(cluster: KubernetesCluster, folder: Path) -> dict[str, str]:
    """Return the options of a group outside of the cluster; ``folder`` gets a token of the launcher's account."""
    token = folder / "token"
    token.write_text(cluster.token_of("tangram", "tangram-launcher"))
    return {
        "server": cluster.url, "token_file": str(token), "ca_file": str(cluster.ca_file), "namespace": "tangram", "python": sys.executable,
    }  # fmt: skip
