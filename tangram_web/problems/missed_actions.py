"""Waiting actions that the live frames do not know: the journal no longer holds their submission. Pure.

A fold that begins again knows what the retained journal has. An action that has waited for longer than that is
known to the scheduler alone, and would be missing from counts exactly when a system has been stuck for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tangram_web.problems.facts import QueueFact


def with_missed(
    overview: dict[str, Any], pools: Mapping[str, Mapping[str, Any]], queues: Iterable[QueueFact]
) -> dict[str, Any]:
    """Return the overview with the scheduler's counts of pools in which more actions wait than it knows."""
    missed = {
        row["name"]: pools[row["name"]]["queued"]
        for row in overview["pools"]
        if row["name"] in pools and pools[row["name"]]["queued"] > row["queued"]
    }
    if not missed:
        return overview
    rows = [row | {"queued": missed.get(row["name"], row["queued"])} for row in overview["pools"]]
    counts = overview["counts"] | {"queued": sum(row["queued"] for row in rows)}
    wanted = {(row["pool"], row["resource"]): row for row in overview["wanted"]}
    for key, need in _needs(queue for queue in queues if queue.pool in missed).items():
        if need["waiting"] > wanted.get(key, {"waiting": 0})["waiting"]:
            wanted[key] = need
    return overview | {"pools": rows, "counts": counts, "wanted": list(wanted.values())}


def _needs(queues: Iterable[QueueFact]) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for queue in queues:
        for resource, units in queue.needs.items():
            key = (queue.pool, resource)
            before = found.get(key, {"waiting": 0, "units": 0.0, "oldest_seconds": 0.0})
            found[key] = {
                "pool": queue.pool,
                "resource": resource,
                "waiting": before["waiting"] + queue.waiting,
                "units": before["units"] + units * queue.waiting,
                "oldest_seconds": max(before["oldest_seconds"], queue.waited_seconds),
            }
    return found
