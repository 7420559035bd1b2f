"""Pages of what there is and who holds it: cores, GPUs, APIs."""

from __future__ import annotations

from collections import Counter
from time import time
from typing import Any, Final

import redis
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_safe

from contract.responses import QueuesResponse
from domain.inventory import Config
from tangram_web.dashboard.guards import for_viewers, refuse
from tangram_web.dashboard.insight import asked, queues_seen_by, shares_seen_by
from tangram_web.dashboard.past import as_json
from tangram_web.dashboard.scopes import Scope, scope_of
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.access import Sight
from tangram_web.live.gpu_history import GpuHistoryStore
from tangram_web.live.topic_store import stored_snapshot
from tangram_web.live.topics import HOLDERS, NODES
from tangram_web.metrics.reading import read_system
from tangram_web.pools.selectors import current_config

NO_INSTANT: Final = "at is an instant of the past, in seconds since 1970"


@require_safe
@for_viewers
def cpu(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show every node's cores by NUMA node, and who holds them."""
    scope = scope_of(sight, request.GET)
    if scope is None:
        return refuse(request, "No such project", "Choose one of yours.", 404)
    context = {
        "scope": scope,
        "page": "cpu",
        "title": "CPU map",
        "says": "node → NUMA node → core; kept-back cores are not Tangram's and not drawn",
        "empty": "No node has joined. Start a worker on one:",
        "command": "./tangram up",
        **_standing(_within(sight, scope), "cpu"),
    }
    return render(request, "dashboard/map.html", context)


@require_safe
@for_viewers
def gpu(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show every node's GPUs, the chunks that are held of them, and by whom; `?at=` then."""
    scope = scope_of(sight, request.GET)
    if scope is None:
        return refuse(request, "No such project", "Choose one of yours.", 404)
    scrub, problem = scrub_of(request.GET, time())
    if problem:
        return refuse(request, "No such moment", problem, 400)
    context = {
        "scope": scope,
        "scrub": scrub,
        "page": "gpu",
        "title": "GPU map",
        "says": "node → GPU → chunk of 1, 2, 4 or 8",
        "empty": "No node offers GPUs. Nodes offer those that NVML finds, or declare some:",
        "command": "TANGRAM_NODE_GPUS=8 ./tangram up",
        **(
            _standing(_within(sight, scope), "gpu")
            if scrub is None or scrub["at"] is None
            else {"some": True}
        ),
        "memory": service_memory() if scrub is None or scrub["at"] is None else [],
    }
    return render(request, "dashboard/map.html", context)


@require_safe
@for_viewers
def gpu_past(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with how the GPUs stood at an instant of the past (`?at=EPOCH`)."""
    at, scope = instant_of(request.GET, time()), scope_of(sight, request.GET)
    if at is None:
        return as_json({"detail": NO_INSTANT}, 400)
    if scope is None:
        return as_json({"detail": "there is no such project"}, 404)
    sight = _within(sight, scope)
    try:
        scene = GpuHistoryStore(bus.redis_client(), bus.keys()).at(at)
    except redis.RedisError as error:
        return as_json({"detail": f"redis does not answer: {error}"}, 503)
    if scene is None:
        return as_json({"detail": "nobody knows how the GPUs stood then"}, 404)
    return as_json(
        {
            "at": scene.at,
            "nodes": [_seen(sight, node) for node in scene.nodes],
            "residents": scene.residents,
            "log": scene.log,
        },
        200,
    )


def _seen(sight: Sight, node: dict[str, Any]) -> dict[str, Any]:
    """Return a node of a scene in which holders that may not be seen are units without a name."""
    theirs = [one["units"] for one in node["holders"] if not sight.sees(one["project"])]
    if not theirs:
        return node
    holders = [one for one in node["holders"] if sight.sees(one["project"])]
    return node | {"holders": holders, "gpus": node["gpus"] | {"others": ",".join(theirs)}}


def instant_of(query: QueryDict, now: float) -> float | None:
    """Return the wall clock that an address asks for; None when it is no instant of the past."""
    try:
        at = float(query.get("at", ""))
    except ValueError:
        return None
    return at if 0 <= at <= now + 60 else None


def scrub_of(query: QueryDict, now: float) -> tuple[dict[str, Any] | None, str]:
    """Return what the time line of the GPU map spans and shows, and what is wrong with the address.

    Without stored scenes there is no time line.
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
    return {"oldest": span[0], "newest": span[1], "at": None if at is None else int(at)}, ""


@require_safe
@for_viewers
def apis(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show how the APIs and all other counted resources of the cluster stand."""
    status, problem = asked(scheduler_client.status)
    found, _ = asked(lambda: queues_seen_by(sight))
    resources = {} if status is None else status["resources"]
    shares = [] if status is None else shares_seen_by(sight, status)
    context = {
        "page": "apis",
        "problem": problem,
        "apis": api_rows(resources, current_config(), found, shares),
    }
    return render(request, "dashboard/apis.html", context)


def api_rows(
    resources: dict[str, Any],
    config: Config,
    queues: QueuesResponse | None,
    shares: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return one row per resource of the whole cluster, by name.

    ``resources`` and ``shares`` are what the leader says of its books (`Answers._status`), in units.
    """
    waiting: Counter[str] = Counter()
    for line in queues.items if queues is not None else ():
        if line.why.resource is not None:
            waiting[line.why.resource] += line.waiting
    return [
        {
            "name": name,
            "base_url": config.apis[name].base_url if name in config.apis else "",
            "capacity": stands["capacity"],
            "held": round(stands["capacity"] - stands["free"], 3),
            "ceiling": stands.get("ceiling"),
            "hindrance": stands.get("hindrance"),
            "quotas": stands.get("quotas", []),
            "waiting": waiting[name],
            "shares": [s for s in shares if s["resource"] == name and s["pool"] is None],
        }
        for name, stands in sorted(resources.items())
        if name in config.resources
    ]


def holders_of(sight: Sight, kind: str) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether a node offers ``kind``, and who holds units of it, as the newest frames say.

    Of holders that may not be seen nothing is told.
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


def service_memory() -> list[dict[str, Any]]:
    """Return what GPU services take of the host memory of each node, as nodes said last."""
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


def _within(sight: Sight, scope: Scope) -> Sight:
    """Return what a page shows of what somebody may see."""
    return Sight((scope.project,)) if scope.project else sight


def _standing(sight: Sight, kind: str) -> dict[str, Any]:
    some, holders = holders_of(sight, kind)
    return {"some": some, "holders": holders}
