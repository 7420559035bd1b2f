"""Cores, GPUs and counted resources with their holders, limited to what a reader may see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import time
from typing import Any, Final, NamedTuple

import redis
from django.http import QueryDict

from contract.responses import QueuesResponse
from tangram_web.lib import bus
from tangram_web.live.access import Sight
from tangram_web.live.gpu_history import STEP_SECONDS, GpuHistoryStore
from tangram_web.live.gpu_use import GpuUse, UseRow, card_rows, chunk_rows, gpu_uses
from tangram_web.live.topic_store import stored_snapshot
from tangram_web.live.topics import HOLDERS, NODES
from tangram_web.metrics.reading import read_system
from tangram_web.pools.selectors import declared_resources
from tangram_web.pools.visibility import visible_struct

NO_INSTANT: Final = "at is an instant of the past, in seconds since 1970"


def scene_node_seen_by(sight: Sight, node: dict[str, Any]) -> dict[str, Any]:
    """Return a node of the GPU history in which holders of hidden projects have no name."""
    theirs = [one["units"] for one in node["holders"] if not sight.sees(one["project"])]
    if not theirs:
        return node
    holders = [one for one in node["holders"] if sight.sees(one["project"])]
    return node | {"holders": holders, "gpus": node["gpus"] | {"others": ",".join(theirs)}}


def instant_of(query: QueryDict, now: float) -> float | None:
    """Return ``at`` of a query in seconds since 1970; None when it is no instant of the past."""
    try:
        at = float(query.get("at", ""))
    except ValueError:
        return None
    return at if 0 <= at <= now + 60 else None


def scrub_of(query: QueryDict, now: float) -> tuple[dict[str, Any] | None, str]:
    """Return span and position of the time slider of the GPU map, and what is wrong with the query.

    Without a stored history there is no slider.
    """
    at = None
    if "at" in query:
        at = instant_of(query, now)
        if at is None:
            return None, f"{NO_INSTANT}."
    try:
        span = GpuHistoryStore(bus.redis_client(), bus.keys()).span()
    except redis.RedisError:
        span = None
    if span is None:
        return ({"oldest": int(at), "newest": int(at), "at": int(at)} if at else None), ""
    # States that do not change are not stored again at each step: the slider ends at the present.
    newest = max(span[1], int(now) // STEP_SECONDS * STEP_SECONDS)
    return {"oldest": span[0], "newest": newest, "at": None if at is None else int(at)}, ""


def resource_addresses(sight: Sight) -> dict[str, str]:
    """Return the base URL of each declared resource; empty: it has none, or the reader may not know it."""
    return {
        name: "" if spec.api is None else visible_struct(spec.api, sight.projects).base_url
        for name, spec in declared_resources().items()
    }


def api_rows(
    resources: dict[str, Any],
    addresses: Mapping[str, str],
    queues: QueuesResponse | None,
    shares: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return one row per resource of the whole cluster, by name.

    ``resources`` and ``shares`` are those of the scheduler's status, in units; ``addresses``: `resource_addresses`.
    """
    waiting: Counter[str] = Counter()
    for line in queues.items if queues is not None else ():
        if line.why.resource is not None:
            waiting[line.why.resource] += line.waiting
    return [
        {
            "name": name,
            "base_url": addresses[name],
            "capacity": stands["capacity"],
            "held": round(stands["capacity"] - stands["free"], 3),
            "ceiling": stands.get("ceiling"),
            "hindrance": stands.get("hindrance"),
            "quotas": stands.get("quotas", []),
            "waiting": waiting[name],
            "shares": [s for s in shares if s["resource"] == name and s["pool"] is None],
        }
        for name, stands in sorted(resources.items())
        if name in addresses
    ]


class ApiStanding(NamedTuple):
    """The judgement on a resource: what its chip says."""

    #: ``ready``, ``full``, ``paused`` or ``exhausted``.
    name: str
    says: str


def standing_of(row: Mapping[str, Any]) -> ApiStanding:
    """Return whether actions can start on the resource of a row of `api_rows`."""
    if any(quota["left"] <= 0 for quota in row["quotas"]):
        return ApiStanding("exhausted", "quota used up")
    if row["hindrance"]:
        return ApiStanding("paused", row["hindrance"])
    if row["waiting"] and row["held"] >= row["capacity"]:
        return ApiStanding("full", "all units held")
    return ApiStanding("ready", "available")


def holders_of(sight: Sight, kind: str) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether a node offers ``kind``, and its holders according to the newest frames.

    Holders of projects that may not be seen are left out.
    """
    client = bus.redis_client()
    try:
        nodes, held = stored_snapshot(client, NODES), stored_snapshot(client, HOLDERS)
    except redis.RedisError:
        nodes, held = {}, {}
    offers = [row for row in nodes.get("nodes", []) if kind == "cpu" or row["gpus"]["groups"]]
    now = time()
    holders = [
        {"node": row["name"], "held_seconds": max(0.0, now - holder["since"]), **holder}
        for row in held.get("nodes", [])
        for holder in row["holders"]
        if holder["kind"] == kind and sight.sees(holder["project"])
    ]
    return bool(offers), holders


def uses_now() -> list[GpuUse]:
    """Return the use of each GPU, from the newest frames and the latest heartbeats. Raises redis.RedisError."""
    client = bus.redis_client()
    nodes = stored_snapshot(client, NODES).get("nodes", [])
    held = stored_snapshot(client, HOLDERS).get("nodes", [])
    return gpu_uses(nodes, held, read_system(client, bus.keys()).gpus())


def card_use() -> tuple[list[UseRow], dict[tuple[str, str], UseRow]]:
    """Return the rows of all cards, and those of held chunks by node and GPUs; none when Redis does not answer."""
    try:
        uses = uses_now()
    except redis.RedisError:
        uses = []
    return card_rows(uses), {(row.node, row.gpus): row for row in chunk_rows(uses)}


def service_memory() -> list[dict[str, Any]]:
    """Return the host memory that GPU services use on each node, from its latest heartbeat."""
    try:
        standing = read_system(bus.redis_client(), bus.keys())
    except redis.RedisError:
        return []
    return [
        {
            "node": node,
            "used_bytes": used,
            "capacity_bytes": capacity,
            "share": used / capacity if capacity else 0.0,
        }
        for node, used, capacity in sorted(standing.service_memory())
    ]
