"""Node groups are declared, changed and deleted as other configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from django.test import Client
from rest_framework.test import APIClient

from contract.node_group_reports import InstanceReport, NodeGroupEstimate, NodeGroupReport
from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from domain.principals import Scope
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import SYSTEM
from tangram_web.lib import bus
from tangram_web.pools import applying, services
from tangram_web.pools.group_reports import node_group_reports
from tangram_web.pools.manifests import NodeSpec, parse, plain, specs_of
from tangram_web.pools.selectors import current_config
from tangram_web.pools.services import ensure_defaults
from tangram_web.pools.visibility import visible

pytestmark = pytest.mark.django_db


def group(spec: str) -> str:
    return f"apiVersion: tangram/v1\nkind: NodeGroup\nmetadata: {{name: batch}}\nspec: {{{spec}}}\n"


FIXED = group("engine: ssh, count: 2, cpus: 4, options: {hosts: 'a,b'}")


@pytest.fixture(autouse=True)
def _defaults() -> None:
    ensure_defaults()


def test_a_group_is_in_force_and_exported() -> None:
    applying.apply(parse(FIXED), actor=SYSTEM)
    wanted = NodeGroupSpec("ssh", count=2, cpus=4, options={"hosts": "a,b"})
    config = current_config()
    assert config.node_groups == {"batch": wanted}
    (exported,) = [each for each in plain(specs_of(config)) if each["kind"] == "NodeGroup"]
    assert exported["spec"] == {
        "engine": "ssh", "count": 2, "cpus": 4, "options": {"hosts": "a,b"}
    }  # fmt: skip


def test_a_group_is_resized_by_one_change() -> None:
    applying.apply(parse(FIXED), actor=SYSTEM)
    _, (change,) = applying.apply(parse(FIXED.replace("count: 2", "count: 5")), actor=SYSTEM)
    assert (change.verb, change.name) == ("update", "batch")
    assert current_config().node_groups["batch"].count == 5
    entry = AuditEntry.objects.latest("id")
    assert entry.before["NodeGroup/batch"]["count"] == 2
    assert entry.after["NodeGroup/batch"]["count"] == 5


def test_a_count_of_zero_is_kept() -> None:
    applying.apply(parse(FIXED.replace("count: 2", "count: 0")), actor=SYSTEM)
    assert current_config().node_groups["batch"].count == 0


def test_a_group_that_a_pruned_file_does_not_name_is_deleted() -> None:
    applying.apply(parse(FIXED), actor=SYSTEM)
    rest = {key: spec for key, spec in specs_of(current_config()).items() if key[0] != "NodeGroup"}
    _, (change,) = applying.apply(rest, actor=SYSTEM, prune=True)
    assert (change.verb, change.kind, change.name) == ("delete", "NodeGroup", "batch")
    assert current_config().node_groups == {}


def test_a_rollback_restores_a_group() -> None:
    applied, _ = applying.apply(parse(FIXED), actor=SYSTEM)
    applying.apply(parse(FIXED.replace("count: 2", "count: 5")), actor=SYSTEM)
    applying.roll_back(applied.revision, actor=SYSTEM)
    assert current_config().node_groups["batch"].count == 2


def test_projects_see_a_group_without_what_reaches_its_machines() -> None:
    applying.apply(parse(FIXED), actor=SYSTEM)
    seen = visible(current_config(), ["default"]).node_groups["batch"]
    assert (seen.engine, seen.count, seen.options) == ("ssh", 2, {})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("engine: ssh", "give count, or min_count and max_count"),
        ("engine: ssh, count: 2, max_count: 3", "exclude each other"),
        ("engine: ssh, min_count: 4, max_count: 3", "max_count is below min_count"),
        ("engine: ssh, count: 2, pool: elsewhere", "no pool 'elsewhere'"),
        ("engine: ssh, count: 2, colour: red", "colour"),
        ("engine: ssh, count: -1", ">= 0"),
        ("engine: SSH, count: 1", "matching regex"),
        ("engine: ssh, count: 1, max_surge: 0", "give one of them at least 1"),
    ],
)
def test_a_wrong_group_is_refused(spec: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        applying.apply(parse(group(spec)), actor=SYSTEM)
    assert current_config().node_groups == {}


def test_an_operators_drain_replaces_one_that_lets_trajectories_finish() -> None:
    services.node_drain(actor=SYSTEM, node="n1", reason="leaves", finishing=True)
    config = current_config()
    assert config.drained_nodes == config.finishing_nodes == {"n1"}
    assert specs_of(config)["Node", "n1"] == NodeSpec(drained=True, finishing=True)

    services.node_drain(actor=SYSTEM, node="n1", reason="broken")
    config = current_config()
    assert config.drained_nodes == {"n1"}
    assert not config.finishing_nodes

    services.node_drain(actor=SYSTEM, node="n1", reason="leaves", finishing=True)
    assert current_config().finishing_nodes == frozenset()


REPORT = NodeGroupReport(
    NodeGroupSpec("ssh", count=2, options={"hosts": "a,b"}), "2026-01-01T00:00:00Z", 2, 1,
    [InstanceReport("batch-1", "running", "pid 7", "a", joined=True, outdated=True),
     InstanceReport("batch-2", "pending", "", reason="no machine is free")],
    "no core is free; lower cpus", ["batch-1", "batch-2"],
    problems=["the disk of a is full; free 256 MiB", "ssh does not reach b; take it out of hosts"],
    silent={"b": "ssh does not reach b; take it out of hosts"},
    rollout="1 of 2 instances have the new shape; batch-1 waits for its successor",
)  # fmt: skip


@pytest.fixture
def reported(redis_bus: Any) -> None:
    redis_bus.hset(bus.keys().node_group_reports, "batch", msgspec.json.encode(REPORT))


def test_the_api_lists_groups_with_their_instances(
    reported: None, caller: Callable[..., APIClient]
) -> None:
    (found,) = caller(Scope.READ).get("/api/v1/node-groups").json()["groups"]
    assert (found["name"], found["wanted"], found["ready"]) == ("batch", 2, 1)
    assert found["spec"] == {"engine": "ssh", "count": 2, "options": {"hosts": "a,b"}}
    assert [each["state"] for each in found["instances"]] == ["running", "pending"]
    assert [each["outdated"] for each in found["instances"]] == [True, False]
    for member in ("error", "problems", "silent", "rollout"):
        assert found[member] == getattr(REPORT, member)
    assert found["estimate"] is None


def test_projects_see_no_machine_of_a_group(reported: None) -> None:
    seen = node_group_reports(["default"])["batch"]
    assert (seen.wanted, seen.ready, seen.instances, seen.error) == (2, 1, [], "")
    assert (seen.problems, seen.silent) == ([], {})
    assert seen.spec.options == {}


def test_the_page_of_nodes_shows_groups(reported: None, admin_client: Client) -> None:
    page = admin_client.get("/workers/").content.decode()
    assert "Node group batch" in page
    assert "1 of 2 nodes ready" in page
    assert "no core is free; lower cpus" in page
    assert "Engine ssh cannot place all node workers.</b> the disk of a is full" in page
    assert "Machine b does not answer." in page
    assert page.count("ssh does not reach b; take it out of hosts") == 1
    assert "1 of 2 instances have the new shape; batch-1 waits for its successor" in page
    assert "former shape" in page
    assert "no machine is free" in page


ESTIMATE = NodeGroupEstimate(
    4, more=2, gain=0.31, act_seconds=12.0, start_seconds=45.0,
    reason="2 more nodes would lower the mean ACT by 31%, from 12.0 s to 8.3 s",
)  # fmt: skip


@pytest.fixture
def elastic(redis_bus: Any) -> None:
    report = NodeGroupReport(
        NodeGroupSpec("ssh", min_count=1, max_count=8), wanted=4, ready=2, estimate=ESTIMATE
    )
    redis_bus.hset(bus.keys().node_group_reports, "batch", msgspec.json.encode(report))


def test_the_api_has_the_estimate_of_a_group_with_bounds(
    elastic: None, caller: Callable[..., APIClient]
) -> None:
    (found,) = caller(Scope.READ).get("/api/v1/node-groups").json()["groups"]
    assert found["estimate"] == msgspec.structs.asdict(ESTIMATE)
    assert found["wanted"] == 4


def test_the_page_of_nodes_says_why_a_group_with_bounds_grows(
    elastic: None, admin_client: Client
) -> None:
    page = admin_client.get("/workers/").content.decode()
    assert "2 of 4 nodes ready" in page
    assert ESTIMATE.reason in page
    assert "1 to 8 nodes" in page
    assert "a node joins 45 s after its launch" in page
