"""Stranded actions: waiting actions that could not run under another configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

from domain.action import ActionState
from tangram_web.operations.live_counts import live_rows
from tangram_web.pools.applying import Change


class StrandedAction(NamedTuple):
    """A waiting action that could not run any more, and why."""

    action_id: str
    project: str
    why: str


def stranded_by(changes: list[Change]) -> list[StrandedAction]:
    """Return the waiting actions that could not run after ``changes``."""
    most, targets, pools = _afterwards(changes)
    if not (most or targets or pools):
        return []
    return [
        StrandedAction(row.id, row.project, why)
        for row in live_rows()
        if row.state == ActionState.QUEUED
        if (why := _why(row, most, targets, pools))
    ]


def _afterwards(changes: list[Change]) -> tuple[dict[str, float], set[str], set[str]]:
    """Return the new limits by resource, and the targets of calls and the pools that are deleted."""
    most: dict[str, float] = {}
    for each in changes:
        if each.kind == "Resource":
            after = each.after or {}
            quotas = [quota["units"] for quota in after.get("quotas", ())]
            most[each.name] = min([after.get("limit_units", 0), *quotas])
    gone = {kind: {c.name for c in changes if c.kind == kind and c.verb == "delete"}
            for kind in ("GpuService", "Fleet", "Pool")}  # fmt: skip
    targets = {f"service:{name}" for name in gone["GpuService"]}
    targets |= {f"fleet:{name}" for name in gone["Fleet"]}
    return most, targets, gone["Pool"]


def _why(row: Any, most: dict[str, float], targets: set[str], pools: set[str]) -> str:
    for name, counts in row.cost.items():
        least = min(counts) if isinstance(counts, list) and counts else 0
        if name in most and least > most[name]:
            return f"needs {least:g} of {name}; at most {most[name]:g} after the change"
    target = ((row.spec or {}).get("call") or {}).get("target", "")
    if target in targets:
        return f"calls {target}, which is deleted"
    return f"waits in pool {row.pool}, which is deleted" if row.pool in pools else ""
