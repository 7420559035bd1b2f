"""GPU services in the configuration as a file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from domain.access import Scope
from domain.services import Degree, Engine
from tangram_web.pools.applying import revision
from tangram_web.pools.selectors import current_config

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
