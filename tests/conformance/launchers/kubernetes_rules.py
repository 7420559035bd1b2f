"""What the launcher relies on of the API of Kubernetes. The server that plays it keeps these rules, and so does a real one.

A test module imports them and provides ``ask``: it sends a request with a token that may everything in the namespace ``tangram``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import httpx

from managers.launch.kubernetes_objects import INSTANCE
from tests.conformance.launchers.suite import until

Ask = Callable[..., httpx.Response]
SETS = "/apis/apps/v1/namespaces/tangram/statefulsets"
PODS = "/api/v1/namespaces/tangram/pods"
SECRETS = "/api/v1/namespaces/tangram/secrets"
_numbers = itertools.count(1)


def secret(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"A": "b"}, "immutable": True}  # fmt: skip


def stateful_set(name: str) -> dict[str, Any]:
    """Return a set whose pod finds no machine."""
    labels = {INSTANCE: name}
    container = {"name": "node", "image": "tangram", "args": ["python"]}
    pod = {"containers": [container], "nodeSelector": {"zone": "nowhere"}}
    spec = {"replicas": 1, "serviceName": "tangram-node", "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "labels": labels}, "spec": spec}  # fmt: skip


def said(answer: httpx.Response) -> tuple[int, str, str]:
    """Return status, kind and reason of a refusal."""
    body = answer.json()
    return answer.status_code, body["kind"], body["reason"]


def new_name() -> str:
    return f"rules-{next(_numbers)}"


def test_a_name_is_created_once_in_the_api(ask: Ask) -> None:
    name = new_name()
    made = ask("POST", SECRETS, secret(name))
    assert made.status_code == 201
    body = made.json()
    assert (body["data"], "stringData" in body, body["metadata"]["namespace"]) == ({"A": "Yg=="}, False, "tangram")  # fmt: skip
    assert {"uid", "resourceVersion", "creationTimestamp"} <= body["metadata"].keys()
    assert said(ask("POST", SECRETS, secret(name))) == (409, "Status", "AlreadyExists")
    assert ask("DELETE", f"{SECRETS}/{name}").status_code == 200
    assert said(ask("DELETE", f"{SECRETS}/{name}")) == (404, "Status", "NotFound")
    assert said(ask("GET", f"{SECRETS}/{name}")) == (404, "Status", "NotFound")


def test_what_is_deleted_must_be_what_was_read(ask: Ask) -> None:
    name = new_name()
    uid = ask("POST", SECRETS, secret(name)).json()["metadata"]["uid"]
    assert said(ask("DELETE", f"{SECRETS}/{name}", {"preconditions": {"uid": "another"}})) == (409, "Status", "Conflict")  # fmt: skip
    assert ask("DELETE", f"{SECRETS}/{name}", {"preconditions": {"uid": uid}}).status_code == 200


def test_what_is_replaced_must_be_what_was_read(ask: Ask) -> None:
    name = new_name()
    read = ask("POST", SECRETS, secret(name)).json()
    read["metadata"]["labels"] = {"of": "first"}
    replaced = ask("PUT", f"{SECRETS}/{name}", read)
    assert replaced.status_code == 200
    assert replaced.json()["metadata"]["resourceVersion"] != read["metadata"]["resourceVersion"]
    read["metadata"]["labels"] = {"of": "second"}
    assert said(ask("PUT", f"{SECRETS}/{name}", read)) == (409, "Status", "Conflict")
    assert ask("DELETE", f"{SECRETS}/{name}").status_code == 200


def test_a_set_that_is_deleted_in_the_foreground_is_listed_until_its_pod_has_gone(ask: Ask) -> None:
    name = new_name()
    assert ask("POST", SETS, stateful_set(name)).status_code == 201
    until(lambda: ask("GET", f"{PODS}/{name}-0").status_code == 200)
    pod = ask("GET", f"{PODS}/{name}-0").json()["metadata"]
    (owner,) = pod["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == ("StatefulSet", name, True, True)  # fmt: skip
    assert pod["labels"]["statefulset.kubernetes.io/pod-name"] == f"{name}-0"
    deleted = ask("DELETE", f"{SETS}/{name}", {"propagationPolicy": "Foreground"})
    assert deleted.status_code == 200
    found = deleted.json()
    assert found["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert found["metadata"]["deletionTimestamp"]
    until(lambda: ask("GET", f"{SETS}/{name}").status_code == 404)
    assert ask("GET", f"{PODS}/{name}-0").status_code == 404


def test_a_set_that_is_deleted_in_the_background_has_gone_before_its_pod(ask: Ask) -> None:
    name = new_name()
    ask("POST", SETS, stateful_set(name))
    until(lambda: ask("GET", f"{PODS}/{name}-0").status_code == 200)
    deleted = ask("DELETE", f"{SETS}/{name}", {"propagationPolicy": "Background"}).json()
    assert (deleted["kind"], deleted["status"], deleted["details"]["name"]) == ("Status", "Success", name)  # fmt: skip
    assert ask("GET", f"{SETS}/{name}").status_code == 404
    until(lambda: ask("GET", f"{PODS}/{name}-0").status_code == 404)


def test_all_of_a_selector_are_deleted(ask: Ask) -> None:
    names, label = [new_name(), new_name()], new_name()
    other = new_name()
    for name in names:
        ask("POST", SECRETS, secret(name, of=label))
    ask("POST", SECRETS, secret(other))
    assert ask("DELETE", SECRETS, {}, labelSelector=f"of={label}").status_code == 200
    assert {ask("GET", f"{SECRETS}/{name}").status_code for name in names} == {404}
    assert ask("DELETE", f"{SECRETS}/{other}").status_code == 200
    assert ask("DELETE", SECRETS, {}, labelSelector=f"of={label}").status_code == 200


def test_a_list_has_pages_and_may_have_metadata_alone(ask: Ask) -> None:
    label = new_name()
    names = [new_name() for _ in range(3)]
    for name in names:
        ask("POST", SECRETS, secret(name, of=label))
    first = ask("GET", SECRETS, limit="2", labelSelector=f"of={label}").json()
    more = first["metadata"]["continue"]
    second = ask(
        "GET", SECRETS, limit="2", labelSelector=f"of={label}", **{"continue": more}
    ).json()
    assert [each["metadata"]["name"] for each in [*first["items"], *second["items"]]] == sorted(names)  # fmt: skip
    assert not second["metadata"].get("continue")
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
    bare = ask("GET", SECRETS, accept=accept, labelSelector=f"of={label}").json()
    assert bare["kind"] == "PartialObjectMetadataList"
    assert not any("data" in each for each in bare["items"])
    assert {each["metadata"]["labels"]["of"] for each in bare["items"]} == {label}
    ask("DELETE", SECRETS, {}, labelSelector=f"of={label}")


def test_an_object_that_is_invalid_is_refused(ask: Ask) -> None:
    wrong = stateful_set(new_name())
    wrong["spec"]["selector"] = {"matchLabels": {INSTANCE: "another"}}
    assert said(ask("POST", SETS, wrong)) == (422, "Status", "Invalid")
    assert said(ask("GET", "/apis/apps/v1/namespaces/tangram/nothing")) == (404, "Status", "NotFound")  # fmt: skip


def test_a_pod_without_a_machine_says_so_and_ends_at_once(ask: Ask) -> None:
    name = new_name()
    ask("POST", SETS, stateful_set(name))

    def conditions() -> list[Any]:
        answer = ask("GET", f"{PODS}/{name}-0")
        return list(answer.json()["status"].get("conditions") or []) if answer.is_success else []

    until(lambda: any(each["reason"] == "Unschedulable" for each in conditions()))
    (scheduled,) = conditions()
    assert (scheduled["type"], scheduled["status"]) == ("PodScheduled", "False")
    assert "nodes are available" in scheduled["message"]
    uid = ask("GET", f"{PODS}/{name}-0").json()["metadata"]["uid"]
    assert ask("DELETE", f"{PODS}/{name}-0").status_code == 200

    def is_another() -> bool:
        answer = ask("GET", f"{PODS}/{name}-0")
        return answer.is_success and answer.json()["metadata"]["uid"] != uid

    until(is_another)
    ask("DELETE", f"{SETS}/{name}", {"propagationPolicy": "Foreground"})
    until(lambda: ask("GET", f"{SETS}/{name}").status_code == 404)
