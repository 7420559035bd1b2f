"""Rows of the overview: pools, actions that wait longest, and what queued actions need."""

from __future__ import annotations

from typing import Any

from domain.inventory import PoolConfig
from domain.resources import MILLI
from tangram_web.live.capacity import Capacity
from tangram_web.live.open_actions import OpenAction, OpenActions


def wait_seconds(oldest: list[OpenAction], at: float) -> float | None:
    """Return how long the first of these actions has waited; None without one."""
    return max(0.0, at - oldest[0].submitted_at) if oldest else None


def pool_rows(open_actions: OpenActions, capacity: Capacity, at: float) -> list[dict[str, Any]]:
    """Return the pools by name, with the counts of their actions and what their nodes have."""
    nodes = {node.inventory.pool for node in capacity.nodes.values()}
    names = {*capacity.config.pools, *open_actions.pools, *nodes}
    return [_pool_row(name, open_actions, capacity, at) for name in sorted(names)]


def _pool_row(
    name: str, open_actions: OpenActions, capacity: Capacity, at: float
) -> dict[str, Any]:
    lost = [node.lost for node in capacity.nodes.values() if node.inventory.pool == name]
    config = capacity.config.pools.get(name, PoolConfig(name))
    actions = open_actions.of_pool(name)
    held, total = capacity.cores_of(name)
    return {
        "name": name,
        "policy": config.policy,
        "paused": config.paused,
        **actions.counts(),
        "submitted_per_second": actions.rate(finished=False),
        "finished_per_second": actions.rate(finished=True),
        "oldest_seconds": wait_seconds(actions.oldest(1), at),
        "cores_held": held,
        "cores_total": total,
        "cores_lost": capacity.lost_cores(name),
        "gpus": capacity.gpus_of(name),
        "nodes": len(lost),
        "nodes_lost": sum(lost),
    }


def waiting_row(action: OpenAction, at: float, wall_offset: float) -> dict[str, Any]:
    """Return a queued action as the list of those that wait longest has it."""
    cost = {name: [count / MILLI for count in counts] for name, counts in action.cost.items()}
    return {
        "id": action.id,
        "project": action.project,
        "task": action.task,
        "trajectory": action.trajectory,
        "kind": action.kind.value if action.kind else None,
        "pool": action.pool,
        "asked": cost,
        "waited_seconds": max(0.0, at - action.submitted_at),
        "submitted": action.submitted_at + wall_offset,
    }


def wanted_rows(open_actions: OpenActions, at: float) -> list[dict[str, Any]]:
    """Return what queued actions need, by pool and resource."""
    return [
        {
            "pool": pool,
            "resource": resource,
            "waiting": wanted.waiting,
            "units": wanted.amount / MILLI,
            "oldest_seconds": max(0.0, at - wanted.oldest_at),
        }
        for pool in sorted(open_actions.pools)
        for resource, wanted in sorted(open_actions.of_pool(pool).wanted().items())
    ]
