"""Metric families of Prometheus, from totals and the present state.

`families` and those beside it yield all families of `/metrics`; documents, alert rules and
the dashboard may use no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from contract.batch_status import BATCHES_MADE, SENT_BY_GATEWAY, SENT_BY_WORKERS
from contract.fleet_status import FleetStatus
from domain.action import Outcome
from domain.rollouts import RolloutOutcome
from domain.version import VERSION
from tangram_web.metrics.reading import SystemReading
from tangram_web.metrics.requests import BOUNDS as REQUEST_BOUNDS
from tangram_web.metrics.requests import RequestTotals
from tangram_web.metrics.totals import BOUNDS, MEMORY_BOUNDS, PHASES, Histogram, Totals

#: Roles of workers.
ROLES = ("loop", "standby", "node", "projector", "jobs", "rollout", "web")
NODE_STATES = ("ready", "drained", "lost")


def families(
    totals: Totals,
    system: SystemReading,
    overview: dict[str, Any],
    nodes: dict[str, Any],
    resources: dict[str, Any],
    shares: list[dict[str, Any]],
    fleets: Sequence[FleetStatus] = (),
) -> Iterator[Metric]:
    """Yield all metric families of one scrape; a frame is empty before its first publication.

    ``resources`` and ``shares`` are those of `GET /status`.
    """
    yield from _of_actions(totals)
    yield from _of_gpu_services(totals)
    yield from _of_rollouts(totals)
    yield from _of_generations(totals, fleets)
    yield from _of_fleets(fleets)
    yield from _of_leader(system)
    yield from _of_streams(system)
    yield from _of_workers(system)
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


def families_of_batches(totals: Mapping[bytes, bytes]) -> Iterator[Metric]:
    """Yield what ranks of trainers pulled; ``totals`` as Redis stores them (`contract.batch_status`)."""
    counts = {name.decode(): float(count) for name, count in totals.items()}
    made = counts.get(BATCHES_MADE, 0.0)
    yield _counter("tangram_batches_made", "Batches for ranks of trainers.", [], {(): made})
    yield _counter(
        "tangram_batch_bytes", "Bytes of rows that were sent to ranks, by who sent them.", ["sender"],
        {("worker",): counts.get(SENT_BY_WORKERS, 0.0), ("gateway",): counts.get(SENT_BY_GATEWAY, 0.0)},
    )  # fmt: skip


def families_of_requests(totals: RequestTotals) -> Iterator[Metric]:
    """Yield the requests of all web processes together."""
    # As with actions: the first error of a route is an increase over this 0.
    none = {(method, route, "500"): 0 for method, route, _ in totals.requests}
    yield _counter(
        "tangram_http_requests", "HTTP requests, by route and status.", ["method", "route", "status"],
        none | totals.requests,
    )  # fmt: skip
    seconds = HistogramMetricFamily(
        "tangram_http_request_seconds", "From a request to the end of its answer.", labels=["route"]
    )
    for key, counts in sorted(totals.counts.items()):
        seconds.add_metric(key, _buckets(counts, REQUEST_BOUNDS), totals.seconds.get(key, 0.0))
    yield seconds


def _of_actions(totals: Totals) -> Iterator[Metric]:
    yield _counter(
        "tangram_actions_submitted", "Actions accepted.", ["project", "pool", "kind"],
        totals.submitted,
    )  # fmt: skip
    yield _counter(
        "tangram_actions", "Finished actions.", ["project", "pool", "kind", "outcome"],
        _ends(totals),
    )  # fmt: skip
    yield _counter(
        "tangram_actions_requeued",
        "Grants that were revoked before their action ran.",
        ["pool"],
        totals.requeued,
    )
    yield _counter(
        "tangram_actions_resized", "Resizes of running actions.", ["pool"], totals.resized
    )
    yield _counter(
        "tangram_environment_moves", "Moves of environments from draining nodes that have ended.",
        ["pool", "end"], totals.moves,
    )  # fmt: skip
    yield _histogram(
        "tangram_action_completion_seconds", "Action completion time (ACT) of finished actions.",
        ["pool", "kind"], totals.completion,
    )  # fmt: skip
    for name, text, sums in (
        ("granted_cpu", "Core seconds granted to actions whose use is measured.",
         totals.granted_cpu_seconds),
        ("used_cpu", "Core seconds that they used.", totals.used_cpu_seconds),
        ("throttled", "Seconds for which the CPU quota of light actions throttled them.",
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
    yield _histogram(
        "tangram_action_phase_seconds", f"Parts of ACT: {', '.join(PHASES)}.",
        ["pool", "phase"], totals.phases,
    )  # fmt: skip


def _of_gpu_services(totals: Totals) -> Iterator[Metric]:
    yield _counter(
        "tangram_gpu_service_calls",
        "Grants to calls of GPU services that were in memory on the chunk, or were restored.",
        ["pool", "memory"], totals.service_calls,
    )  # fmt: skip
    yield _counter(
        "tangram_gpu_evictions", "Services evicted from GPU memory.", ["pool"],
        totals.evictions,
    )  # fmt: skip
    yield _counter(
        "tangram_gpu_restores_ahead",
        "Services restored on idle chunks before a grant, and those that a call then used.",
        ["pool", "what"], totals.ahead,
    )  # fmt: skip
    yield _histogram(
        "tangram_gpu_restore_seconds", "Restores of a service on its chunk, evictions included.",
        ["pool"], totals.restores,
    )  # fmt: skip


def _of_rollouts(totals: Totals) -> Iterator[Metric]:
    yield _counter(
        "tangram_rollouts_submitted", "Rollouts accepted.", ["project"], totals.rollouts_submitted
    )
    # As with actions: the first failure of a project is an increase over this 0.
    none = {(*key, end.value): 0 for key in totals.rollouts_submitted for end in RolloutOutcome}
    yield _counter(
        "tangram_rollouts", "Finished rollouts.", ["project", "outcome"],
        none | totals.rollouts_finished,
    )  # fmt: skip
    yield _counter(
        "tangram_rollouts_reassigned",
        "Assignments of rollouts after the first one: their worker was lost, or they were resumed.",
        ["project"],
        totals.rollouts_reassigned,
    )
    yield _counter(
        "tangram_rollout_tokens", "Tokens of finished rollouts.", ["project", "kind"],
        totals.rollout_tokens,
    )  # fmt: skip
    yield _histogram(
        "tangram_rollout_stage_seconds",
        "Times of the stages of finished rollouts: queued for the lease, and active with it.",
        ["stage", "time"], totals.stages,
    )  # fmt: skip


def _of_generations(totals: Totals, fleets: Sequence[FleetStatus]) -> Iterator[Metric]:
    # As with actions: the first failure of a fleet is an increase over this 0.
    known = {fleet for fleet, _ in totals.generations} | {each.name for each in fleets}
    none = {(fleet, outcome.value): 0 for fleet in known for outcome in Outcome}
    yield _counter(
        "tangram_generations", "Finished generations of fleets.", ["fleet", "outcome"],
        none | totals.generations,
    )  # fmt: skip
    yield _counter(
        "tangram_generation_tokens",
        "Tokens of finished generations: of prompts, of them those in a cache, and sampled ones.",
        ["fleet", "kind"], totals.generation_tokens,
    )  # fmt: skip


def _of_fleets(fleets: Sequence[FleetStatus]) -> Iterator[Metric]:
    """Yield the workers of fleets as the scheduler has them now."""
    workers = [((fleet.name, each.facts.name), each) for fleet in fleets for each in fleet.workers]
    labels = ["fleet", "worker"]
    for name, text, value in (
        ("fleet_slots", "Generations that a worker runs at once.", lambda w: w.facts.slots),
        ("fleet_running_generations", "Slots that generations hold.", lambda w: w.running),
        ("fleet_waiting_generations", "Generations that wait for a slot of their worker.",
         lambda w: w.waiting),
        ("fleet_worker_healthy", "1 while a worker answers its health checks.",
         lambda w: not w.facts.unhealthy),
        ("fleet_worker_drained", "1 while a worker is drained.", lambda w: w.facts.drained),
    ):  # fmt: skip
        values = ((key, float(value(each))) for key, each in workers)
        yield _gauges(f"tangram_{name}", text, labels, values)
    yield _gauges(
        "tangram_fleet_unrouted_generations", "Generations that have no worker, by the code of their wait.",
        ["fleet", "code"],
        (((each.name, code), count) for each in fleets for code, count in each.unrouted.items()),
    )  # fmt: skip
    yield _gauges(
        "tangram_fleet_trajectories", "Trajectories that are not finished.", ["fleet"],
        (((each.name,), each.live) for each in fleets),
    )  # fmt: skip


def _ends(totals: Totals) -> dict[tuple[str, str, str, str], int]:
    """Return finished actions by outcome, with a 0 for outcomes that did not occur yet.

    Prometheus does not count the first value of a series as an increase: without the 0 the first
    failures of a pool, however many, would raise no alert.
    """
    known = {key[:3] for key in totals.finished} | totals.submitted.keys()
    return {(*key, outcome.value): 0 for key in known for outcome in Outcome} | totals.finished


def _of_leader(system: SystemReading) -> Iterator[Metric]:
    yield _gauge("tangram_scheduler_leader", "1 while a loop leads.", float(bool(system.leader)))
    yield _gauge("tangram_scheduler_epoch", "Leaders elected so far.", system.epoch)
    if system.tick_lag_seconds is not None:
        yield _gauge(
            "tangram_scheduler_life_age_seconds", "Seconds since the leader's last heartbeat.",
            system.tick_lag_seconds,
        )  # fmt: skip
    life = system.life_of_leader()
    if "pass_counts" in life:
        passes = HistogramMetricFamily(
            "tangram_scheduler_tick_seconds",
            "Scheduling cycles of the present leader: deciding, committing and answering.",
        )
        passes.add_metric([], _buckets(life["pass_counts"], life["pass_bounds"]), life["pass_sum"])
        yield passes
    if "refused_reports" in life:
        yield _gauge(
            "tangram_refused_reports",
            "Reports that the present leader refused: of a node about another node, or of a kind that nodes do not send.",
            life["refused_reports"],
        )
    if "redis_risks" in life:
        yield _gauge(
            "tangram_redis_durable", "1 if Redis writes to disk before it answers and evicts nothing.",
            float(not life["redis_risks"]),
        )  # fmt: skip


def _of_streams(system: SystemReading) -> Iterator[Metric]:
    for name, text, value in (
        ("tangram_inbox_entries", "Inbox entries that the leader has not read yet.", system.inbox_entries),
        ("tangram_dead_letters", "Messages set aside because they could not be processed.", system.dead_letters),
    ):  # fmt: skip
        yield _gauge(name, text, value)
    yield _gauges(
        "tangram_standby_lag_seconds", "Age of the last entry in a standby's state, against the newest entry.",
        [], (((), seconds) for seconds in system.standby_lag()),
    )  # fmt: skip
    behind = [((name,), lag) for name, lag in system.lags.items()]
    yield _gauges(
        "tangram_stream_lag_entries", "Journal entries that a reader has not read yet.", ["reader"],
        ((name, lag.entries) for name, lag in behind),
    )  # fmt: skip
    yield _gauges(
        "tangram_stream_lag_seconds", "Age of the last entry that a reader has read, against the newest entry.",
        ["reader"], ((name, lag.seconds) for name, lag in behind),
    )  # fmt: skip


def _of_workers(system: SystemReading) -> Iterator[Metric]:
    yield _counter(
        "tangram_cpuset_repairs", "Cpusets of containers that were changed from outside and repaired.",
        ["node"], system.repairs(),
    )  # fmt: skip
    yield from _of_gpus(system)
    yield from _of_warm(system)
    yield _gauges(
        "tangram_workers", "Live workers.", ["role"],
        (((role,), sum(w["role"] == role for w in system.workers)) for role in ROLES),
    )  # fmt: skip


def _of_warm(system: SystemReading) -> Iterator[Metric]:
    """Yield the prepared environments of nodes."""
    kept, labels = list(system.warm()), ["node", "image"]
    for member, text in (
        ("wanted", "Prepared environments that a node is to keep."),
        ("kept", "Prepared environments that wait for a trajectory."),
        ("memory_bytes", "Memory of the prepared environments that wait."),
    ):
        values = [(key, facts[member]) for key, facts in kept]
        yield _gauges(f"tangram_warm_environments_{member}", text, labels, values)
    for member, text in (
        (
            "taken",
            "Prepared environments that trajectories took since the node worker started.",
        ),
        ("made", "Environments that were prepared since the node worker started."),
    ):
        counts = {key: facts.get(member, 0) for key, facts in kept}
        yield _counter(f"tangram_warm_environments_{member}", text, labels, counts)


def _of_gpus(system: SystemReading) -> Iterator[Metric]:
    gpus, labels = [((each.node, str(each.gpu)), each) for each in system.gpus()], ["node", "gpu"]
    yield _gauges(
        "tangram_gpu_busy_ratio", "Share of recent samples in which a GPU was busy, by NVML.",
        labels, ((key, use.busy_ratio) for key, use in gpus if use.busy_ratio is not None),
    )  # fmt: skip
    yield _gauges(
        "tangram_gpu_memory_used_bytes", "Memory of a GPU in use by any process.",
        labels, ((key, use.used_bytes) for key, use in gpus),
    )  # fmt: skip
    yield _gauges(
        "tangram_gpu_memory_total_bytes", "Memory of a GPU.",
        labels, ((key, use.total_bytes) for key, use in gpus if use.total_bytes is not None),
    )  # fmt: skip
    memory = list(system.service_memory())
    yield _gauges(
        "tangram_gpu_service_host_memory_used_bytes", "Host memory that GPU services use.",
        ["node"], (((node,), used) for node, used, _ in memory),
    )  # fmt: skip
    yield _gauges(
        "tangram_gpu_service_host_memory_capacity_bytes", "Limit of the host memory that GPU services use.",
        ["node"], (((node,), capacity) for node, _, capacity in memory),
    )  # fmt: skip


def _of_pools(pools: list[dict[str, Any]]) -> Iterator[Metric]:
    yield _gauges(
        "tangram_queue_depth", "Queued actions.", ["pool"],
        (((pool["name"],), pool["queued"]) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_queue_oldest_age_seconds", "Waiting time of the oldest queued action.", ["pool"],
        (((pool["name"],), pool["oldest_seconds"] or 0.0) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_actions_live", "Unfinished actions, by state.", ["pool", "state"],
        (
            ((pool["name"], state), pool[state])
            for pool in pools
            for state in ("queued", "granted", "running")
        ),
    )  # fmt: skip
    yield _gauges(
        "tangram_pool_paused", "1 while a pool is paused.", ["pool"],
        (((pool["name"],), float(pool["paused"])) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_pool_capacity_units", "Units of the pool.", ["pool", "resource"],
        (((pool["name"], "cpu"), pool["cores_total"]) for pool in pools),
    )  # fmt: skip
    yield _gauges(
        "tangram_pool_allocated_units", "Granted units.", ["pool", "resource"],
        (((pool["name"], "cpu"), pool["cores_held"]) for pool in pools),
    )  # fmt: skip


def _of_resources(resources: list[dict[str, Any]]) -> Iterator[Metric]:
    yield _gauges(
        "tangram_resource_capacity_units", "Units of a resource of the whole cluster.",
        ["resource"], (((r["name"],), r["capacity"]) for r in resources),
    )  # fmt: skip
    yield _gauges(
        "tangram_resource_allocated_units", "Granted units of a resource of the whole cluster.",
        ["resource"], (((r["name"],), r["held"]) for r in resources),
    )  # fmt: skip


def _of_quotas(paced: dict[str, Any]) -> Iterator[Metric]:
    """Yield the state of resources with a quota over time."""
    quotas = [((name, _window(quota)), quota) for name, r in paced.items() for quota in r["quotas"]]
    labels = ["resource", "window"]
    yield _gauges(
        "tangram_quota_limit_units", "Units that a quota grants in any window.", labels,
        ((key, quota["units"]) for key, quota in quotas),
    )  # fmt: skip
    yield _gauges(
        "tangram_quota_used_units", "Units granted in the present window of a quota.", labels,
        ((key, quota["used"]) for key, quota in quotas),
    )  # fmt: skip
    yield _gauges(
        "tangram_resource_ceiling_units", "Learned limit of units open at once.",
        ["resource"], (((name,), r["ceiling"]) for name, r in paced.items()),
    )  # fmt: skip
    yield _gauges(
        "tangram_resource_hindered", "1 while the API is paused or its breaker is open.",
        ["resource"], (((name,), float(bool(r["hindrance"]))) for name, r in paced.items()),
    )  # fmt: skip


def _of_shares(shares: list[dict[str, Any]]) -> Iterator[Metric]:
    """Yield the shares of projects in shared resources."""
    for name, text, member in (
        ("nominal", "Nominal share of a project.", "nominal"),
        ("used", "Units of a shared resource that a project's actions hold.", "used"),
        ("borrowed", "Units that a project holds beyond its nominal share.", "borrowed"),
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
        ("tangram_pool_memory_capacity_bytes", "Memory of the pool's nodes.", "memory_total_bytes"),
        (
            "tangram_pool_memory_allocated_bytes",
            "Reserved memory of the pool's nodes.",
            "memory_held_bytes",
        ),
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
    """Return cumulative (upper bound, count) pairs, as Prometheus requires."""
    names = [*(str(bound) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
