"""Routes of the workers of fleets and of trajectories on them, with their bodies."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from contract.route import API_PREFIX, PROJECT, Route
from domain.principals import Scope

_FLEET = f"{API_PREFIX}/fleets/{{fleet}}"


class PinRequest(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Body of ``POST /fleets/{fleet}/pin``."""

    trajectory: Annotated[str, Meta(min_length=1, max_length=256)]
    #: Name of the worker; empty: the trajectory is not bound any more.
    worker: Annotated[str, Meta(max_length=63)] = ""


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
