"""GET /metrics says how the system stands, to those who may see all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import time
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from domain.action import Outcome, Timing
from domain.allocation import UsedResources
from domain.codec import JournalEntry, encode
from domain.principals import Scope
from domain.redis_keys import Keys
from scheduler.runtime.liveness import show_life
from tangram_web.lib import bus
from tangram_web.metrics.store import MetricsStore
from tangram_web.metrics.totals import Totals

KEYS = Keys()


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.fixture
def scrape(redis_bus: Any, token: Callable[..., str]) -> Callable[..., Any]:
    client = APIClient()
    raw = token(Scope.READ, name="prometheus")

    def get(**headers: str) -> Any:
        return client.get("/metrics", headers={"Authorization": f"Bearer {raw}", **headers})

    return get


def write_journal(client: Any, count: int) -> list[str]:
    entries = [JournalEntry(n, 1, 10.0, 0.0, "0-1", [], []) for n in range(1, count + 1)]
    return [
        client.xadd(KEYS.journal, {"e": encode(entry)}, id=f"{entry.seq * 1000}-0").decode()
        for entry in entries
    ]


def test_a_system_that_has_done_nothing_yet_has_metrics(scrape: Callable[..., Any]) -> None:
    found = samples(scrape().content)
    assert found["tangram_scheduler_leader", ()] == 0
    assert found["tangram_stream_lag_entries", (("reader", "projector"),)] == 0
    assert found["tangram_build_info", (("version", "0.1.0"),)] == 1


def test_totals_become_counters_and_cumulated_histograms(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    totals = Totals()
    for seconds in (0.004, 0.3, 5000.0):
        timing = Timing(0.0, 0.0, seconds, seconds)
        totals.count_finished("alpha", "default", "exec", Outcome.COMPLETED, timing)
    MetricsStore(redis_bus, KEYS).save(totals)

    found = samples(scrape().content)

    labels = (("kind", "exec"), ("outcome", "completed"), ("pool", "default"), ("project", "alpha"))
    assert found["tangram_actions_total", labels] == 3

    def below(bound: str) -> float:
        key = (("kind", "exec"), ("le", bound), ("pool", "default"))
        return found["tangram_action_completion_seconds_bucket", key]

    assert [below(bound) for bound in ("0.005", "0.25", "0.5", "1000.0", "+Inf")] == [1, 1, 2, 2, 3]
    key = (("kind", "exec"), ("pool", "default"))
    assert found["tangram_action_completion_seconds_count", key] == 3


def test_used_and_granted_resources_are_exported(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    totals = Totals()
    totals.count_usage("default", 8.0, UsedResources(2.5, 0.25, 3 * 2**20))
    totals.count_usage("default", 2.0, UsedResources(0.5, 0.0, 2**40))
    MetricsStore(redis_bus, KEYS).save(totals)
    gpus = {"0": (0.35, 2**30), "1": (None, 5)}
    life = {
        "role": "node",
        "at": time() + 300,
        "repairs": 3,
        "gpus": gpus,
        "gpu_memory": {"0": 4 * 2**30},
        "service_memory": (3, 8),
    }
    redis_bus.hset(KEYS.workers, "node@n1", json.dumps(life))

    found = samples(scrape().content)

    in_pool = ("pool", "default")
    assert found["tangram_action_granted_cpu_seconds_total", (in_pool,)] == 10.0
    assert found["tangram_action_used_cpu_seconds_total", (in_pool,)] == 3.0
    assert found["tangram_action_throttled_seconds_total", (in_pool,)] == 0.25
    peaks = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "tangram_action_peak_memory_bytes_bucket"
    }
    assert [peaks[bound] for bound in ("1048576", "4194304", "+Inf")] == [0, 1, 2]
    assert found["tangram_cpuset_repairs_total", (("node", "n1"),)] == 3
    first, second = ((("gpu", number), ("node", "n1")) for number in "01")
    assert found["tangram_gpu_busy_ratio", first] == 0.35
    assert ("tangram_gpu_busy_ratio", second) not in found
    assert found["tangram_gpu_memory_used_bytes", second] == 5
    assert found["tangram_gpu_memory_total_bytes", first] == 4 * 2**30
    assert ("tangram_gpu_memory_total_bytes", second) not in found  # of an earlier version
    on_node = (("node", "n1"),)
    assert found["tangram_gpu_service_host_memory_used_bytes", on_node] == 3
    assert found["tangram_gpu_service_host_memory_capacity_bytes", on_node] == 8


def test_the_lag_of_the_best_standby_is_exported(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    show_life(redis_bus, KEYS, "a", "standby", behind_seconds=None, cold="it differs")
    assert ("tangram_standby_lag_seconds", ()) not in samples(scrape().content)
    for name, behind in (("b", 7.5), ("c", 0.25)):
        show_life(redis_bus, KEYS, name, "standby", behind_seconds=behind, cold="")
    assert samples(scrape().content)["tangram_standby_lag_seconds", ()] == 0.25


def test_prepared_environments_are_exported(redis_bus: Any, scrape: Callable[..., Any]) -> None:
    facts = {
        "wanted": 4, "kept": 3, "taken": 2, "made": 5, "problem": "", "memory_bytes": 2**20,
    }  # fmt: skip
    life = {"role": "node", "at": time() + 300, "warm": {"swe:1": facts}}
    redis_bus.hset(KEYS.workers, "node@n1", json.dumps(life))

    found = samples(scrape().content)

    name, labels = "tangram_warm_environments", (("image", "swe:1"), ("node", "n1"))
    gauges = [found[f"{name}_{each}", labels] for each in ("wanted", "kept", "memory_bytes")]
    assert gauges == [4, 3, 2**20]
    assert [found[f"{name}_{each}_total", labels] for each in ("taken", "made")] == [2, 5]


def test_lag_is_counted_from_the_position_of_each_reader(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    ids = write_journal(redis_bus, 5)
    redis_bus.hset(KEYS.positions, "projector", ids[2])
    redis_bus.hset(KEYS.positions, "metrics", ids[4])

    found = samples(scrape().content)

    assert found["tangram_stream_lag_entries", (("reader", "projector"),)] == 2
    assert found["tangram_stream_lag_seconds", (("reader", "projector"),)] == 2.0
    assert found["tangram_stream_lag_entries", (("reader", "metrics"),)] == 0


def test_a_leader_that_shows_life_is_described(redis_bus: Any, scrape: Callable[..., Any]) -> None:
    redis_bus.set(KEYS.leader, "loop:1")
    life = {
        "role": "loop",
        "at": time() + 300,
        "pass_bounds": [0.1],
        "pass_counts": [7, 1],
        "pass_sum": 1,
    }
    redis_bus.hset(KEYS.workers, "loop:1", json.dumps(life))
    redis_bus.hset(KEYS.workers, "node:9", json.dumps({"role": "node", "at": time() - 3600}))

    found = samples(scrape().content)

    assert found["tangram_scheduler_tick_seconds_bucket", (("le", "0.1"),)] == 7
    assert found["tangram_scheduler_tick_seconds_count", ()] == 8
    assert found["tangram_scheduler_life_age_seconds", ()] < 60
    assert found["tangram_workers", (("role", "node"),)] == 0


def test_the_silence_of_a_leader_is_exported_while_it_leads(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    """A hung loop keeps its lease for a minute: the alert needs its silence all that time."""
    redis_bus.set(KEYS.leader, "loop:1")
    life = {"role": "loop", "at": time() - 40.0}
    redis_bus.hset(KEYS.workers, "loop:1", json.dumps(life))

    found = samples(scrape().content)

    assert 40 <= found["tangram_scheduler_life_age_seconds", ()] < 600


def test_the_newest_frames_give_depths_and_capacity(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    pool = {
        "name": "default", "queued": 3, "granted": 0, "running": 2, "oldest_seconds": 1.5,
        "paused": False, "cores_total": 8.0, "cores_held": 2.5,
    }  # fmt: skip
    node = {
        "name": "n1", "pool": "default", "state": "lost", "environments": 4,
        "memory_total_bytes": 100, "memory_held_bytes": 40,
    }  # fmt: skip
    quota = {"name": "api:search", "held": 3.0, "capacity": 20.0}
    overview = {"pools": [pool], "resources": [quota]}
    redis_bus.set("tangram:frame:overview", msgspec.msgpack.encode(overview))
    redis_bus.set("tangram:frame:nodes", msgspec.msgpack.encode({"nodes": [node]}))

    found = samples(scrape().content)

    in_pool = ("pool", "default")
    assert found["tangram_queue_depth", (in_pool,)] == 3
    assert found["tangram_queue_oldest_age_seconds", (in_pool,)] == 1.5
    assert found["tangram_pool_allocated_units", (in_pool, ("resource", "cpu"))] == 2.5
    assert found["tangram_nodes", (in_pool, ("state", "lost"))] == 1
    assert found["tangram_nodes", (in_pool, ("state", "ready"))] == 0
    assert found["tangram_resource_allocated_units", (("resource", "api:search"),)] == 3


def test_quotas_shares_and_circuits_are_exported(
    redis_bus: Any, scrape: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    day = {"units": 1000, "window_seconds": None, "zone": "Europe/Berlin", "used": 3}
    second = {"units": 50, "window_seconds": 1.0, "zone": None, "used": 50}
    api = {"ceiling": 12, "hindrance": "its breaker is open", "quotas": [second, day]}
    books = {"api:search": api, "cpu:n1": {"capacity": 8, "free": 8}}
    share = {"resource": "cpu", "project": "lab", "nominal": 4, "used": 6, "borrowed": 2}
    shares = [{**share, "pool": "default"}, {**share, "pool": None, "resource": "api:search"}]
    status = {"resources": books, "shares": shares}
    monkeypatch.setattr("tangram_web.lib.scheduler_client.status", lambda: status)
    life = {"role": "loop", "at": time() + 300}
    redis_bus.set(KEYS.leader, "loop:1")
    redis_bus.hset(KEYS.workers, "loop:1", json.dumps(life))
    found = samples(scrape().content)
    where = ("resource", "api:search")
    assert found["tangram_quota_limit_units", (where, ("window", "1s"))] == 50
    assert found["tangram_quota_used_units", (where, ("window", "1s"))] == 50
    assert found["tangram_quota_used_units", (where, ("window", "day Europe/Berlin"))] == 3
    assert found["tangram_resource_ceiling_units", (where,)] == 12
    assert found["tangram_resource_hindered", (where,)] == 1
    lab = (("pool", "default"), ("project", "lab"), ("resource", "cpu"))
    assert [found[f"tangram_share_{n}_units", lab] for n in ("nominal", "used", "borrowed")] == [
        4, 6, 2
    ]  # fmt: skip
    assert found["tangram_share_used_units", (("pool", ""), lab[1], where)] == 6


def test_openmetrics_is_sent_on_request(scrape: Callable[..., Any]) -> None:
    answer = scrape(Accept="application/openmetrics-text; version=1.0.0")
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")


def test_metrics_need_a_scope(redis_bus: Any, token: Callable[..., str]) -> None:
    client = APIClient()
    assert client.get("/metrics").status_code == 401
    of_project = token(Scope.READ, project="alpha", name="of alpha")
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {of_project}"})
    assert (answer.status_code, answer.json()["detail"][:31]) == (
        403, "this token is of project alpha;",
    )  # fmt: skip


def test_metrics_without_redis_are_503(
    token: Callable[..., str], redis_bus: Any, settings: Any
) -> None:
    raw = token(Scope.READ, name="prometheus")
    settings.TANGRAM_REDIS_URL = "unix:///nowhere/redis.sock"
    client = APIClient(raise_request_exception=False)
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {raw}"})
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers
    assert bus.redis_client() is not redis_bus


def test_ends_that_none_had_yet_are_a_zero_so_that_the_first_is_an_increase(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    totals = Totals()
    totals.count_submitted("alpha", "default", "exec")
    MetricsStore(redis_bus, KEYS).save(totals)
    redis_bus.hset(KEYS.web_requests, "n\x1fPOST\x1f/api/v1/actions\x1f202", 3)
    found = samples(scrape().content)
    labels = {"project": "alpha", "pool": "default", "kind": "exec", "outcome": "infra_failed"}
    assert found["tangram_actions_total", tuple(sorted(labels.items()))] == 0
    request = {"method": "POST", "route": "/api/v1/actions", "status": "500"}
    assert found["tangram_http_requests_total", tuple(sorted(request.items()))] == 0


def test_a_reader_that_never_began_is_behind_from_the_first_entry_on(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    write_journal(redis_bus, 5)
    redis_bus.xadd(KEYS.journal, {"e": b"\xc1"}, id="9000-0")
    found = samples(scrape().content)
    assert found["tangram_stream_lag_seconds", (("reader", "projector"),)] == 8.0


def test_totals_of_another_version_begin_at_zero(
    redis_bus: Any, scrape: Callable[..., Any]
) -> None:
    redis_bus.set(KEYS.metrics, b"\xc1")
    assert scrape().status_code == 200
    assert MetricsStore(redis_bus, KEYS).load() == Totals()
