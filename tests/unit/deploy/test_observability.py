"""Alerts and the dashboard name only metrics that there are."""

from __future__ import annotations

import json
import re
from time import time
from typing import Any

import pytest
import yaml

from contract.fleet_status import FleetStatus, FleetWorkerStatus
from domain.action import Outcome, Timing
from domain.allocation import UsedResources
from domain.fleets import FleetEngine, FleetWorker, PlacementName, TokenUsage
from tangram_web.metrics.exposition import families, families_of_requests
from tangram_web.metrics.problem_metrics import families_of_problems
from tangram_web.metrics.reading import Lag, SystemReading
from tangram_web.metrics.requests import BOUNDS, RequestTotals
from tangram_web.metrics.totals import Totals
from tests.architecture.tree import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "tangram.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def exposed() -> set[str]:
    """Names of all samples of a system in which everything has happened once."""
    totals = Totals()
    totals.count_submitted("p", "default", "exec")
    totals.count_finished("p", "default", "exec", Outcome.COMPLETED, Timing(1, 1, 1, 3))
    totals.count_requeued("default")
    totals.count_resized("default")
    totals.count_usage("default", 2.0, UsedResources(1.0, 0.1, 2**20))
    leader = {"name": "l", "role": "loop", "at": time(), "pass_bounds": [1.0], "pass_sum": 0.1,
              "redis_risks": ""}  # fmt: skip
    worker = {"name": "node@n", "role": "node", "at": time(), "repairs": 1}
    standing = SystemReading(
        "l", 1, 0.1, 0, {"projector": Lag(0, 0.0)}, 0, [{**leader, "pass_counts": [1, 0]}, worker]
    )
    pool = {
        "name": "default", "queued": 1, "granted": 1, "running": 1, "oldest_seconds": None,
        "paused": False, "cores_total": 1.0, "cores_held": 1.0,
    }  # fmt: skip
    node = {
        "name": "n", "pool": "default", "state": "ready", "environments": 1,
        "memory_total_bytes": 1, "memory_held_bytes": 1,
    }  # fmt: skip
    overview = {"pools": [pool], "resources": [{"name": "api:x", "held": 1, "capacity": 1}]}
    quota = {"units": 50, "window_seconds": 1.0, "zone": None, "used": 7}
    books = {"api:x": {"ceiling": 20, "hindrance": None, "quotas": [quota]}}
    share = {"pool": "default", "resource": "cpu", "project": "p", "nominal": 2, "used": 3,
             "borrowed": 1}  # fmt: skip
    totals.count_generation("m", Outcome.COMPLETED, TokenUsage(100, 50, 20))
    worker_of_fleet = FleetWorkerStatus(FleetWorker(number=1, name="w1", url=""))
    fleet = FleetStatus("m", FleetEngine.VLLM, PlacementName.HEDGED, workers=[worker_of_fleet],
                        unrouted={"no_worker": 1})  # fmt: skip
    answered = RequestTotals({("GET", "/", "200"): 1}, {("/",): [0] * (len(BOUNDS) + 1)})
    found = [
        *families(totals, standing, overview, {"nodes": [node]}, books, [share], [fleet]),
        *families_of_requests(answered),
        *families_of_problems([("node_lost", "critical", 12)]),
    ]
    return {sample.name for family in found for sample in family.samples}


def named(expression: str) -> set[str]:
    """Names of metrics in an expression."""
    return set(re.findall(r"\btangram_\w+", expression))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_use_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert named(rule["expr"]) <= exposed()
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert {"summary", "action"} <= set(rule["annotations"])


def test_a_response_of_a_service_is_not_counted_as_an_error() -> None:
    """The OpenAI-compatible door passes statuses of services on: 500 of a model, 504 of a time-out."""
    rule = next(rule for rule in RULES if rule["alert"] == "TangramWebErrors")
    left_out = re.search(r'route!~"([^"]*)"', rule["expr"])

    assert left_out is not None
    assert re.fullmatch(left_out[1], "/v1/{path}")
    assert not re.fullmatch(left_out[1], "/api/v1/actions/{id}")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_metrics_that_there_are(panel: dict[str, Any]) -> None:
    asked = set().union(*(named(target["expr"]) for target in panel["targets"]))
    assert asked
    assert asked <= exposed()
    assert panel["description"]


def test_every_metric_is_shown_or_alerted_on() -> None:
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in PANELS for target in panel["targets"]]
    expressions.append(DASHBOARD["annotations"]["list"][0]["expr"])
    used = set().union(*map(named, expressions))
    unused = {
        name
        for name in exposed()
        if not any(name.startswith(re.sub(r"_(bucket|count|sum)$", "", u)) for u in used)
    }
    # Facts for joins and for people; nothing to draw.
    assert unused == {"tangram_build_info", "tangram_pool_paused", "tangram_stream_lag_entries"}


def test_names_follow_the_rules_of_prometheus() -> None:
    for name in exposed():
        assert re.fullmatch(r"tangram_[a-z_]+", name)
        assert not re.search(r"milli|micro|_ms|percent", name)


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert DASHBOARD["uid"] == "tangram-overview"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${DS_PROMETHEUS}"
