"""Pages of fleets as the scheduler has them now: all fleets, and one with its workers, trajectories, moves, and a dry run.

Fleets are capacity of all projects. Addresses, and reasons of failures that may contain them, are shown to readers of all
projects alone; trajectories and their moves to readers of their project.
"""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from msgspec.structs import replace

from contract.fleet_reports import KeeperReport, OwnWorkerReport
from contract.fleet_status import FleetPlanStatus, FleetStatus, FleetWorkerStatus, RouteStatus
from contract.fleet_views import HIDDEN_REASON, gain_seconds, worker_names
from domain.errors import Unavailable
from tangram_web.accounts.access import role_everywhere, roles_of
from tangram_web.accounts.models import Role
from tangram_web.dashboard.guards import refuse
from tangram_web.fleets.drawings import LoadBar, accuracy_of, length_pairs, load_strip
from tangram_web.fleets.probes import report_of, silent_seconds, way_of, worker_rows
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.pools.models import FleetRow

#: Trajectories of one page.
TRAJECTORIES: Final = 100
_NO_FLEET: Final = "No fleet of this name is declared. Its name is the model of its requests."
#: Code of the wait of a generation without a worker → why it waits.
_UNROUTED: Final = {
    "no_worker": "no worker takes generations",
    "batch_gathers": "members of their batch are awaited",
    "cache_moves": "their cache is being moved",
}
#: A declaration to begin with.
SAMPLE: Final = """apiVersion: tangram/v1
kind: Fleet
metadata: {name: Qwen3-8B}
spec:
  engine: vllm
  workers:
    - name: w1
      url: http://10.0.0.7:8000
      slots: 100
    - name: w2
      url: http://10.0.0.8:8000
      slots: 100
"""


def fleets(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show all fleets."""
    try:
        found = scheduler_client.fleets().fleets
    except Unavailable as error:
        return {"problem": str(error), "fleets": []}
    return {"problem": "", "fleets": [_summary(each, sight) for each in found], "sample": SAMPLE}


def fleet(request: HttpRequest, sight: Sight, fleet: str) -> dict[str, Any] | HttpResponse:
    """Show one fleet; ``?trajectory=PROJECT/NAME`` explains the route of that trajectory, ``?plan=1`` tries an arrangement out."""
    if "\0" in fleet or not FleetRow.objects.filter(name=fleet).exists():
        return refuse(request, "No such fleet", _NO_FLEET, 404)
    asked_for = request.GET.get("trajectory", "")[:1024].replace("\0", "")
    everywhere = role_everywhere(request.user) is not None
    operated = None if everywhere else roles_of(request.user, Role.OPERATOR)
    plans = operated is None or bool(operated)
    plan = plans and request.GET.get("plan") == "1"
    try:
        status = scheduler_client.fleets(
            fleet, limit=TRAJECTORIES, projects=sight.projects, trajectory=asked_for, plan=plan
        )
    except Unavailable as error:
        return {"name": fleet, "problem": str(error)}
    if not status.fleets:
        return {"name": fleet, "problem": "The scheduler has not applied its declaration yet."}
    found, report = status.fleets[0], report_of(fleet)
    names = worker_names(found.workers)
    route = found.route
    shown = _summary(found, sight)
    rows = worker_rows(shown["workers"], report)
    return {
        "name": fleet,
        "problem": "",
        **shown,
        "own": [] if report is None else _own_workers(report, sight),
        "division": None if report is None else report.division,
        "rows": rows,
        "silent": silent_seconds(rows),
        "operates": everywhere,
        "plans": plans,
        "lengths": length_pairs(found.trajectories, found.workers, operated),
        "accuracy": accuracy_of(found.finished),
        "moves": [(names.get(m.source), names.get(m.target), m) for m in found.moves],
        "ways": [] if report is None or not sight.everything else report.probed_moves,
        "asked_for": asked_for,
        "route": route,
        "worker": _named(shown["workers"], None if route is None else route.worker),
        "former": _former(route, names),
        "pin": None if route is None else names.get(route.pin),
        "plan": None if found.plan is None else _planned(found.plan, names),
    }


def _named(workers: list[FleetWorkerStatus], number: int | None) -> str:
    """Return the name of a worker, and that it takes no generations; empty: none."""
    for each in workers:
        if each.number == number:
            return (
                each.facts.name
                if each.facts.usable
                else f"{each.facts.name}, which takes no generations now"
            )
    return ""


def _former(route: RouteStatus | None, names: dict[int | None, str]) -> str:
    """Return the worker that a trajectory left for its present one; empty: none."""
    if route is None or route.former_worker == route.worker:
        return ""
    return names.get(route.former_worker, "")


def _planned(plan: FleetPlanStatus, names: dict[int | None, str]) -> dict[str, Any]:
    gain = gain_seconds(plan)
    share = 0.0 if gain is None or not plan.kept_seconds else abs(gain) / plan.kept_seconds
    return {
        "facts": plan,
        "gain": None if gain is None else abs(gain),
        "share": share,
        "sooner": gain is not None and gain >= 0,
        "rows": [(names.get(e.worker), names.get(e.planned), e) for e in plan.placements],
    }


def _own_workers(report: KeeperReport, sight: Sight) -> list[OwnWorkerReport]:
    """Return what the keeper of fleets found last of workers of our own; reasons may contain addresses."""
    return report.own if sight.everything else [replace(each, detail="") for each in report.own]


def _summary(found: FleetStatus, sight: Sight) -> dict[str, Any]:
    workers = [_seen(each, sight) for each in found.workers]
    usable = [each for each in workers if each.facts.usable]
    strip: list[LoadBar] = load_strip(workers)
    return {
        "fleet": found,
        "workers": workers,
        "usable": len(usable),
        "slots": sum(each.facts.slots for each in usable),
        "all_slots": sum(each.facts.slots for each in workers),
        "way": way_of(found),
        "running": sum(each.running for each in workers),
        "waiting": sum(each.waiting for each in workers),
        "strip": strip,
        "unrouted": [(_UNROUTED.get(code, code), n) for code, n in found.unrouted.items()],
        "drained": sum(each.facts.drained for each in workers),
        "unhealthy": sum(bool(each.facts.unhealthy) for each in workers),
        "addresses": sight.everything,
    }


def _seen(each: FleetWorkerStatus, sight: Sight) -> FleetWorkerStatus:
    """Return what a reader may know of a worker."""
    if sight.everything:
        return each
    why = HIDDEN_REASON if each.facts.unhealthy else ""
    return replace(each, facts=replace(each.facts, url="", unhealthy=why))
