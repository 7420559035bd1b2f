"""Queries of simulations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import Http404

from tangram_web.accounts.access import require, roles_of
from tangram_web.accounts.models import Role
from tangram_web.simulations.models import Simulation


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
