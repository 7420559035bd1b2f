"""Each alert fires in the trouble that it is for, and stops when that is over.

Prometheus' own rule tester plays each case: half an hour of trouble, then half an hour without.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram_web.problems.kinds import KINDS
from tests.unit.deploy.test_observability import DEPLOY, RULES, exposed, named

STEP_SECONDS = 15
#: Samples of one half.
HALF = 30 * 60 // STEP_SECONDS


def gauge(trouble: float, then: float) -> str:
    """A value, then another one."""
    return f"{trouble}+0x{HALF - 1} {then}+0x{HALF - 1}"


def counter(trouble: int, then: int) -> str:
    """Something counted so many times a step, then another number of times."""
    return f"0+{trouble}x{HALF - 1} {trouble * (HALF - 1)}+{then}x{HALF - 1}"


def histogram(name: str, labels: str, bound: str, next_bound: str) -> dict[str, str]:
    """Ten a step: all above ``bound``, then all below it."""
    return {
        f'{name}_bucket{{{labels}le="{bound}"}}': counter(0, 10),
        f'{name}_bucket{{{labels}le="{next_bound}"}}': counter(10, 10),
        f'{name}_bucket{{{labels}le="+Inf"}}': counter(10, 10),
    }


REQUESTS = 'tangram_http_requests_total{method="POST",route="/api/v1/actions",status="%s"}'
ENDS = 'tangram_actions_total{project="p",pool="a",kind="exec",outcome="%s"}'
DAY = '{resource="api:x",window="day UTC"}'

CASES: dict[str, dict[str, str]] = {
    "TangramUnreachable": {'up{job="tangram",instance="web"}': gauge(0, 1)},
    "TangramNoLeader": {"tangram_scheduler_leader": gauge(0, 1)},
    "TangramNoStandby": {'tangram_workers{role="standby"}': gauge(0, 1)},
    "TangramLeaderSilent": {"tangram_scheduler_life_age_seconds": gauge(20, 1)},
    "TangramSlowPasses": histogram("tangram_scheduler_tick_seconds", "", "0.1", "0.2"),
    "TangramInboxGrows": {"tangram_inbox_entries": gauge(5000, 2)},
    "TangramRedisForgets": {"tangram_redis_durable": gauge(0, 1)},
    "TangramDeadLetters": {"tangram_dead_letters": gauge(3, 0)},
    "TangramRowsBehind": {'tangram_stream_lag_seconds{reader="projector"}': gauge(90, 0)},
    "TangramNodeLost": {'tangram_nodes{pool="a",state="lost"}': gauge(1, 0)},
    "TangramPoolWithoutNodes": {
        'tangram_queue_depth{pool="a"}': gauge(5, 5),
        'tangram_nodes{pool="a",state="ready"}': gauge(0, 1),
    },
    "TangramQueueStuck": {'tangram_queue_oldest_age_seconds{pool="a"}': gauge(900, 3)},
    "TangramFleetWithoutWorkers": {
        'tangram_fleet_unrouted_generations{fleet="m",code="no_worker"}': gauge(5, 0),
    },
    "TangramFleetWorkerUnhealthy": {
        'tangram_fleet_worker_healthy{fleet="m",worker="w1"}': gauge(0, 1),
        'tangram_fleet_worker_drained{fleet="m",worker="w1"}': gauge(0, 0),
        'tangram_fleet_worker_healthy{fleet="m",worker="w2"}': gauge(0, 0),
        'tangram_fleet_worker_drained{fleet="m",worker="w2"}': gauge(1, 1),
    },
    "TangramActionsFail": {ENDS % "unknown": counter(1, 0), ENDS % "completed": counter(10, 10)},
    "TangramApiHindered": {'tangram_resource_hindered{resource="api:x"}': gauge(1, 0)},
    "TangramDailyQuotaNearlySpent": {
        f"tangram_quota_used_units{DAY}": gauge(95, 0),
        f"tangram_quota_limit_units{DAY}": gauge(100, 100),
    },
    "TangramWebErrors": {REQUESTS % 500: counter(1, 0), REQUESTS % 202: counter(10, 10)},
    "TangramTurnsRequestsAway": {REQUESTS % 503: counter(1, 0), REQUESTS % 202: counter(10, 10)},
    "TangramSlowAnswers": histogram(
        "tangram_http_request_seconds", 'route="/api/v1/actions",', "1.0", "2.5"
    ),
    "TangramActionsHeldUp": {'tangram_problem_actions{kind="node_lost"}': gauge(174, 0)},
    **{
        kind.alert: {
            f'tangram_problem{{kind="{kind.key}",severity="{kind.severity}"}}': gauge(1, 0)
        }
        for kind in KINDS
    },
}


def test_every_alert_has_its_trouble() -> None:
    assert CASES.keys() == {rule["alert"] for rule in RULES}


def checks(alert: str) -> list[dict[str, Any]]:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return [
        {"expr": firing, "eval_time": "29m", "exp_samples": [{"labels": "{}", "value": 1}]},
        {"expr": firing, "eval_time": "59m", "exp_samples": []},
    ]


@pytest.mark.slow
def test_alerts_fire_and_stop(tmp_path: Path, program: Callable[[str], str]) -> None:
    """All troubles at once, which are of different metrics; a report names the alert that fails."""
    series = {name: values for case in CASES.values() for name, values in case.items()}
    played = {
        "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
        "evaluation_interval": f"{STEP_SECONDS}s",
        "tests": [
            {
                "interval": f"{STEP_SECONDS}s",
                "input_series": [{"series": n, "values": v} for n, v in series.items()],
                "promql_expr_test": [check for alert in CASES for check in checks(alert)],
            }
        ],
    }
    path = tmp_path / "cases.yml"
    path.write_text(yaml.safe_dump(played))
    done = subprocess.run(
        [program("promtool"), "test", "rules", path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", CASES)
def test_a_case_is_made_of_metrics_that_there_are(alert: str) -> None:
    assert set().union(*map(named, CASES[alert])) <= exposed()
