"""Pages of what there is and who holds it: cores, GPUs, APIs."""

from __future__ import annotations

from collections import Counter
from time import time
from typing import Any, Final

import redis
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_safe

from domain.inventory import Config
from domain.wire import QueuesView
from tangram_web.dashboard.guards import for_watchers, refuse
from tangram_web.dashboard.insight import asked
from tangram_web.dashboard.past import as_json
from tangram_web.lib import ask, bus
from tangram_web.live.frames import HOLDERS, NODES
from tangram_web.live.scenes import SceneStore
from tangram_web.live.snapshots import stored_snapshot
from tangram_web.pools.selectors import current_config

NO_INSTANT: Final = "at is an instant of the past, in seconds since 1970"


@require_safe
@for_watchers
def cpu(request: HttpRequest) -> HttpResponse:
    """Show every node's cores by NUMA node, and who holds them."""
    context = {
        "page": "cpu",
        "title": "CPU map",
        "says": "node → NUMA node → core; kept-back cores are not Tangram's and not drawn",
        "empty": "No node has joined. Start a worker on one:",
        "command": "./tangram up",
        **_standing("cpu"),
    }
    return render(request, "dashboard/map.html", context)


@require_safe
@for_watchers
def gpu(request: HttpRequest) -> HttpResponse:
    """Show every node's GPUs, the chunks that are held of them, and by whom; `?at=` then."""
    scrub, problem = scrub_of(request.GET, time())
    if problem:
        return refuse(request, "No such moment", problem, 400)
    context = {
        "scrub": scrub,
        "page": "gpu",
        "title": "GPU map",
        "says": "node → GPU → chunk of 1, 2, 4 or 8",
        "empty": "No node offers GPUs. Nodes offer those that NVML finds, or declare some:",
        "command": "TANGRAM_NODE_GPUS=8 ./tangram up",
        **(_standing("gpu") if scrub is None or scrub["at"] is None else {"some": True}),
    }
    return render(request, "dashboard/map.html", context)


@require_safe
@for_watchers
def gpu_past(request: HttpRequest) -> HttpResponse:
    """Answer with how the GPUs stood at an instant of the past (`?at=EPOCH`)."""
    at = instant_of(request.GET, time())
    if at is None:
        return as_json({"detail": NO_INSTANT}, 400)
    try:
        scene = SceneStore(bus.redis_client(), bus.keys()).at(at)
    except redis.RedisError as error:
        return as_json({"detail": f"redis does not answer: {error}"}, 503)
    if scene is None:
        return as_json({"detail": "nobody knows how the GPUs stood then"}, 404)
    return as_json(
        {"at": scene.at, "nodes": scene.nodes, "residents": scene.residents, "log": scene.log}, 200
    )


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
        span = SceneStore(bus.redis_client(), bus.keys()).span()
    except redis.RedisError:
        span = None
    if span is None:
        return ({"oldest": int(at), "newest": int(at), "at": int(at)} if at else None), ""
    return {"oldest": span[0], "newest": span[1], "at": None if at is None else int(at)}, ""


@require_safe
@for_watchers
def apis(request: HttpRequest) -> HttpResponse:
    """Show how the APIs and all other counted resources of the cluster stand."""
    status, problem = asked(ask.status)
    found, _ = asked(ask.queues)
    resources = {} if status is None else status["resources"]
    shares = [] if status is None else status.get("shares", [])
    context = {
        "page": "apis",
        "problem": problem,
        "apis": api_rows(resources, current_config(), found, shares),
    }
    return render(request, "dashboard/apis.html", context)


def api_rows(
    resources: dict[str, Any],
    config: Config,
    queues: QueuesView | None,
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


def holders_of(kind: str) -> tuple[bool, list[dict[str, Any]]]:
    """Return whether a node offers ``kind``, and who holds units of it, as the newest frames say."""
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
        if holder["kind"] == kind
    ]
    return bool(offers), holders


def _standing(kind: str) -> dict[str, Any]:
    some, holders = holders_of(kind)
    return {"some": some, "holders": holders}
