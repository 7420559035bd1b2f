"""Objects of the launcher of Kubernetes: names, the copy of the declared StatefulSet, and what a pod says."""

from __future__ import annotations

import copy
import re
import sys
from typing import Any

import pytest

from domain.node_groups import NodeGroupSpec
from managers.launch.kubernetes_objects import (
    GROUP,
    INSTALLATION,
    NODE,
    instance,
    resource_name,
    secret,
    selector,
    stateful_set,
    taints,
)
from managers.launch.launcher import InstanceState, LaunchError, LaunchOrder
from tests.kubernetes_schemas import VERSIONS, errors

TEMPLATE: dict[str, Any] = {
    "metadata": {"name": "tangram-node"},
    "spec": {
        "replicas": 7,
        "serviceName": "tangram-node",
        "selector": {"matchLabels": {"tangram/instance": "declared"}},
        "template": {
            "metadata": {"labels": {"tangram/instance": "declared", "kept": "yes"}},
            "spec": {
                "nodeSelector": {"kubernetes.io/arch": "amd64"},
                "containers": [
                    {"name": "beside", "image": "other"},
                    {
                        "name": "node", "image": "tangram", "args": ["declared"],
                        "env": [{"name": "TANGRAM_NODE", "value": "x"}, {"name": "TANGRAM_ROLE", "value": "node"}],
                        "resources": {"requests": {"cpu": "500m", "ephemeral-storage": "1Gi"}},
                    },
                ],
            },
        },
    },
}  # fmt: skip


def an_order(**spec: Any) -> LaunchOrder:
    return LaunchOrder(
        "lab", "gpu", "gpu-1", NodeGroupSpec("kubernetes", count=1, **spec),
        [sys.executable, "-m", "celery"], {"TANGRAM_NODE": "gpu-1"},
    )  # fmt: skip


def made(order: LaunchOrder) -> dict[str, Any]:
    return stateful_set(order, TEMPLATE, "variables", "nvidia.com/gpu", "python")


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "s-0", "namespace": "tangram"},
        "spec": {"nodeName": "m1", "tolerations": [{"key": "dedicated", "operator": "Exists"}]},
        "status": {"phase": "Running", **status},
    }


def found(**metadata: Any) -> dict[str, Any]:
    own = {"name": "s", "namespace": "tangram", "annotations": {NODE: "gpu-1"}}
    return {"metadata": {**own, **metadata}}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_created_has_the_published_schema(version):
    order = an_order(cpus=8, gpus=2, memory_bytes=2**34, labels={"zone": "a"}, image="own:1")

    assert errors(made(order), version) == []
    assert errors(secret(order), version) == []


def test_the_copy_has_what_the_group_declares_and_keeps_the_rest():
    before = copy.deepcopy(TEMPLATE)

    spec = made(an_order(cpus=8, gpus=2, memory_bytes=1024, labels={"zone": "a"}, image="own:1"))["spec"]  # fmt: skip

    pod_spec = spec["template"]["spec"]
    beside, node = pod_spec["containers"]
    amounts = {"cpu": "8", "memory": "1024", "nvidia.com/gpu": "2"}
    assert spec["replicas"] == 1
    assert node["args"] == ["python", "-m", "celery"]
    assert node["env"] == [{"name": "TANGRAM_ROLE", "value": "node"}]
    assert node["envFrom"] == [{"secretRef": {"name": "variables"}}]
    assert node["resources"] == {"requests": {"ephemeral-storage": "1Gi", **amounts}, "limits": amounts}  # fmt: skip
    assert node["image"] == "own:1"
    assert beside == {"name": "beside", "image": "other"}
    assert pod_spec["nodeSelector"] == {"kubernetes.io/arch": "amd64", "zone": "a"}
    assert before == TEMPLATE


def test_the_copy_selects_its_own_pod_alone():
    spec = made(an_order())["spec"]

    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert spec["selector"]["matchLabels"] != TEMPLATE["spec"]["selector"]["matchLabels"]
    assert (labels["kept"], labels[INSTALLATION], labels[GROUP]) == ("yes", "lab", "gpu")


def test_a_template_without_containers_is_refused():
    empty = copy.deepcopy(TEMPLATE)
    empty["spec"]["template"]["spec"]["containers"] = []

    with pytest.raises(LaunchError, match="template"):
        stateful_set(an_order(), empty, "variables", "nvidia.com/gpu", "python")


@pytest.mark.parametrize("name", ["g-1", "Größe 3-1", "x" * 200 + "-1", "a.b_c-12", "日本-1"])
def test_every_name_becomes_one_of_kubernetes(name):
    resource = resource_name("an installation", "a group", name)

    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", resource)
    # A revision of a StatefulSet adds 11 characters, and is a label of 63.
    assert len(resource) <= 52


def test_names_that_read_alike_are_distinct():
    names = {resource_name("i", "g", "a.b-1"), resource_name("i", "g", "a-b-1"), resource_name("i", "g2", "a-b-1"), resource_name("i2", "g", "a-b-1")}  # fmt: skip

    assert len(names) == 4
    assert selector("i", "g" * 80) != selector("i", "g" * 81)


def test_a_secret_of_other_variables_has_another_name():
    first = secret(an_order())
    other = secret(LaunchOrder("lab", "gpu", "gpu-1", NodeGroupSpec("kubernetes"), [], {"A": "b"}))

    assert first["metadata"]["name"] != other["metadata"]["name"]
    assert first["metadata"]["labels"] == other["metadata"]["labels"]


def test_an_instance_is_what_its_pod_says():
    container = {"name": "node", "restartCount": 3, "state": {"running": {}}}

    listed = instance(found(), pod(containerStatuses=[container]), {})

    assert (listed.name, listed.state, listed.machine) == ("gpu-1", InstanceState.RUNNING, "m1")
    assert (listed.handle, listed.restarts, listed.ends_at) == ("pod tangram/s-0", 3, None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"containerStatuses": [{"name": "node", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]}, "ImagePullBackOff: no such image"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]}, "Unschedulable: 0/3 nodes"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "low on memory"),
    ],
)  # fmt: skip
def test_what_waits_says_why(status, reason):
    listed = instance(found(), pod(**{"phase": "Pending", **status}), {})

    assert (listed.state, listed.reason) == (InstanceState.PENDING, reason)


def test_a_set_that_is_deleted_is_ending_with_and_without_its_pod():
    deleted = found(deletionTimestamp="2026-01-01T00:00:00Z")

    assert instance(deleted, pod(), {}).state is InstanceState.ENDING
    assert instance(deleted, None, {}).state is InstanceState.ENDING
    assert instance(found(), None, {}).state is InstanceState.PENDING


def test_a_pod_that_is_deleted_ends_at_its_time_of_deletion():
    leaving = pod()
    leaving["metadata"]["deletionTimestamp"] = "1970-01-01T00:01:40Z"

    assert instance(found(), leaving, {}).ends_at == 100.0


@pytest.mark.parametrize(
    ("spec", "leaves"),
    [
        ({"unschedulable": True}, True),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, True),
        ({"taints": [{"key": "dedicated", "value": "tangram", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "spare", "effect": "PreferNoSchedule"}]}, False),
        ({"taints": [{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]}, False),
        ({}, False),
    ],
)  # fmt: skip
def test_a_machine_leaves_by_a_taint_that_the_pod_does_not_tolerate(spec, leaves):
    machines = {"m1": taints({"spec": spec})}

    listed = instance(found(), pod(), machines)

    assert (listed.ends_at is not None) is leaves
    assert bool(listed.reason) is leaves
