"""What pages of verbs show."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from tangram_web.audit.models import AuditEntry
from tangram_web.dashboard.insight import asked
from tangram_web.lib import scheduler_client
from tangram_web.pools.models import GpuServiceRow, NodeDrain, Pool, Resource
from tangram_web.records.models import NodeAvailability, NodeRecord


def done_by(request_id: str = "", entry: int | None = None) -> AuditEntry | None:
    """Return the last thing that one request did, or one entry."""
    which = {"pk": entry} if entry is not None else {"request_id": request_id}
    return AuditEntry.objects.filter(**which).order_by("-id").first()


def back_to(kind: str, name: str) -> str:
    """Return the page on which a target is shown."""
    if kind in ("action", "task"):
        return reverse(f"dashboard:{kind}", args=[name])
    return reverse("operations:operate")


def standing() -> dict[str, Any]:
    """Return everything that the page of operating shows."""
    status, problem = asked(scheduler_client.status)
    drained = dict(NodeDrain.objects.values_list("node", "reason"))
    nodes = [
        {"name": row.name, "pool": row.pool, "state": row.state, "drained": row.name in drained,
         "lost": row.state == NodeAvailability.LOST, "reason": drained.get(row.name, "")}
        for row in NodeRecord.objects.order_by("name")
    ]  # fmt: skip
    census: dict[str, Any] = {} if status is None else status["pools"]
    pools = [
        {"name": row.name, "policy": row.policy, "paused": row.paused,
         "counts": census.get(row.name, {})}
        for row in Pool.objects.order_by("name")
    ]  # fmt: skip
    return {
        "problem": problem,
        "nodes": nodes,
        "pools": pools,
        "resources": Resource.objects.order_by("name"),
        "services": [
            {"name": row.name, "quarantined": row.spec.get("quarantined", False)}
            for row in GpuServiceRow.objects.order_by("name")
        ],
        "steered": {} if status is None else status.get("steered_tasks", {}),
    }
