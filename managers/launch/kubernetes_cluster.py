"""Launcher for Kubernetes: an instance is a StatefulSet of one replica, whose pod is the node worker. No pod is made for an action.

Theory of operation. Instances come and go by name, while a StatefulSet of many replicas loses its highest ordinal first; so each
has a StatefulSet of its own (decision 0295). It is a copy of one that the manifests declare, ``tangram-node``: its volumes, security
context, tolerations and probes are written once, for nodes that are declared by hand as well. The copy has the order's command,
variables (in a Secret), cores, memory, GPUs, image and labels. Kubernetes restarts the container, and replaces the pod elsewhere.

Rules
1. A name is launched once: its StatefulSet has the only name that it may have, and the API creates one object of a name.
2. `end` deletes the StatefulSet in the foreground: it is listed, with a time of deletion, until the kubelet has confirmed that no
   container of the pod runs. On a machine that does not answer that is when it answers again, or is deleted or marked
   ``out-of-service``. So what is not listed has ended, unless its pod was deleted by force.
3. A pod that is evicted or preempted ends at its time of deletion. A machine leaves as soon as it is cordoned, or has a taint that
   the pod does not tolerate; those that Kubernetes sets for a while (not ready, short of memory) do not count.
4. Kubernetes never gives up, so no instance fails; while it waits, its reason is that of the scheduler or of the kubelet.

Options of a group
    namespace     of Tangram [that of the service account; else ``tangram``]
    template      StatefulSet that is copied [tangram-node]
    python        interpreter in the image [python]
    gpu_resource  resource of a GPU [nvidia.com/gpu]
    server        URL of the API; with it token_file and ca_file [those of the service account of this pod]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from managers.launch.kubernetes_api import SERVICE_ACCOUNT, ApiRefusal, KubernetesApi
from managers.launch.kubernetes_objects import (
    INSTANCE,
    Object,
    instance,
    is_of,
    leftover,
    resource_name,
    secret,
    selector,
    stateful_set,
    taints,
)
from managers.launch.launcher import Instance, LaunchError, LaunchOrder, check_options

OPTIONS: Final = ("namespace", "template", "python", "gpu_resource", "server", "token_file", "ca_file")  # fmt: skip
#: Machines are looked at so often: their list is long.
NOTICE_SECONDS: Final = 15.0
#: Another keeper may have ended and launched a name between reading and deleting it.
_ATTEMPTS: Final = 3
#: Verb, group of the API, resource: what the launcher does in its namespace.
PERMISSIONS: Final = (
    ("get", "apps", "statefulsets"),
    ("list", "apps", "statefulsets"),
    ("create", "apps", "statefulsets"),
    ("delete", "apps", "statefulsets"),
    ("list", "", "pods"),
    ("create", "", "secrets"),
    ("deletecollection", "", "secrets"),
)
#: In the whole cluster.
CLUSTER_PERMISSIONS: Final = (("list", "", "nodes"),)


def make(options: Mapping[str, str]) -> KubernetesLauncher:
    """Make the launcher of a group. Raises InvalidRequest for an option that it does not know."""
    check_options("kubernetes", options, OPTIONS)
    return KubernetesLauncher(options)


class KubernetesLauncher:
    """One namespace of one cluster. May be used by several threads."""

    reach: Final = ("namespace", "server", "token_file", "ca_file")
    launches_at_once: Final = 8

    def __init__(self, options: Mapping[str, str]) -> None:
        self._namespace = options.get("namespace") or _own_namespace()
        self._template = options.get("template", "tangram-node")
        self._python = options.get("python", "python")
        self._gpu_resource = options.get("gpu_resource", "nvidia.com/gpu")
        self._api = KubernetesApi(
            options.get("server", ""), options.get("token_file", ""), options.get("ca_file", "")
        )
        self._sets = f"/apis/apps/v1/namespaces/{self._namespace}/statefulsets"
        self._core = f"/api/v1/namespaces/{self._namespace}"
        self._machines: dict[str, list[Object]] = {}
        self._machines_until = 0.0

    def instances(self, installation: str, group: str) -> list[Instance]:
        """Return all instances of a group. Raises LaunchError."""
        chosen = selector(installation, group)
        # Pods first: one whose StatefulSet is not there later is ending, or has just ended.
        pods = {
            each["metadata"]["labels"][INSTANCE]: each
            for each in self._api.list(f"{self._core}/pods", chosen)
        }
        found = self._api.list(self._sets, chosen, metadata_alone=True)
        machines = self._leaving() if pods else {}
        own = [each for each in found if is_of(each, installation, group)]
        listed = [
            instance(each, pods.pop(each["metadata"]["name"], None), machines) for each in own
        ]
        listed += [leftover(each) for each in pods.values() if is_of(each, installation, group)]
        now = time.time()  # noqa: TID251 - the notice of the engine is read here
        return [replace(each, ends_at=now) if each.ends_at == 0.0 else each for each in listed]

    def launch(self, order: LaunchOrder) -> None:
        """Create the StatefulSet of an instance, unless there is one. Raises LaunchError."""
        name = resource_name(order.installation, order.group, order.name)
        if self._api.get(f"{self._sets}/{name}") is not None:
            return
        template = self._api.get(f"{self._sets}/{self._template}")
        if template is None:
            raise LaunchError(self._no_template())
        variables = secret(order)
        made = stateful_set(
            order, template, variables["metadata"]["name"], self._gpu_resource, self._python
        )
        # The Secret first: a pod without it would wait for a keeper that may have ended.
        self._api.create(f"{self._core}/secrets", variables)
        self._api.create(self._sets, made)

    def end(self, installation: str, group: str, name: str) -> None:
        """Let Kubernetes delete an instance, once all its processes have ended. Raises LaunchError."""
        resource = resource_name(installation, group, name)
        for _ in range(_ATTEMPTS):
            found = self._api.get(f"{self._sets}/{resource}")
            if found is None or "deletionTimestamp" in found["metadata"]:
                return
            # Secrets first: an instance that is not listed is not ended again.
            self._api.delete(f"{self._core}/secrets", {}, f"{INSTANCE}={resource}")
            options = {
                "propagationPolicy": "Foreground",
                "preconditions": {"uid": found["metadata"]["uid"]},
            }
            if self._api.delete(f"{self._sets}/{resource}", options):
                return
        raise LaunchError(
            f"StatefulSet {resource} is made again while it is ended: do two keepers have the installation {installation!r}?"
        )

    def problems(self) -> list[str]:
        """Return what keeps Kubernetes from placing node workers."""
        try:
            found = self._missing_permissions()
            if not found and self._api.get(f"{self._sets}/{self._template}") is None:
                found.append(self._no_template())
            if not found:
                found += self._no_machine()
        except LaunchError as error:
            return [str(error)]
        return found

    def close(self) -> None:
        """Close connections to the API; instances go on."""
        self._api.close()

    def _leaving(self) -> dict[str, list[Object]]:
        """Return the taints of machines that leave, of at most `NOTICE_SECONDS` ago."""
        now = time.monotonic()
        if now >= self._machines_until:
            try:
                listed = self._api.list("/api/v1/nodes")
            except ApiRefusal as error:
                if error.status != 403:
                    raise
                listed = []  # `problems` names it; the group works without notices
            self._machines = {each["metadata"]["name"]: taints(each) for each in listed}
            self._machines_until = now + NOTICE_SECONDS
        return self._machines

    def _missing_permissions(self) -> list[str]:
        asked = [(self._namespace, each) for each in PERMISSIONS]
        asked += [("", each) for each in CLUSTER_PERMISSIONS]
        missing = [
            f"{verb} {resource}"
            for namespace, (verb, group, resource) in asked
            if not self._may(namespace, verb, group, resource)
        ]
        if not missing:
            return []
        return [
            f"the service account of the launcher may not {', '.join(missing)} in namespace {self._namespace}:"
            " apply deploy/kubernetes, whose roles tangram-launcher and tangram-launcher-machines permit it"
        ]

    def _may(self, namespace: str, verb: str, group: str, resource: str) -> bool:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "namespace": namespace, "verb": verb, "group": group, "resource": resource,
                }
            },
        }  # fmt: skip
        answer = self._api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer and answer["status"]["allowed"])

    def _no_machine(self) -> list[str]:
        machines = self._api.list("/api/v1/nodes")
        able = [
            each for each in machines if _is_ready(each) and not each["spec"].get("unschedulable")
        ]
        if able:
            return []
        return [
            f"none of the {len(machines)} machines of the cluster is ready and not cordoned: look at `kubectl get nodes`"
        ]

    def _no_template(self) -> str:
        return (
            f"namespace {self._namespace} has no StatefulSet {self._template} to copy: apply deploy/kubernetes,"
            " or set the options namespace and template"
        )


def _is_ready(machine: Object) -> bool:
    conditions = (machine.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "tangram"
