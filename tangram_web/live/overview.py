"""The body of the overview frame."""

from __future__ import annotations

from typing import Any, Final

from domain.inventory import PoolConfig
from domain.resources import MILLI
from tangram_web.live.capacity import Capacity
from tangram_web.live.flow import Flow
from tangram_web.live.population import RATE_SECONDS, Live, Population

#: Actions that wait longest, as rows.
WAITERS: Final = 20


def overview_body(
    population: Population, capacity: Capacity, flow: Flow, at: float, wall_offset: float
) -> dict[str, Any]:
    """Say how the whole system stands at journal time ``at``."""
    held, there = capacity.cores_of()
    waiters = population.everything.oldest(WAITERS)
    return {
        "counts": population.everything.counts(),
        "submitted_per_second": flow.history.rate("submitted", RATE_SECONDS),
        "finished_per_second": flow.history.rate("finished", RATE_SECONDS),
        "oldest_seconds": _age(waiters, at),
        "cores": {"held": held, "total": there},
        "durations": flow.durations(),
        "outcomes": flow.outcomes(),
        "pools": _pools(population, capacity, at),
        "resources": capacity.cluster_resources(),
        "waiting": [_waiter(live, at, wall_offset) for live in waiters],
        "finished": flow.newest(wall_offset),
    }


def _age(waiters: list[Live], at: float) -> float | None:
    return max(0.0, at - waiters[0].submitted_at) if waiters else None


def _pools(population: Population, capacity: Capacity, at: float) -> list[dict[str, Any]]:
    nodes = [node.inventory.pool for node in capacity.nodes.values()]
    names = {*capacity.config.pools, *population.pools, *nodes}
    return [_pool(name, population, capacity, nodes.count(name), at) for name in sorted(names)]


def _pool(
    name: str, population: Population, capacity: Capacity, nodes: int, at: float
) -> dict[str, Any]:
    config = capacity.config.pools.get(name, PoolConfig(name))
    standing = population.pool(name)
    held, there = capacity.cores_of(name)
    return {
        "name": name,
        "policy": config.policy,
        "paused": config.paused,
        **standing.counts(),
        "submitted_per_second": standing.rate(finished=False),
        "finished_per_second": standing.rate(finished=True),
        "oldest_seconds": _age(standing.oldest(1), at),
        "cores_held": held,
        "cores_total": there,
        "nodes": nodes,
    }


def _waiter(live: Live, at: float, wall_offset: float) -> dict[str, Any]:
    return {
        "id": live.id,
        "project": live.project,
        "task": live.task,
        "trajectory": live.trajectory,
        "kind": live.kind.value if live.kind else None,
        "pool": live.pool,
        "asked": {name: [count / MILLI for count in counts] for name, counts in live.cost.items()},
        "waited_seconds": max(0.0, at - live.submitted_at),
        "submitted": live.submitted_at + wall_offset,
    }
