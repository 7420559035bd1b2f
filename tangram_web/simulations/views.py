"""Pages of simulations. Each view calls one selector or service and renders."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import urlencode

from domain.errors import Conflict, InvalidRequest, Unavailable
from tangram_web.accounts.access import roles_of
from tangram_web.accounts.models import Role
from tangram_web.compare.comparison import compare
from tangram_web.compare.sides import window_side
from tangram_web.compare.views import parts_of
from tangram_web.dashboard.guards import refuse
from tangram_web.simulations import services
from tangram_web.simulations.forms import SimulationForm
from tangram_web.simulations.inputs import WINDOWS, present_cluster
from tangram_web.simulations.models import Simulation
from tangram_web.simulations.services import rows_of, simulation_seen_by, simulations_seen_by
from tangram_web.simulations.what_was_tried import changes_of, run_names, trust_of, window_of

SHOWN: Final = 100


def simulations(request: HttpRequest) -> HttpResponse:
    """List simulations, and create one."""
    projects = roles_of(request.user, Role.SUBMITTER)
    if request.method == "POST":
        form = SimulationForm(projects, request.POST, request.FILES)
        made = _create(request, form) if form.is_valid() else None
        if made is not None:
            return redirect("simulations:one", made.pk)
        return _list(request, form, 422)
    return _list(request, SimulationForm(projects, initial=_initial(request)))


def _create(request: HttpRequest, form: SimulationForm) -> Simulation | None:
    given = form.cleaned_data
    try:
        return services.simulation_create(
            http=request,
            project=given["project"],
            request=given["request"],
            title=given["title"],
            trace=form.content(),
            window_seconds=given["window"],
        )
    except InvalidRequest as error:
        form.add_pointed_error(error)
    except (Conflict, Unavailable) as error:
        form.add_error(None, str(error))
    return None


def _initial(request: HttpRequest) -> dict[str, Any]:
    """Return the initial values of the form: the current cluster, and the query string."""
    nodes, cores = present_cluster()
    said = request.GET
    chosen = said.getlist("policies") or ["malleable", "minimum", "kubernetes"]
    start = {"batch": 32, "steps": 1, "nodes": nodes, "cores": cores, "seeds": "0",
             "rewards": "medium", "workload": "ai-coding", "window": max(WINDOWS)}  # fmt: skip
    return {**start, **{name: said[name] for name in said if name != "policies"},
            "policies": chosen}  # fmt: skip


def _list(request: HttpRequest, form: SimulationForm, status: int = 200) -> HttpResponse:
    context = {
        "form": form,
        "may_create": bool(form.fields["project"].choices),  # type: ignore[attr-defined]
        "simulations": simulations_seen_by(request.user)[:SHOWN],
    }
    return render(request, "simulations/list.html", context, status=status)


def simulation(request: HttpRequest, simulation_id: str) -> HttpResponse:
    """Show the progress or the result of a simulation."""
    found = simulation_seen_by(request.user, simulation_id)
    again = {**found.request, "project": found.project_id, "title": found.title,
             "seeds": ", ".join(map(str, found.request["seeds"]))}  # fmt: skip
    internal = ("limits", "memory_gib", "variants", "machines", "used", "counts_from", "assumed",
                "untold", "changed", "window_ends", "window_seconds")  # fmt: skip
    for name in internal if again["malleable"] else (*internal, "malleable"):
        again.pop(name, None)
    context = {
        "simulation": found,
        "percent": round(100 * found.share),
        "rows": rows_of(found.outcome) if found.outcome else [],
        "may_end": services.may_change(request.user, found),
        "again": urlencode(again, doseq=True),
        "tried": changes_of(found.request),
        "window": window_of(found.request),
        **(_comparison(found) if found.outcome else {}),
    }
    return render(request, "simulations/one.html", context)


def _comparison(found: Simulation) -> dict[str, Any]:
    """Return the comparison of the first two runs of a recorded window, beside what was measured."""
    outcome, names = found.outcome, found.request["policies"]
    first = {run["policy"]: run for run in reversed(outcome["runs"])}
    rows = [first.get(name, {}).get("rows") for name in names[:2]]
    if len(rows) < 2 or not all(rows) or not outcome.get("measured"):
        return {}
    a, b = (
        window_side(each, name, f"simulated: {found.source}", found.pk, simulated=True)
        for each, name in zip(rows, run_names(found.request), strict=False)
    )
    measured = window_side(outcome["measured"], "as it ran", f"{found.source}", found.pk)
    trust = compare(measured, a).measure("ACT, mean")
    known = trust is not None and trust.difference.a > 0
    return {
        **parts_of(compare(a, b), measured),
        "trust": trust_of(trust.difference.a, trust.difference.b)
        if trust and known
        else trust_of(None, None),
        "wall_seconds": sum(run["wall_seconds"] for run in outcome["runs"]),
    }


def result(request: HttpRequest, simulation_id: str) -> HttpResponse:
    """Return the request and the whole result as a file."""
    found = simulation_seen_by(request.user, simulation_id)
    body = {
        "id": found.pk,
        "project": found.project_id,
        "title": found.title,
        "source": found.source,
        "state": found.state,
        "request": found.request,
        "outcome": found.outcome,
    }
    answer = HttpResponse(msgspec.json.encode(body), content_type="application/json")
    answer.headers["Content-Disposition"] = f'attachment; filename="{found.pk}.json"'
    return answer


def cancel(request: HttpRequest, simulation_id: str) -> HttpResponse:
    """Cancel a simulation."""
    found = simulation_seen_by(request.user, simulation_id)
    if not services.may_change(request.user, found):
        return _refused(request)
    services.simulation_cancel(http=request, simulation=found)
    return redirect("simulations:one", found.pk)


def delete(request: HttpRequest, simulation_id: str) -> HttpResponse:
    """Delete a simulation."""
    found = simulation_seen_by(request.user, simulation_id)
    if not services.may_change(request.user, found):
        return _refused(request)
    try:
        services.simulation_delete(http=request, simulation=found)
    except Conflict as error:
        return refuse(request, "Not now", f"{error}.", 409)
    return redirect("simulations:list")


def _refused(request: HttpRequest) -> HttpResponse:
    remedy = "Its owner and operators of its project may do this."
    return refuse(request, "Not permitted", remedy, 403)
