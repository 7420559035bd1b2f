"""Routes of the workers of fleets and of trajectories on them, with their bodies."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from contract.fleet_views import FleetDetails, FleetPlanView
from contract.route import API_PREFIX, PROJECT, Parameter, Route
from domain.principals import Scope

#: Trajectories of one answer.
MAX_TRAJECTORIES = 1000
_FLEET = f"{API_PREFIX}/fleets/{{fleet}}"


class PinRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /fleets/{fleet}/pin``."""

    trajectory: Annotated[str, Meta(min_length=1, max_length=256)]
    #: Name of the worker; empty: the trajectory is not bound any more.
    worker: Annotated[str, Meta(max_length=63)] = ""


class PlanRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /fleets/{fleet}/plan``; without a body: all defaults."""

    #: Trajectories of the answer.
    limit: Annotated[int, Meta(ge=1, le=MAX_TRAJECTORIES)] = 100


class ChangedFleet(msgspec.Struct, omit_defaults=True):
    """A fleet whose change is accepted."""

    fleet: str
    worker: str = ""
    trajectory: str = ""


def _of_worker(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{_FLEET}/workers/{{worker}}/{verb}",
        operation=f"fleets_{verb}",
        summary=summary,
        scope=Scope.OPERATE,
        responses={202: ChangedFleet},
        errors=(404, 413),
    )


FLEETS = (
    Route(
        method="GET",
        path=f"{_FLEET}/status",
        operation="fleets_status",
        summary="A fleet as it is now: workers with loads and health, trajectories, moves of caches",
        scope=Scope.READ,
        parameters=(
            Parameter(
                "limit",
                "Number of trajectories, longest first; 20 without it.",
                {"type": "integer", "minimum": 0, "maximum": MAX_TRAJECTORIES},
            ),
        ),
        responses={200: FleetDetails},
        errors=(404, 422),
    ),
    Route(
        method="POST",
        path=f"{_FLEET}/plan",
        operation="fleets_plan",
        summary="Dry run: which trajectories an arrangement of now would place elsewhere, and its gain",
        scope=Scope.OPERATE,
        body=PlanRequest,
        body_required=False,
        responses={200: FleetPlanView},
        errors=(404, 413, 422),
    ),
    _of_worker("drain", "Let a worker of a fleet get no further generation; what runs continues"),
    _of_worker("undrain", "Let a drained worker of a fleet get generations again"),
    Route(
        method="POST",
        path=f"{_FLEET}/pin",
        operation="fleets_pin",
        summary="Bind a trajectory to a worker from its next generation on, or end that",
        scope=Scope.OPERATE,
        body=PinRequest,
        parameters=(PROJECT,),
        responses={202: ChangedFleet},
        errors=(404, 410, 413, 422),
    ),
)
