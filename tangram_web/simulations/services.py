"""Changes of simulations; each is one transaction with an audit entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.utils import timezone

from domain.errors import Conflict, InvalidRequest
from simulator.request import SimulationRequest
from tangram_web.accounts.access import may, require, roles_of
from tangram_web.accounts.models import Role
from tangram_web.audit.services import record
from tangram_web.simulations.inputs import (
    WINDOWS,
    JournalWindow,
    check_trace,
    deflated,
    live_window,
)
from tangram_web.simulations.models import OPEN, Simulation, SimulationInput, SimulationState


@dataclass(frozen=True)
class PolicyRow:
    """One policy of a comparison: means over its seeds, in simulated seconds."""

    policy: str
    actions: int
    mean: float
    p50: float
    p95: float
    p99: float
    queue: float
    overhead: float
    execution: float
    trajectory: float
    granted: dict[str, float]
    efficiency: float
    not_completed: int
    #: Ratio to the best policy's mean ACT.
    times_best: float


def simulations_seen_by(user: Any) -> QuerySet[Simulation]:
    """Select the simulations of the projects in which ``user`` has a role, newest first."""
    seen = Simulation.objects.filter(project__in=roles_of(user)).select_related("owner")
    return seen.defer("outcome").order_by("-created_at")


def simulation_seen_by(user: Any, key: str) -> Simulation:
    """Return a simulation. Raises Http404 for an unknown one, or one of a foreign project."""
    found = Simulation.objects.filter(pk=key).select_related("owner").first()
    if found is None:
        raise Http404("there is no such simulation, or you may not see it")
    require(user, found.project_id, Role.VIEWER)
    return found


def rows_of(outcome: dict[str, Any]) -> list[PolicyRow]:
    """Return a row for each policy, in the order of the request."""
    by_policy: dict[str, list[dict[str, Any]]] = {}
    for run in outcome["runs"]:
        by_policy.setdefault(run["policy"], []).append(run["result"])
    best = min(_mean([r["whole"]["act"]["mean"] for r in runs]) for runs in by_policy.values())
    return [_row(policy, runs, best) for policy, runs in by_policy.items()]


def _row(policy: str, runs: list[dict[str, Any]], best: float) -> PolicyRow:
    act = {
        name: _mean([run["whole"]["act"][name] for run in runs])
        for name in ("mean", "p50", "p95", "p99")
    }
    parts = {
        name: _mean([run["whole"][name]["mean"] for run in runs])
        for name in ("queue", "overhead", "execution")
    }
    return PolicyRow(
        policy=policy,
        actions=sum(run["whole"]["actions"] for run in runs),
        trajectory=_mean([run["trajectory_act"]["mean"] for run in runs]),
        granted={
            name: _mean([run["granted"].get(name, 0.0) for run in runs])
            for name in runs[0]["granted"]
        },
        efficiency=_mean([run["efficiency"] for run in runs]),
        not_completed=sum(
            count
            for run in runs
            for outcome, count in run["outcomes"].items()
            if outcome != "completed"
        ),
        times_best=act["mean"] / best if best else 1.0,
        **act,
        **parts,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


#: Limits of one project: queued and running simulations, and all stored ones.
MOST_OPEN: Final = 5
MOST_KEPT: Final = 200


def simulation_create(
    *,
    http: HttpRequest,
    project: str,
    request: SimulationRequest,
    title: str = "",
    trace: bytes | None = None,
    window_seconds: int | None = None,
    window: JournalWindow | None = None,
    source: str = "generated",
) -> Simulation:
    """Queue a simulation. Raises InvalidRequest, and Conflict at the limits of the project.

    A recorded workload needs ``window_seconds``, or a ``window`` with its ``source``.
    """
    content = None
    if window is not None:
        content = window.content
    elif request.workload == "recorded":
        if window_seconds not in WINDOWS:
            raise InvalidRequest("choose a window", pointer="/window")
        window = live_window(project, window_seconds)
        content = window.content
        request = msgspec.structs.replace(request, limits={**window.limits, **request.limits})
        source = f"{WINDOWS[window_seconds]}, {window.actions:,} actions of {project}"
        if window.foreign:
            source += f"; {window.foreign:,} left out: they need more than cores and APIs"
    elif trace:
        check_trace(request.workload, trace)
        content, source = trace, f"trace of {len(trace) / 1024:,.0f} KiB"
    with transaction.atomic():
        _check_limits(project)
        made = Simulation.objects.create(
            project_id=project,
            owner_id=http.user.pk,
            title=title,
            request=msgspec.to_builtins(request),
            source=source,
        )
        if content is not None:
            SimulationInput.objects.create(simulation=made, content=deflated(content))
        record(http, "create", f"simulation/{made.id}", None, _described(made), project=project)
    return made


def simulation_cancel(*, http: HttpRequest, simulation: Simulation) -> None:
    """Cancel a queued or running simulation; other states do not change."""
    with transaction.atomic():
        waiting = Simulation.objects.filter(pk=simulation.pk, state=SimulationState.QUEUED)
        running = Simulation.objects.filter(pk=simulation.pk, state=SimulationState.RUNNING)
        changed = waiting.update(state=SimulationState.CANCELLED, finished_at=timezone.now())
        changed += running.update(cancel_wished=True)
        if changed:
            target = f"simulation/{simulation.pk}"
            record(http, "cancel", target, project=simulation.project_id)


def simulation_delete(*, http: HttpRequest, simulation: Simulation) -> None:
    """Delete a simulation that has ended. Raises Conflict for one that is queued or running."""
    with transaction.atomic():
        over = Simulation.objects.filter(pk=simulation.pk).exclude(state__in=OPEN).first()
        if over is None:
            raise Conflict("it is still queued or running; cancel it first")
        target, project = f"simulation/{over.pk}", over.project_id
        record(http, "delete", target, _described(over), None, project=project)
        over.delete()


def may_change(user: Any, simulation: Simulation) -> bool:
    """Return whether ``user`` may cancel and delete: the owner may, and operators of the project."""
    own = simulation.owner_id is not None and simulation.owner_id == user.pk
    return may(user, simulation.project_id, Role.SUBMITTER if own else Role.OPERATOR)


def _check_limits(project: str) -> None:
    known = Simulation.objects.filter(project_id=project)
    if known.filter(state__in=OPEN).count() >= MOST_OPEN:
        raise Conflict(
            f"{MOST_OPEN} simulations of {project} are queued or running; wait for one to end"
        )
    if known.count() >= MOST_KEPT:
        raise Conflict(f"{project} has {MOST_KEPT} stored simulations; delete one first")


def _described(simulation: Simulation) -> dict[str, Any]:
    return {"title": simulation.title, "source": simulation.source, **simulation.request}
