"""GPU services in the configuration as a file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from django.utils import timezone

from domain.principals import Scope
from domain.services import Degree, Engine
from tangram_web.pools.applying import revision
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord

FILE = """\
apiVersion: tangram/v1
kind: GpuService
metadata: {name: reward-7b}
spec:
  engine: process
  degrees: [{gpus: 1, memory_bytes: 17179869184}, {gpus: 2, memory_bytes: 9663676416}]
  command: [serve, --port, "{port}"]
  paths: [/v1]
  elasticity: {"1": 1.0, "2": 0.9}
"""


@pytest.fixture
def admin(defaults: None, redis_bus: Any, caller: Any) -> Any:
    return caller(Scope.READ, Scope.CONFIG)


def post(client: Any, path: str, text: str) -> Any:
    return client.generic("POST", f"/api/v1/config/{path}", text, content_type="application/yaml")


def test_a_service_is_declared_exported_changed_and_pruned(admin: Any) -> None:
    assert post(admin, "apply", FILE).status_code == 200
    declared = current_config().services["reward-7b"]
    assert (declared.engine, declared.degrees[1]) == (Engine.PROCESS, Degree(2, 9 * 2**30))
    assert revision(2).services == {"reward-7b": declared}

    exported = admin.get("/api/v1/config", HTTP_ACCEPT="application/yaml").content.decode()
    assert post(admin, "diff?prune=true", exported).json()["changes"] == []
    (kept,) = [doc for doc in yaml.safe_load_all(exported) if doc["kind"] == "GpuService"]
    assert kept["spec"]["elasticity"] == {"1": 1.0, "2": 0.9}

    post(admin, "apply", FILE.replace("[/v1]", "[/score]"))
    assert current_config().services["reward-7b"].paths == ("/score",)

    without = "---".join(doc for doc in exported.split("---") if "GpuService" not in doc)
    pruned = post(admin, "apply?prune=true", without).json()["changes"]
    assert [(each["verb"], each["kind"], each["name"]) for each in pruned] == [
        ("delete", "GpuService", "reward-7b")
    ]
    assert current_config().services == {}


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        (FILE.replace('"{port}"', '"8000"'), "/spec/command"),
        (FILE.replace("gpus: 2,", "gpus: 16,"), "/spec/degrees/1/gpus"),
        (FILE.replace("engine: process", "engine: llama"), "/spec/engine"),
        (FILE.replace('"2": 0.9', '"2": 1.9'), "/spec/elasticity/2"),
    ],
)
def test_a_service_that_cannot_be_served_is_refused_where_it_is_wrong(
    admin: Any, wrong: str, pointer: str
) -> None:
    refused = post(admin, "apply", wrong)

    assert refused.status_code == 422
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    assert current_config().services == {}


EAGER = FILE.replace("engine: process", "engine: sglang\n  source: a/model\n  eager: true")


def a_node(host_gib: int, state: str = "ready") -> None:
    gpu = {"capacity": 2000, "groups": [[0, 1]], "memory_bytes": 80 * 2**30,
           "host_memory_bytes": host_gib * 2**30}  # fmt: skip
    NodeRecord.objects.create(
        name="n1", pool="default", state=state, resources={"gpu": gpu}, joined_at=timezone.now()
    )


def test_copies_that_a_node_has_no_host_memory_for_are_refused_with_service_node_and_cure(
    admin: Any,
) -> None:
    a_node(host_gib=40)  # two copies of 16 GiB, one of twice 9

    refused = post(admin, "apply", EAGER)

    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/spec/host_memory_bytes"
    for words in (
        "service reward-7b",
        "node n1",
        "50.0 GiB",
        "host_memory_bytes",
        "SERVICE_MEMORY",
    ):
        assert words in refused.text
    assert current_config().services == {}

    smaller = EAGER + "  host_memory_bytes: 13958643712\n"  # 13 GiB, three times
    assert post(admin, "apply", smaller).status_code == 200


def test_a_node_that_is_lost_has_no_say_in_what_is_declared(admin: Any) -> None:
    a_node(host_gib=1, state="lost")

    assert post(admin, "apply", EAGER).status_code == 200
