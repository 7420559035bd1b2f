"""A real Prometheus scrapes a running Tangram, evaluates the alerts and answers every panel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tangram_client.client import Client
from tangram_client.payloads import exec_action, noop_action
from tests.acceptance.up.conftest import Tangram
from tests.ports import free_port
from tests.tiers import in_ci
from tests.unit.deploy.test_observability import DASHBOARD, DEPLOY, PANELS, RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_SECONDS = 180.0


#: Nothing of these has happened here: neither cluster resources nor shares are declared, nothing was
#: resized, and only commands in containers have their use counted.
MAY_BE_EMPTY = {
    "tangram_resource_allocated_units",
    "tangram_quota_used_units",
    "tangram_share_used_units",
    "tangram_share_nominal_units",
    "tangram_share_borrowed_units",
    "tangram_action_granted_cpu_seconds_total",
    "tangram_action_used_cpu_seconds_total",
    "tangram_action_throttled_seconds_total",
    "tangram_action_peak_memory_bytes_bucket",
    "tangram_cpuset_repairs_total",
    "tangram_actions_resized_total",
    "tangram_actions_requeued_total",
    # No fleet has generations here (tests/unit/metrics/test_generations_are_counted.py).
    "tangram_fleet_running_generations",
    "tangram_fleet_slots",
    "tangram_fleet_waiting_generations",
    "tangram_fleet_unrouted_generations",
    "tangram_fleet_worker_healthy",
    "tangram_fleet_worker_drained",
    "tangram_fleet_trajectories",
    "tangram_generations_total",
    "tangram_generation_tokens_total",
}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        (pytest.fail if in_ci() else pytest.skip)(f"{name} is not installed")
    assert found is not None
    return found


class Prometheus:
    """The shipped configuration, pointed at a Tangram of this test."""

    def __init__(self, folder: Path, tangram: Tangram, token: str) -> None:
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "3s", "evaluation_interval": "1s"}
        address = tangram.access["url"].removeprefix("http://")
        config["scrape_configs"][0]["static_configs"] = [{"targets": [address]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "token").write_text(token)
        shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [program("prometheus"), f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(
            f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=120
        ) as a:
            return json.load(a)["data"]

    def wait_for(self, expression: str) -> list[Any]:
        """Return the answer to a query as soon as there is any."""
        until = time.monotonic() + WITHIN_SECONDS
        while time.monotonic() < until:
            try:
                if found := self.get("query", query=expression)["result"]:
                    return list(found)
            except OSError:
                assert self._process.poll() is None, Path(self._log.name).read_text()
            time.sleep(0.2)
        raise AssertionError(f"nothing answers {expression}")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(120)
        self._log.close()


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, tangram: Tangram, admin_token: str
) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), tangram, admin_token)
    yield running
    running.end()


def play(tangram: Tangram, token: str) -> None:
    with Client(tangram.access["url"], token) as client:
        for action in (noop_action("metrics"), exec_action("metrics", "true")):
            client.wait(client.submit(action).id)


def test_finished_actions_are_counted(
    prometheus: Prometheus, tangram: Tangram, admin_token: str
) -> None:
    play(tangram, admin_token)
    found = prometheus.wait_for('sum(tangram_actions_total{kind="exec",outcome="completed"}) > 0')
    assert float(found[0]["value"][1]) >= 1


def test_answers_are_counted_by_route(
    prometheus: Prometheus, tangram: Tangram, admin_token: str
) -> None:
    play(tangram, admin_token)
    for route in ("/api/v1/actions", "/api/v1/actions/{id}?wait", "/metrics"):
        prometheus.wait_for(f'tangram_http_requests_total{{route="{route}",status=~"2.."}} > 0')


def test_every_panel_has_something_to_show(
    prometheus: Prometheus, tangram: Tangram, admin_token: str
) -> None:
    play(tangram, admin_token)
    for panel in PANELS:
        for target in panel["targets"]:
            # Rates need a second sample behind the first, and a scrape that comes late leaves none.
            if re.findall(r"tangram_\w+", target["expr"])[0] not in MAY_BE_EMPTY:
                prometheus.wait_for(concrete(target["expr"]))


def concrete(expression: str) -> str:
    return expression.replace("$pool", ".*").replace("$__rate_interval", "1m")


def test_the_annotation_of_new_leaders_is_a_query(prometheus: Prometheus) -> None:
    prometheus.wait_for("tangram_scheduler_epoch")
    expression = DASHBOARD["annotations"]["list"][0]["expr"]
    assert "result" in prometheus.get("query", query=expression)


def test_all_alerts_are_evaluated_and_a_healthy_system_fires_none(
    prometheus: Prometheus,
) -> None:
    prometheus.wait_for("tangram_scheduler_leader == 1")
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in RULES}
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    firing = [
        r["name"] for r in rules if r["state"] == "firing" and r["labels"]["severity"] == "page"
    ]
    assert firing == []


def test_promtool_accepts_rules_and_exposition(
    prometheus: Prometheus, tangram: Tangram, admin_token: str
) -> None:
    rules = DEPLOY / "prometheus" / "alerts.yml"
    subprocess.run([program("promtool"), "check", "rules", rules], check=True, env=dict(os.environ))
    asked = urllib.request.Request(
        f"{tangram.access['url']}/metrics", headers={"Authorization": f"Bearer {admin_token}"}
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        body = answer.read()
    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=body, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_metrics_without_a_token_are_refused(tangram: Tangram) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{tangram.access['url']}/metrics", timeout=120)
    refused.value.close()
    assert refused.value.code == 401
