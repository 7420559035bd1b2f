"""Targets of verbs, by kind and name. Raises TargetGone for an ended one, NotFound otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domain.action import ActionState
from domain.errors import NotFound, Unavailable
from tangram_web.lib import scheduler_client
from tangram_web.operations.verb import Target, TargetGone
from tangram_web.pools.models import GpuServiceRow, NodeDrain, Pool, Resource
from tangram_web.records.models import ActionRecord, NodeRecord, TaskRecord


def find(kind: str, name: str) -> Target:
    """Return the target of that kind and name, as it is now."""
    if kind not in FINDERS or "\0" in name:
        raise NotFound(f"there is no {kind} {name!r}")
    return FINDERS[kind](name)


def _action(name: str) -> Target:
    row = _row(ActionRecord.objects.filter(pk=name).defer("result"), "action", name)
    if row.state == ActionState.FINISHED:
        raise TargetGone(f"action {name} has finished: {row.outcome}")
    now = {"state": row.state, "task": row.task, "trajectory": row.trajectory}
    return Target(kind="action", name=name, project=row.project, now=now)


def _task(name: str) -> Target:
    row = _row(TaskRecord.objects.filter(pk=name), "task", name)
    return Target(kind="task", name=name, project=row.project, now=steering(name))


def steering(key: str) -> dict[str, Any]:
    """Return whether a task is paused, and its priority."""
    try:
        controls = scheduler_client.status().get("steered_tasks", {})
    except Unavailable:
        controls = {}
    plain = {"paused": False, "priority": None}
    return {**plain, **controls.get(key, {})}


def _node(name: str) -> Target:
    row = _row(NodeRecord.objects.filter(pk=name), "node", name)
    drain = NodeDrain.objects.filter(node=name).first()
    now = {
        "drained": drain is not None,
        "reason": drain.reason if drain else "",
        "state": row.state,
    }
    return Target(kind="node", name=name, now={**now, "pool": row.pool})


def _pool(name: str) -> Target:
    row = _row(Pool.objects.filter(pk=name), "pool", name)
    now = {"paused": row.paused, "policy": row.policy, "shares": row.shares}
    return Target(kind="pool", name=name, now=now)


def _resource(name: str) -> Target:
    row = _row(Resource.objects.filter(pk=name), "resource", name)
    return Target(kind="resource", name=name, now={"limit_units": row.limit_units, **row.spec})


def _service(name: str) -> Target:
    row = _row(GpuServiceRow.objects.filter(pk=name), "service", name)
    return Target(kind="service", name=name, now={"quarantined": False, **row.spec})


def _row(rows: Any, kind: str, name: str) -> Any:
    row = rows.first()
    if row is None:
        raise NotFound(f"there is no {kind} {name!r}")
    return row


FINDERS: Final[dict[str, Callable[[str], Target]]] = {
    "action": _action,
    "task": _task,
    "node": _node,
    "pool": _pool,
    "resource": _resource,
    "service": _service,
}
