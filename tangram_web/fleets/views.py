"""Pages of fleets as the scheduler has them now: all fleets, and one with its workers, trajectories and moves.

Fleets are capacity of all projects. Addresses, and reasons of failures that may contain them, are shown to readers of all
projects alone; trajectories and their moves to readers of their project.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
import redis
from django.http import HttpRequest, HttpResponse
from msgspec.structs import replace

from contract.fleet_reports import KeeperReport, OwnWorkerReport
from contract.fleet_status import FleetStatus, FleetWorkerStatus
from domain.errors import Unavailable
from tangram_web.dashboard.guards import refuse
from tangram_web.fleets.drawings import LoadBar, length_pairs, load_strip
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.access import Sight
from tangram_web.pools.models import FleetRow

#: Trajectories of one page.
TRAJECTORIES: Final = 100
_NO_FLEET: Final = "No fleet of this name is declared. Its name is the model of its requests."
#: In place of a reason that may contain an address.
_HIDDEN_REASON: Final = "it fails"

_reports = msgspec.json.Decoder(KeeperReport)


def fleets(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show all fleets."""
    try:
        found = scheduler_client.fleets().fleets
    except Unavailable as error:
        return {"problem": str(error), "fleets": []}
    return {"problem": "", "fleets": [_summary(each, sight) for each in found]}


def fleet(request: HttpRequest, sight: Sight, fleet: str) -> dict[str, Any] | HttpResponse:
    """Show one fleet; ``?trajectory=PROJECT/NAME`` explains the route of that trajectory."""
    if "\0" in fleet or not FleetRow.objects.filter(name=fleet).exists():
        return refuse(request, "No such fleet", _NO_FLEET, 404)
    asked_for = request.GET.get("trajectory", "")[:1024].replace("\0", "")
    try:
        status = scheduler_client.fleets(
            fleet, limit=TRAJECTORIES, projects=sight.projects, trajectory=asked_for
        )
    except Unavailable as error:
        return {"name": fleet, "problem": str(error)}
    if not status.fleets:
        return {"name": fleet, "problem": "The scheduler has not applied its declaration yet."}
    found = status.fleets[0]
    own = _own_workers(fleet, sight)
    names = {each.number: each.facts.name for each in found.workers}
    route = found.route
    return {
        "name": fleet,
        "problem": "",
        **_summary(found, sight),
        "own": own,
        "lengths": length_pairs(found.trajectories, found.workers),
        "moves": [(names.get(m.source), names.get(m.target), m) for m in found.moves],
        "asked_for": asked_for,
        "route": route,
        "worker": None if route is None else names.get(route.worker or 0),
        "former": None if route is None else names.get(route.former_worker or 0),
    }


def _own_workers(fleet: str, sight: Sight) -> list[OwnWorkerReport]:
    """Return what the keeper of fleets found last of workers of our own; reasons may contain addresses."""
    try:
        stored = cast("bytes | None", bus.redis_client().hget(bus.keys().fleet_reports, fleet))
        own = [] if stored is None else _reports.decode(stored).own
    except (msgspec.DecodeError, redis.RedisError):  # a keeper of another version wrote it
        return []
    return own if sight.everything else [replace(each, detail="") for each in own]


def _summary(found: FleetStatus, sight: Sight) -> dict[str, Any]:
    workers = [_seen(each, sight) for each in found.workers]
    usable = [each for each in workers if each.facts.usable]
    strip: list[LoadBar] = load_strip(workers)
    return {
        "fleet": found,
        "workers": workers,
        "usable": len(usable),
        "slots": sum(each.facts.slots for each in usable),
        "running": sum(each.running for each in workers),
        "waiting": sum(each.waiting for each in workers),
        "strip": strip,
        "addresses": sight.everything,
    }


def _seen(each: FleetWorkerStatus, sight: Sight) -> FleetWorkerStatus:
    """Return what a reader may know of a worker."""
    if sight.everything:
        return each
    why = _HIDDEN_REASON if each.facts.unhealthy else ""
    return replace(each, facts=replace(each.facts, url="", unhealthy=why))
