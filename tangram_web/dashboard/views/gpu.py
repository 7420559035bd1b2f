"""GPU map: the GPUs of every node, their chunks and holders; now, or at an instant of the past."""

from __future__ import annotations

from time import time
from typing import Any

import redis
from django.http import HttpRequest, HttpResponse

from tangram_web.dashboard.file_responses import json_response
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.project_choice import project_choice_of
from tangram_web.dashboard.resource_selectors import (
    NO_INSTANT,
    card_use,
    holders_of,
    instant_of,
    scene_node_seen_by,
    scrub_of,
    service_memory,
)
from tangram_web.lib import bus
from tangram_web.live.access import Sight
from tangram_web.live.gpu_history import GpuHistoryStore


def gpu(request: HttpRequest, sight: Sight) -> dict[str, Any] | HttpResponse:
    """Show the map: live, or with ``?at=`` seconds since 1970 from the stored history."""
    choice = project_choice_of(sight, request.GET)
    if choice is None:
        return refuse(request, "No such project", "Choose one of yours.", 404)
    scrub, problem = scrub_of(request.GET, time())
    if problem:
        return refuse(request, "No such instant", problem, 400)
    live = scrub is None or scrub["at"] is None
    offered, holders = holders_of(choice.sight(sight), "gpu") if live else (True, [])
    cards, chunks = card_use() if live else ([], {})
    return {
        "scope": choice,
        "kind": "gpu",
        "scrub": scrub,
        "says": "node → GPU",
        "empty": "No node offers GPUs. Nodes offer the GPUs that NVML finds, or declared ones:",
        "command": "TANGRAM_NODE_GPUS=8 ./tangram up",
        "some": offered,
        "holders": [row | {"use": chunks.get((row["node"], row["units"]))} for row in holders],
        "cards": cards,
        "live": live,
        "memory": service_memory() if live else [],
    }


def gpu_past(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with the state of all GPUs at an instant of the past (``?at=`` seconds since 1970)."""
    at, choice = instant_of(request.GET, time()), project_choice_of(sight, request.GET)
    if at is None:
        return json_response({"detail": NO_INSTANT}, 400)
    if choice is None:
        return json_response({"detail": "there is no such project"}, 404)
    try:
        scene = GpuHistoryStore(bus.redis_client(), bus.keys()).at(at)
    except redis.RedisError as error:
        return json_response({"detail": f"redis does not answer: {error}"}, 503)
    if scene is None:
        return json_response({"detail": "no state of the GPUs is stored for that instant"}, 404)
    seen = choice.sight(sight)
    return json_response(
        {
            "at": scene.at,
            "nodes": [scene_node_seen_by(seen, node) for node in scene.nodes],
            "residents": scene.residents,
            "log": scene.log,
        }
    )
