"""What pages of verbs show."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from tangram_web.acting.table import VERBS
from tangram_web.audit.models import AuditEntry
from tangram_web.dashboard.insight import asked
from tangram_web.lib import ask
from tangram_web.pools.models import GpuServiceRow, NodeDrain, Pool, Resource
from tangram_web.records.models import NodeRecord

#: Verbs of entries whose name differs from that of the page: what services write.
_AS_WRITTEN = {
    ("pool", "update"): ("policy", "paused"),
    ("resource", "set"): ("limit_units",),
    ("task", "prioritise"): ("priority",),
}


def done_by(request_id: str = "", entry: int | None = None) -> AuditEntry | None:
    """Return the last thing that one request did, or one entry."""
    which = {"pk": entry} if entry is not None else {"request_id": request_id}
    return AuditEntry.objects.filter(**which).order_by("-id").first()


def undo_of(entry: AuditEntry) -> dict[str, str] | None:
    """Return title and address of the verb that takes an entry back; None when nothing does."""
    kind, _, name = entry.target.partition("/")
    verb, given = _taken_back(kind, entry)
    if verb is None:
        return None
    address = reverse("acting:verb", args=[kind, verb])
    return {
        "title": VERBS[kind, verb].title,
        "address": f"{address}?{urlencode({'target': name, **given})}",
    }


def _taken_back(kind: str, entry: AuditEntry) -> tuple[str | None, dict[str, Any]]:
    known = VERBS.get((kind, entry.verb))
    if known is not None:
        return known.undo or None, {}
    before, after = entry.before or {}, entry.after or {}
    for member in _AS_WRITTEN.get((kind, entry.verb), ()):
        if member in before and before[member] != after.get(member):
            if member == "paused":
                return ("pause" if before[member] else "resume"), {}
            given = "" if before[member] is None else before[member]
            return {"limit_units": "limit"}.get(member, member), {member: given}
    return None, {}


def back_to(kind: str, name: str) -> str:
    """Return the page on which a target is shown."""
    if kind in ("action", "task"):
        return reverse(f"dashboard:{kind}", args=[name])
    return reverse("acting:operate")


def standing() -> dict[str, Any]:
    """Return everything that the page of operating shows."""
    status, problem = asked(ask.status)
    drained = dict(NodeDrain.objects.values_list("node", "reason"))
    nodes = [
        {"name": row.name, "pool": row.pool, "state": row.state, "drained": row.name in drained,
         "reason": drained.get(row.name, "")}
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
