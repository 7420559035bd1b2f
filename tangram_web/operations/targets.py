"""Finding what a verb is done to. Raises Gone for what is over, NotFound for what never was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domain.action import ActionState
from domain.errors import NotFound, Unavailable
from tangram_web.lib import scheduler_client
from tangram_web.operations.verbs import Gone, Target
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
        raise Gone(f"action {name} is over: {row.outcome}")
    now = {"state": row.state, "task": row.task, "trajectory": row.trajectory}
    return Target(kind="action", name=name, project=row.project, now=now)


def _task(name: str) -> Target:
    row = _row(TaskRecord.objects.filter(pk=name), "task", name)
    return Target(kind="task", name=name, project=row.project, now=steering(name))


def steering(key: str) -> dict[str, Any]:
    """Return what the scheduler was told of a task as a whole."""
    try:
        told = scheduler_client.status().get("steered_tasks", {})
    except Unavailable:
        told = {}
    plain = {"paused": False, "priority": None}
    return {**plain, **told.get(key, {})}


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
