"""Fleets in the configuration: as a file, over REST, and as projects see them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from domain.fleets import FleetEngine, WorkerSpec
from domain.principals import Scope
from tangram_web.pools.applying import revision
from tangram_web.pools.selectors import current_config

FILE = """\
apiVersion: tangram/v1
kind: Fleet
metadata: {name: Qwen3-8B}
spec:
  engine: vllm
  workers:
    - {name: w1, url: "http://10.0.0.7:8000", slots: 100}
    - {name: w2, url: "http://10.0.0.8:8000", degree: 4}
  gpus: 8
  degrees: [1, 2, 4]
"""
SPEC = yaml.safe_load(FILE)["spec"]


@pytest.fixture
def admin(defaults: None, redis_bus: Any, caller: Any) -> Any:
    return caller(Scope.READ, Scope.CONFIG)


def post(client: Any, path: str, text: str) -> Any:
    return client.generic("POST", f"/api/v1/config/{path}", text, content_type="application/yaml")


def test_a_fleet_is_declared_exported_changed_rolled_back_and_pruned(admin: Any) -> None:
    assert post(admin, "apply", FILE).status_code == 200
    declared = current_config().fleets["Qwen3-8B"]
    assert (declared.engine, declared.degrees) == (FleetEngine.VLLM, (1, 2, 4))
    assert declared.workers[1] == WorkerSpec("w2", "http://10.0.0.8:8000", degree=4)
    assert revision(2).fleets == {"Qwen3-8B": declared}

    exported = admin.get("/api/v1/config", HTTP_ACCEPT="application/yaml").content.decode()
    assert post(admin, "diff?prune=true", exported).json()["changes"] == []

    post(admin, "apply", FILE.replace("gpus: 8", "gpus: 16"))
    assert current_config().fleets["Qwen3-8B"].gpus == 16
    assert admin.post("/api/v1/config/revisions/2/rollback").status_code == 200
    assert current_config().fleets["Qwen3-8B"] == declared

    without = "---".join(doc for doc in exported.split("---") if "kind: Fleet" not in doc)
    pruned = post(admin, "apply?prune=true", without).json()["changes"]
    assert [(each["verb"], each["kind"], each["name"]) for each in pruned] == [
        ("delete", "Fleet", "Qwen3-8B")
    ]
    assert current_config().fleets == {}


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        (FILE.replace("gpus: 8", "gpus: 7").replace("[1, 2, 4]", "[2, 4]"), "/spec/gpus"),
        (FILE.replace("[1, 2, 4]", "[1, 3]"), "/spec/degrees/1"),
        (FILE.replace("10.0.0.8", "10.0.0.7"), "/spec/workers/1/url"),
        (FILE.replace("name: w2", "name: w1"), "/spec/workers/1/name"),
        (FILE.replace("http://10.0.0.7:8000", "10.0.0.7"), "/spec/workers/0/url"),
        (FILE.replace("slots: 100", "slots: 0"), "/spec/workers/0/slots"),
        (FILE.replace("engine: vllm", "engine: llama"), "/spec/engine"),
        (FILE.replace("degree: 4", "degrees: 4"), "/spec/workers/1/degrees"),
    ],
)
def test_a_fleet_that_cannot_be_served_is_refused_where_it_is_wrong(
    admin: Any, wrong: str, pointer: str
) -> None:
    refused = post(admin, "apply", wrong)

    assert refused.status_code == 422
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    assert current_config().fleets == {}


def test_workers_of_our_own_need_a_pool_that_exists(admin: Any) -> None:
    refused = post(admin, "apply", FILE + "  pool: nowhere\n")

    assert refused.status_code == 422
    assert "there is no pool 'nowhere'" in refused.text


def test_a_fleet_is_added_replaced_and_deleted_over_rest(admin: Any) -> None:
    added = admin.post("/api/v1/fleets", {"name": "m", **SPEC}, format="json")
    assert added.status_code == 201
    assert added.json()["workers"][0]["slots"] == 100
    assert admin.post("/api/v1/fleets", {"name": "m", **SPEC}, format="json").status_code == 409

    replaced = admin.put("/api/v1/fleets/m", {"engine": "openai"}, format="json")
    assert (replaced.status_code, replaced.json()["workers"]) == (200, [])
    (listed,) = admin.get("/api/v1/fleets").json()["results"]
    assert listed == admin.get("/api/v1/fleets/m").json()
    assert listed["policy"] == "hedged"

    wrong = admin.put("/api/v1/fleets/m", {**SPEC, "degrees": [3]}, format="json")
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/degrees/0")

    assert admin.delete("/api/v1/fleets/m").status_code == 204
    assert admin.delete("/api/v1/fleets/m").status_code == 404
    assert current_config().fleets == {}


PROFILE = """\
  profile:
    source: measured with vLLM 0.11 on one H100
    degrees:
      - degree: 1
        batches: [1, 64]
        contexts: [0, 8192]
        token_seconds: [[0.012, 0.013], [0.020, 0.041]]
        prefill: [[8192, 0.7]]
        kv_tokens: 250000
        wake_seconds: 4.5
"""
#: The fleet with workers of the measured degree alone.
NARROW = FILE.replace(", degree: 4", "").replace("[1, 2, 4]", "[1]")


def test_measured_times_are_declared_and_exported(admin: Any) -> None:
    assert post(admin, "apply", NARROW + PROFILE).status_code == 200

    profile = current_config().fleets["Qwen3-8B"].profile
    assert profile is not None
    assert profile.degrees[0].token_seconds == ((0.012, 0.013), (0.020, 0.041))
    exported = admin.get("/api/v1/config", HTTP_ACCEPT="application/yaml").content.decode()
    assert post(admin, "diff?prune=true", exported).json()["changes"] == []

    body = {"engine": "openai", "profile": yaml.safe_load(NARROW + PROFILE)["spec"]["profile"]}
    replaced = admin.put("/api/v1/fleets/Qwen3-8B", body, format="json")
    assert replaced.json()["profile"]["degrees"][0]["wake_seconds"] == 4.5


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        (PROFILE.replace("0.041", "0.0"), "/spec/profile/degrees/0/token_seconds/1/1"),
        (PROFILE.replace(", 0.013", ""), "/spec/profile/degrees/0/token_seconds/0"),
        (PROFILE.replace("0.7", "-0.7"), "/spec/profile/degrees/0/prefill/0"),
        (PROFILE + "  modelled: 9b\n", "/spec/modelled"),
    ],
)
def test_times_that_are_no_measurement_are_refused_where_they_are_wrong(
    admin: Any, wrong: str, pointer: str
) -> None:
    refused = post(admin, "apply", NARROW + wrong)

    assert refused.status_code == 422
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]


def test_slots_of_workers_are_limited_by_no_resource(admin: Any) -> None:
    refused = admin.put("/api/v1/resources/fleet:m", {"limit_units": 3}, format="json")

    assert refused.status_code == 422
    assert "declare a Fleet" in refused.text


def test_projects_see_a_fleet_without_the_addresses_of_its_workers(admin: Any, caller: Any) -> None:
    post(admin, "apply", FILE)

    seen = caller(Scope.READ, project="default").get("/api/v1/fleets/Qwen3-8B").json()

    assert (seen["engine"], seen["gpus"], seen["workers"]) == ("vllm", 8, [])
