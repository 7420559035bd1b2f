"""What an instance is in Kubernetes: a StatefulSet of one replica, made from that of the manifests; and what its pod says. Pure."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from managers.launch.launcher import Instance, InstanceState, LaunchError, LaunchOrder

#: Labels, for finding; annotations of the same names have the exact values.
INSTALLATION: Final = "tangram/installation"
GROUP: Final = "tangram/group"
#: Label: name of the StatefulSet.
INSTANCE: Final = "tangram/instance"
#: Annotation: name of the instance.
NODE: Final = "tangram/node"
#: Annotation: that of the order.
FINGERPRINT: Final = "tangram/fingerprint"
#: Container of the node worker, where a pod has several.
CONTAINER: Final = "node"

_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
#: Taints that Kubernetes sets while a machine does not answer or is short of something: pods wait for its return.
_PASSING: Final = "node.kubernetes.io/"
_LEAVING: Final = frozenset({"node.kubernetes.io/unschedulable", "node.kubernetes.io/out-of-service"})  # fmt: skip
_EFFECTS: Final = ("NoSchedule", "NoExecute")

Object = dict[str, Any]


def resource_name(installation: str, group: str, name: str) -> str:
    """Return the name of the StatefulSet of an instance, at most 49 characters: its pods and revisions have longer ones."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())[:30].strip("-") or "node"
    return f"tangram-{slug}-{_digest(installation, group, name)}"


def selector(installation: str, group: str) -> str:
    """Return the selector of labels for all objects of a group."""
    return f"{INSTALLATION}={_label(installation)},{GROUP}={_label(group)}"


def is_of(found: Object, installation: str, group: str) -> bool:
    """Whether an object with the labels of a group is of that group: two long names may share a label."""
    notes = found["metadata"].get("annotations") or {}
    return notes.get(INSTALLATION) == installation and notes.get(GROUP) == group


def secret(order: LaunchOrder) -> Object:
    """Return the Secret with the variables of an instance. Its name has a digest of them, so it need not change."""
    name = resource_name(order.installation, order.group, order.name)
    content = json.dumps(sorted(order.environment.items()))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**_metadata(order), "name": f"{name}-{_digest(content)}"},
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(order.environment),
    }


def stateful_set(
    order: LaunchOrder, template: Object, secret_name: str, gpu_resource: str, python: str
) -> Object:
    """Return the StatefulSet of an instance: that of the manifests with the order's command, variables, resources and labels.

    Raises LaunchError for a template without containers.
    """
    metadata = _metadata(order)
    own = {INSTANCE: metadata["name"]}
    spec = copy.deepcopy(template["spec"])
    spec.update(replicas=1, selector={"matchLabels": own})
    pod = spec["template"]
    kept = pod.setdefault("metadata", {})
    kept["labels"] = {**(kept.get("labels") or {}), **metadata["labels"]}
    kept["annotations"] = {**(kept.get("annotations") or {}), **metadata["annotations"]}
    container = _container(pod["spec"], template["metadata"]["name"])
    # The entry point of the image stays: it reaps orphans.
    container["args"] = [python if word == sys.executable else word for word in order.command]
    container["env"] = [
        each for each in container.get("env") or [] if each["name"] not in order.environment
    ]
    container["envFrom"] = [
        *(container.get("envFrom") or []), {"secretRef": {"name": secret_name}}
    ]  # fmt: skip
    _reserve(container, order, gpu_resource)
    if order.spec.image:
        container["image"] = order.spec.image
    if order.spec.labels:
        pod["spec"]["nodeSelector"] = {**(pod["spec"].get("nodeSelector") or {}), **order.spec.labels}  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


def instance(
    found: Object, pod: Object | None, machines: Mapping[str, Sequence[Object]]
) -> Instance:
    """Return what Kubernetes says of an instance.

    ``found``: its StatefulSet, of which metadata are enough; ``machines``: name → taints.
    """
    metadata = found["metadata"]
    name = metadata["annotations"][NODE]
    fingerprint = metadata["annotations"].get(FINGERPRINT, "")
    handle = f"pod {metadata['namespace']}/{metadata['name']}-0"
    if pod is None:
        if "deletionTimestamp" in metadata:
            return Instance(name, InstanceState.ENDING, handle)
        why = "Kubernetes has not made its pod: `kubectl describe statefulset` names a quota, an admission rule, or what is wrong in labels or template"
        return Instance(name, InstanceState.PENDING, handle, reason=why, fingerprint=fingerprint)
    machine = pod["spec"].get("nodeName", "")
    status = _status(pod)
    reason = _reason(pod, status)
    restarts = int(status.get("restartCount", 0))
    if "deletionTimestamp" in metadata:
        return Instance(name, InstanceState.ENDING, handle, machine, None, reason, restarts)
    # A pod that failed (evicted for memory or disk) is replaced by its StatefulSet.
    state = InstanceState.RUNNING if pod["status"].get("phase") == "Running" else InstanceState.PENDING  # fmt: skip
    ends_at, why = _notice(pod, machines.get(machine, ()))
    return Instance(name, state, handle, machine, ends_at, why or reason, restarts, fingerprint)


