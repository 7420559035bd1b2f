"""Totals and standing as metric families of Prometheus.

``FAMILIES`` of a reading is everything that `/metrics` ever shows; documents, alert rules and the
dashboard may name nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from domain.action import Outcome
from domain.version import VERSION
from tangram_web.metrics.requests import BOUNDS as REQUEST_BOUNDS
from tangram_web.metrics.requests import Answered
from tangram_web.metrics.standing import Standing
from tangram_web.metrics.totals import BOUNDS, MEMORY_BOUNDS, PHASES, Histogram, Totals

#: What the workers' parts are called.
ROLES = ("loop", "standby", "node", "projector", "jobs")
NODE_STATES = ("ready", "drained", "lost")


def families(
    totals: Totals,
    standing: Standing,
    overview: dict[str, Any],
    nodes: dict[str, Any],
    resources: dict[str, Any],
    shares: list[dict[str, Any]],
) -> Iterator[Metric]:
    """Yield every metric family of one reading; frames that were never made are empty.

    ``resources`` and ``shares``: what the leader's books say of each (`GET /status`).
    """
    yield from _of_totals(totals)
    yield from _of_leader(standing)
    yield from _of_streams(standing)
    yield from _of_workers(standing)
    yield from _of_pools(overview.get("pools", []))
    yield from _of_resources(overview.get("resources", []))
    yield from _of_quotas({name: r for name, r in resources.items() if "quotas" in r})
    yield from _of_shares(shares)
    yield from _of_nodes(nodes.get("nodes", []))
    build = GaugeMetricFamily(
        "tangram_build_info", "The version that answers; 1.", labels=["version"]
    )
    build.add_metric([VERSION], 1)
    yield build


def families_of_requests(answered: Answered) -> Iterator[Metric]:
    """Yield what the web processes have answered, together."""
    # As with actions: the first defect of a route is an increase over this 0.
    none = {(method, route, "500"): 0 for method, route, _ in answered.requests}
    yield _counter(
        "tangram_http_requests", "Requests that are answered.", ["method", "route", "status"],
        none | answered.requests,
    )  # fmt: skip
    seconds = HistogramMetricFamily(
        "tangram_http_request_seconds", "From a request to the end of its answer.", labels=["route"]
    )
    for key, counts in sorted(answered.counts.items()):
        seconds.add_metric(key, _buckets(counts, REQUEST_BOUNDS), answered.seconds.get(key, 0.0))
    yield seconds


def _of_totals(totals: Totals) -> Iterator[Metric]:
    yield _counter(
        "tangram_actions_submitted", "Actions accepted.", ["project", "pool", "kind"],
        totals.submitted,
    )  # fmt: skip
    yield _counter(
        "tangram_actions", "Actions that are over.", ["project", "pool", "kind", "outcome"],
        _ends(totals),
    )  # fmt: skip
    yield _counter(
        "tangram_actions_requeued", "Grants taken back before they ran.", ["pool"], totals.requeued
    )
    yield _counter(
        "tangram_actions_resized", "Running actions given other units.", ["pool"], totals.resized
    )
    yield _histogram(
        "tangram_action_completion_seconds", "Action completion time (ACT) of finished actions.",
        ["pool", "kind"], totals.completion,
    )  # fmt: skip
    for name, text, sums in (
        ("granted_cpu", "Core seconds granted to actions whose use is counted.",
         totals.granted_cpu_seconds),
        ("used_cpu", "Core seconds that they used.", totals.used_cpu_seconds),
        ("throttled", "Seconds for which quotas of light actions kept them from running.",
         totals.throttled_seconds),
    ):  # fmt: skip
        yield _counter(f"tangram_action_{name}_seconds", text, ["pool"], sums)
    peaks = HistogramMetricFamily(
        "tangram_action_peak_memory_bytes", "Most memory of the environment while an action ran.",
        labels=["pool"],
    )  # fmt: skip
    for key, peak in sorted(totals.peak_memory.items()):
        peaks.add_metric(key, _buckets(peak.counts, MEMORY_BOUNDS), peak.sum_bytes)
    yield peaks
    yield _counter(
        "tangram_gpu_service_calls",
        "Grants to calls of GPU services that were on the chunk (a restore avoided), or restored.",
        ["pool", "memory"], totals.service_calls,
    )  # fmt: skip
    yield _counter(
        "tangram_gpu_evictions", "Services that left GPU memory for others.", ["pool"],
        totals.evictions,
    )  # fmt: skip
    yield _counter(
        "tangram_gpu_restores_ahead",
        "Services brought to idle chunks before a grant, and those of them that a call met there.",
        ["pool", "what"], totals.ahead,
    )  # fmt: skip
    yield _histogram(
        "tangram_gpu_restore_seconds", "Bringing a service to its chunk, evictions included.",
        ["pool"], totals.restores,
    )  # fmt: skip
    yield _histogram(
        "tangram_action_phase_seconds", f"Parts of ACT: {', '.join(PHASES)}.",
        ["pool", "phase"], totals.phases,
    )  # fmt: skip


def _ends(totals: Totals) -> dict[tuple[str, str, str, str], int]:
    """Return how actions ended, with a 0 for each end that none of their kind has had so far.

    Prometheus takes no notice of the first value of a series: without the 0 the first failures of a
    pool, however many come at once, would be no increase, and alert nobody.
    """
    known = {key[:3] for key in totals.finished} | totals.submitted.keys()
    return {(*key, outcome.value): 0 for key in known for outcome in Outcome} | totals.finished


def _of_leader(standing: Standing) -> Iterator[Metric]:
    yield _gauge("tangram_scheduler_leader", "1 while a loop leads.", float(bool(standing.leader)))
    yield _gauge("tangram_scheduler_epoch", "Leaders elected so far.", standing.epoch)
    if standing.tick_lag_seconds is not None:
        yield _gauge(
            "tangram_scheduler_life_age_seconds", "Since the leader's last sign of life.",
            standing.tick_lag_seconds,
        )  # fmt: skip
    life = standing.life_of_leader()
    if "pass_counts" in life:
        passes = HistogramMetricFamily(
            "tangram_scheduler_tick_seconds",
            "Passes of the present leader: deciding, committing and answering.",
        )
        passes.add_metric([], _buckets(life["pass_counts"], life["pass_bounds"]), life["pass_sum"])
        yield passes
    if "redis_risks" in life:
        yield _gauge(
            "tangram_redis_durable", "1 where what Redis answers is on disk and stays in memory.",
            float(not life["redis_risks"]),
        )  # fmt: skip


def _of_streams(standing: Standing) -> Iterator[Metric]:
    yield _gauge(
        "tangram_inbox_entries", "Entries the leader has yet to read.", standing.inbox_entries
    )
    yield _gauge(
        "tangram_dead_letters", "Messages that could not be read or taken in, set aside.",
        standing.dead_letters,
    )  # fmt: skip
    behind = [((name,), lag) for name, lag in standing.lags.items()]
    yield _gauges(
        "tangram_stream_lag_entries", "Journal entries a reader has yet to read.", ["reader"],
        ((name, lag.entries) for name, lag in behind),
    )  # fmt: skip
    yield _gauges(
        "tangram_stream_lag_seconds", "Age of what a reader has read, against the newest entry.",
        ["reader"], ((name, lag.seconds) for name, lag in behind),
    )  # fmt: skip


def _of_workers(standing: Standing) -> Iterator[Metric]:
    yield _counter(
        "tangram_cpuset_repairs", "Cores of containers found changed by others, and restored.",
        ["node"], standing.repairs(),
    )  # fmt: skip
    yield from _of_gpus(standing)
    yield _gauges(
        "tangram_workers", "Workers that show life.", ["role"],
        (((role,), sum(w["role"] == role for w in standing.workers)) for role in ROLES),
    )  # fmt: skip


def _of_gpus(standing: Standing) -> Iterator[Metric]:
    gpus = list(standing.gpus())
    yield _gauges(
        "tangram_gpu_busy_ratio", "Share of the last moments in which a GPU worked, as NVML says.",
        ["node", "gpu"], ((key, busy) for key, busy, _ in gpus if busy is not None),
    )  # fmt: skip
    yield _gauges(
        "tangram_gpu_memory_used_bytes", "Memory of a GPU in use, whoever has it.",
        ["node", "gpu"], ((key, used) for key, _, used in gpus),
    )  # fmt: skip
    memory = list(standing.service_memory())
    yield _gauges(
        "tangram_gpu_service_host_memory_used_bytes", "Host memory that GPU services take.",
        ["node"], (((node,), used) for node, used, _ in memory),
    )  # fmt: skip
    yield _gauges(
        "tangram_gpu_service_host_memory_capacity_bytes", "Host memory that GPU services may take.",
        ["node"], (((node,), capacity) for node, _, capacity in memory),
    )  # fmt: skip


def _of_pools(pools: list[dict[str, Any]]) -> Iterator[Metric]:
    yield _gauges(
        "tangram_queue_depth", "Actions that wait.", ["pool"],
        (((pool["name"],), pool["queued"]) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_queue_oldest_age_seconds", "How long the oldest of them has waited.", ["pool"],
        (((pool["name"],), pool["oldest_seconds"] or 0.0) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_actions_live", "Actions that are not over, by state.", ["pool", "state"],
        (
            ((pool["name"], state), pool[state])
            for pool in pools
            for state in ("queued", "granted", "running")
        ),
    )  # fmt: skip
    yield _gauges(
        "tangram_pool_paused", "1 while a pool grants nothing.", ["pool"],
        (((pool["name"],), float(pool["paused"])) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_pool_capacity_units", "Units there are.", ["pool", "resource"],
        (((pool["name"], "cpu"), pool["cores_total"]) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_pool_allocated_units", "Units that are granted.", ["pool", "resource"],
        (((pool["name"], "cpu"), pool["cores_held"]) for pool in pools),
    )  # fmt: skip


def _of_resources(resources: list[dict[str, Any]]) -> Iterator[Metric]:
    yield _gauges(
        "tangram_resource_capacity_units", "Units of a resource of the whole cluster.",
        ["resource"], (((r["name"],), r["capacity"]) for r in resources),
    )  # fmt: skip
    yield _gauges(
        "tangram_resource_allocated_units", "Of them, units that are granted.",
        ["resource"], (((r["name"],), r["held"]) for r in resources),
    )  # fmt: skip


def _of_quotas(paced: dict[str, Any]) -> Iterator[Metric]:
    """Yield how resources that count over time stand."""
    quotas = [((name, _window(quota)), quota) for name, r in paced.items() for quota in r["quotas"]]
    labels = ["resource", "window"]
    yield _gauges(
        "tangram_quota_limit_units", "Units that a quota grants in any window.", labels,
        ((key, quota["units"]) for key, quota in quotas),
    )  # fmt: skip
    yield _gauges(
        "tangram_quota_used_units", "Of them, units granted in the present window.", labels,
        ((key, quota["used"]) for key, quota in quotas),
    )  # fmt: skip
    yield _gauges(
        "tangram_resource_ceiling_units", "Most that may be open at once, as far as was learned.",
        ["resource"], (((name,), r["ceiling"]) for name, r in paced.items()),
    )  # fmt: skip
    yield _gauges(
        "tangram_resource_hindered", "1 while the API is paused or its breaker is open.",
        ["resource"], (((name,), float(bool(r["hindrance"]))) for name, r in paced.items()),
    )  # fmt: skip


def _of_shares(shares: list[dict[str, Any]]) -> Iterator[Metric]:
    """Yield what projects have of what they share."""
    for name, text, member in (
        ("nominal", "Units that are a project's own share.", "nominal"),
        ("used", "Units of what is shared that a project's actions hold.", "used"),
        ("borrowed", "Of them, units beyond its own share.", "borrowed"),
    ):
        yield _gauges(
            f"tangram_share_{name}_units", text, ["pool", "resource", "project"],
            (((s["pool"] or "", s["resource"], s["project"]), s[member]) for s in shares),
        )  # fmt: skip


def _window(quota: dict[str, Any]) -> str:
    seconds = quota["window_seconds"]
    return f"{seconds:g}s" if seconds else f"day {quota['zone']}"


def _of_nodes(nodes: list[dict[str, Any]]) -> Iterator[Metric]:
    pools = sorted({node["pool"] for node in nodes})
    yield _gauges(
        "tangram_nodes", "Nodes, by state.", ["pool", "state"],
        (
            ((pool, state), sum((n["pool"], n["state"]) == (pool, state) for n in nodes))
            for pool in pools
            for state in NODE_STATES
        ),
    )  # fmt: skip
    for name, text, field in (
        ("tangram_environments", "Environments of trajectories.", "environments"),
        ("tangram_pool_memory_capacity_bytes", "Memory there is.", "memory_total_bytes"),
        ("tangram_pool_memory_allocated_bytes", "Memory that is reserved.", "memory_held_bytes"),
    ):
        sums = [((pool,), sum(n[field] for n in nodes if n["pool"] == pool)) for pool in pools]
        yield _gauges(name, text, ["pool"], sums)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(
    name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _counter(name: str, text: str, labels: list[str], values: Mapping[Any, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family


def _histogram(
    name: str,
    text: str,
    labels: list[str],
    values: Mapping[tuple[str], Histogram] | Mapping[tuple[str, str], Histogram],
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in sorted(values.items()):
        family.add_metric(key, _buckets(histogram.counts, BOUNDS), histogram.sum_seconds)
    return family


def _buckets(counts: list[int], bounds: Iterable[float]) -> list[tuple[str, float]]:
    """Return (upper bound, how many are not above it), as Prometheus wants it."""
    names = [*(str(bound) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
