"""Objects of the server that plays Kubernetes, and its controllers: StatefulSets make pods, the scheduler binds them, the kubelet runs them.

Each change gives an object another ``resourceVersion``, and what a request expects of it is compared. Only what the launcher
and its tests rely on is played, after https://kubernetes.io/docs/reference/kubernetes-api.
"""

from __future__ import annotations

import base64
import copy
import itertools
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.conformance.launchers.kubernetes_pods import PodProcess
from tests.kubernetes_schemas import VERSIONS, errors

Object = dict[str, Any]
_GRACE_SECONDS: Final = 30


class Refusal(Exception):
    """An answer with an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Store:
    """All objects, by ``(resource, name)``; those of a namespace have its name before theirs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str], Object] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._processes: dict[str, PodProcess] = {}

    def get(self, resource: str, name: str) -> Object:
        with self.lock:
            if (resource, name) not in self.objects:
                raise Refusal(404, "NotFound", f'{resource} "{name}" not found')
            return copy.deepcopy(self.objects[resource, name])

    def listed(self, resource: str, namespace: str, labels: dict[str, str]) -> list[Object]:
        with self.lock:
            return [
                copy.deepcopy(each)
                for (of, _), each in sorted(self.objects.items())
                if of == resource
                and each["metadata"].get("namespace", "") == namespace
                and labels.items() <= each["metadata"].get("labels", {}).items()
            ]

    def create(self, resource: str, namespace: str, body: Object) -> Object:
        for version in VERSIONS:
            if wrong := errors(body, version):
                raise Refusal(422, "Invalid", f"{body.get('kind')} is invalid: {wrong[0]}")
        made = copy.deepcopy(body)
        name = made["metadata"]["name"]
        if namespace:
            made["metadata"]["namespace"] = namespace
        _admit(made)
        key = (resource, f"{namespace}/{name}" if namespace else name)
        with self.lock:
            if key in self.objects:
                raise Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
            made["metadata"].update(uid=f"uid-{next(self._uids)}", creationTimestamp=_moment())
            return self._store(key, made)

    def replace(self, resource: str, name: str, body: Object) -> Object:
        """Store another version of an object, if it was made from the present one."""
        with self.lock:
            present = self.get(resource, name)
            _compare(present, body["metadata"], name)
            body["metadata"]["uid"] = present["metadata"]["uid"]
            return self._store((resource, name), copy.deepcopy(body))

    def delete(self, resource: str, name: str, options: Object) -> Object:
        """Delete an object, or let it end: a pod of a machine, and what is deleted in the foreground."""
        with self.lock:
            found = self.get(resource, name)
            metadata = found["metadata"]
            _compare(found, options.get("preconditions", {}), name)
            runs = resource == "pods" and "nodeName" in found["spec"]
            if not runs and options.get("propagationPolicy") != "Foreground":
                del self.objects[resource, name]
                details = {"name": metadata["name"], "kind": resource, "uid": metadata["uid"]}
                return {"kind": "Status", "status": "Success", "details": details}
            if not runs:
                metadata["finalizers"] = ["foregroundDeletion"]
            metadata.setdefault("deletionTimestamp", _moment(_GRACE_SECONDS if runs else 0))
            return self._store((resource, name), found)

    def change(self, resource: str, name: str, **members: Any) -> None:
        """Merge members into an object, as a controller does; both may be nested."""
        with self.lock:
            found = self.get(resource, name)
            for member, value in members.items():
                found[member] = {**found.get(member, {}), **value}
            if found != self.objects[resource, name]:
                self._store((resource, name), found)

    def step(self) -> None:
        """Let all controllers work once."""
        with self.lock:
            for each in self._all("statefulsets"):
                self._of_set(each)
            for each in self._all("pods"):
                if self._is_owned(each):
                    self._of_pod(each)
                else:
                    self.delete("pods", _key(each), {})

    def process(self, pod: str) -> PodProcess:
        """Return the process of a pod."""
        return self._processes[pod]

    def close(self) -> None:
        for each in self._processes.values():
            each.kill_all()

    def _store(self, key: tuple[str, str], found: Object) -> Object:
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = found
        return copy.deepcopy(found)

    def _all(self, resource: str) -> list[Object]:
        return [copy.deepcopy(o) for (of, _), o in list(self.objects.items()) if of == resource]

    def _is_owned(self, pod: Object) -> bool:
        """Whether its set is there; else the pod is deleted, and ends as a pod that is deleted does."""
        (owner,) = pod["metadata"]["ownerReferences"]
        found = self.objects.get(
            ("statefulsets", f"{pod['metadata']['namespace']}/{owner['name']}")
        )
        return "deletionTimestamp" in pod["metadata"] or (found is not None and found["metadata"]["uid"] == owner["uid"])  # fmt: skip

    def _of_set(self, found: Object) -> None:
        """Make the pods of a StatefulSet; end them when it is deleted in the foreground."""
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        pods = [f"{namespace}/{name}-{number}" for number in range(found["spec"]["replicas"])]
        there = [pod for pod in pods if ("pods", pod) in self.objects]
        if "deletionTimestamp" not in found["metadata"]:
            for pod in sorted(set(pods) - set(there)):
                self._make_pod(found, pod.partition("/")[2])
        elif there:
            for pod in there:
                self.delete("pods", pod, {})
        else:
            del self.objects["statefulsets", f"{namespace}/{name}"]

    def _make_pod(self, found: Object, name: str) -> None:
        template = copy.deepcopy(found["spec"]["template"])
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": found["metadata"]["name"], "uid": found["metadata"]["uid"],
                 "controller": True, "blockOwnerDeletion": True}  # fmt: skip
        template["metadata"].update(name=name, ownerReferences=[owner])
        template["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = name
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "status": {"phase": "Pending"}}
        self.create("pods", found["metadata"]["namespace"], pod)

    def _of_pod(self, pod: Object) -> None:
        """Bind, run and end a pod."""
        key = _key(pod)
        process = self._processes.get(key)
        if "deletionTimestamp" in pod["metadata"]:
            if process is None or process.ended():
                self._processes.pop(key, None)
                del self.objects["pods", key]
            return
        machine = pod["spec"].get("nodeName") or self._machine_for(pod)
        if not machine:
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu."}  # fmt: skip
            self.change("pods", key, status={"conditions": [said]})
            return
        if process is None:
            namespace = pod["metadata"]["namespace"]
            process = self._processes[key] = PodProcess(
                pod, lambda secret: self.objects.get(("secrets", f"{namespace}/{secret}"))
            )
        why = process.keep()
        state = {"waiting": {"reason": "CreateContainerConfigError", "message": why}} if why else {"running": {}}  # fmt: skip
        container = {"name": "node", "state": state, "restartCount": max(0, process.restarts)}
        phase = "Pending" if why else "Running"
        status = {"phase": phase, "conditions": [], "containerStatuses": [container]}
        self.change("pods", key, spec={"nodeName": machine}, status=status)

    def _machine_for(self, pod: Object) -> str:
        wanted = pod["spec"].get("nodeSelector", {}).items()
        for each in self._all("nodes"):
            is_open = not each.get("spec", {}).get("unschedulable")
            if is_open and wanted <= each["metadata"].get("labels", {}).items():
                return str(each["metadata"]["name"])
        return ""


def _key(found: Object) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"


def _moment(later: int = 0) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=later):%Y-%m-%dT%H:%M:%SZ}"


def _compare(present: Object, expected: Object, name: str) -> None:
    for member in ("uid", "resourceVersion"):
        if member in expected and expected[member] != present["metadata"][member]:
            raise Refusal(409, "Conflict", f"{name} has been modified; apply your changes to the latest version")  # fmt: skip


def _admit(made: Object) -> None:
    """Refuse what the schema does not, and encode as the API does."""
    if made["kind"] == "Secret":
        given = made.pop("stringData", {})
        coded = {name: base64.b64encode(value.encode()).decode() for name, value in given.items()}
        made["data"] = {**made.get("data", {}), **coded}
    if made["kind"] == "StatefulSet":
        labels = made["spec"]["template"]["metadata"]["labels"]
        if not made["spec"]["selector"]["matchLabels"].items() <= labels.items():
            raise Refusal(422, "Invalid", "selector does not match template labels")