def leftover(pod: Object) -> Instance:
    """Return an instance of which only the pod is left: its StatefulSet was not deleted in the foreground."""
    metadata = pod["metadata"]
    handle = f"pod {metadata['namespace']}/{metadata['name']}"
    reason = "its StatefulSet was deleted by hand; its pod ends, unless it was deleted with --cascade=orphan"
    machine = pod["spec"].get("nodeName", "")
    return Instance(
        metadata["annotations"][NODE], InstanceState.ENDING, handle, machine, None, reason
    )


def taints(machine: Object) -> list[Object]:
    """Return the taints of a machine by which it says that it leaves, or that these pods do not belong there."""
    spec = machine.get("spec") or {}
    found = [
        each
        for each in spec.get("taints") or []
        if each["effect"] in _EFFECTS
        and (each["key"] in _LEAVING or not each["key"].startswith(_PASSING))
    ]
    if spec.get("unschedulable") and not any(each["key"] in _LEAVING for each in found):
        found.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    return found


def _notice(pod: Object, tainted: Iterable[Object]) -> tuple[float | None, str]:
    """Return when the pod ends, and why; 0.0: its machine leaves, at a time that is not known."""
    if ends := pod["metadata"].get("deletionTimestamp"):
        said = _condition(pod, "DisruptionTarget")
        why = said.get("message") or said.get("reason") or "its pod is being deleted"
        return datetime.fromisoformat(ends).timestamp(), why
    tolerated = pod["spec"].get("tolerations") or []
    for taint in tainted:
        key = taint["key"]
        if key in _LEAVING or not any(_tolerates(each, taint) for each in tolerated):
            return 0.0, f"machine {pod['spec']['nodeName']} has the taint {key}: it is drained, or ends"  # fmt: skip
    return None, ""


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"]) and (
        toleration.get("value") or ""
    ) == (taint.get("value") or "")  # fmt: skip


def _reason(pod: Object, status: Object) -> str:
    waiting = (status.get("state") or {}).get("waiting") or {}
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        waiting = scheduled
    if not waiting:
        return str(pod["status"].get("message") or pod["status"].get("reason") or "")
    return ": ".join(each for each in (waiting.get("reason"), waiting.get("message")) if each)


def _status(pod: Object) -> Object:
    """Return the status of the node worker's container."""
    found: list[Object] = pod["status"].get("containerStatuses") or [{}]
    return next((each for each in found if each.get("name") == CONTAINER), found[0])


def _condition(pod: Object, kind: str) -> Object:
    for each in pod["status"].get("conditions") or []:
        if each["type"] == kind:
            found: Object = each
            return found
    return {}


def _container(spec: Object, template: str) -> Object:
    found: list[Object] = spec.get("containers") or []
    if not found:
        raise LaunchError(f"option template: StatefulSet {template} has no container; apply deploy/kubernetes")  # fmt: skip
    return next((each for each in found if each["name"] == CONTAINER), found[0])


def _reserve(container: Object, order: LaunchOrder, gpu_resource: str) -> None:
    """Request what is declared, and no more: whole cores with equal limits get cores of their own by the static CPU manager."""
    wanted: dict[str, str] = {"cpu": str(order.spec.cpus)}
    if order.spec.memory_bytes:
        wanted["memory"] = str(order.spec.memory_bytes)
    if order.spec.gpus:
        wanted[gpu_resource] = str(order.spec.gpus)
    resources = container.setdefault("resources", {})
    for part in ("requests", "limits"):
        resources[part] = {**(resources.get(part) or {}), **wanted}


def _metadata(order: LaunchOrder) -> Object:
    name = resource_name(order.installation, order.group, order.name)
    labels = {
        "app.kubernetes.io/part-of": "tangram",
        "app.kubernetes.io/managed-by": "tangram",
        INSTALLATION: _label(order.installation),
        GROUP: _label(order.group),
        INSTANCE: name,
    }
    notes = {INSTALLATION: order.installation, GROUP: order.group, NODE: order.name}
    if order.fingerprint:
        notes[FINGERPRINT] = order.fingerprint
    return {"name": name, "labels": labels, "annotations": notes}


def _label(text: str) -> str:
    if _LABEL.fullmatch(text):
        return text
    return f"x-{_digest(text)}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
