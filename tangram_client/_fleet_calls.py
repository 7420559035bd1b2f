"""The endpoints of fleets: one function each, which returns the `ApiCall`, and the answers as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import quote
from uuid import uuid4

from tangram_client._calls import API, encode, json_of
from tangram_client._core import ApiCall, ApiResponse
from tangram_client.models import Json

_FLEETS: Final = f"{API}/fleets"


@dataclass(frozen=True, slots=True)
class FleetInfo:
    """A fleet as it is now."""

    name: str
    engine: str
    policy: str
    #: Each has name, degree, slots, running, waiting, drained, unhealthy, weights_version, priorities, moves …
    workers: tuple[Json, ...]
    #: Generations without a worker, by the code of their wait.
    unrouted: Mapping[str, int]
    #: Trajectories that are not finished, of all projects.
    live: int
    #: Those of the reader's projects, longest first.
    trajectories: tuple[Json, ...]
    #: Moves of caches that are planned or run.
    moves: tuple[Json, ...]
    #: Everything that came, as it came.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        return cls(
            body["name"],
            body["engine"],
            body["policy"],
            tuple(body["workers"]),
            body["unrouted"],
            body["live"],
            tuple(body["trajectories"]),
            tuple(body["moves"]),
            body,
        )


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What an arrangement of a fleet's trajectories would change now; nothing was changed."""

    fleet: str
    #: ``arranged``, or why nothing is arranged.
    code: str
    reason: str
    #: Trajectories that are not pinned, and those of them that would change their worker, of all projects.
    trajectories: int
    changes: int
    #: Trajectories of which something is predicted; the others count as typical ones.
    predicted: int
    #: Estimated seconds until all that is left has ended, where it is and as arranged; None: nothing is arranged.
    kept_seconds: float | None
    planned_seconds: float | None
    #: By how much that is sooner; below 0: later.
    gain_seconds: float | None
    #: Those of the reader's projects: trajectory, project, worker, planned, context_tokens, tokens_left.
    placements: tuple[Json, ...]
    #: Everything that came, as it came.
    body: Json = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, body: Json) -> Self:
        plain = {name: body[name] for name in _PLAN}
        return cls(**plain, placements=tuple(body["placements"]), body=body)


_PLAN: Final = (
    "fleet", "code", "reason", "trajectories", "changes", "predicted", "kept_seconds", "planned_seconds", "gain_seconds",
)  # fmt: skip


def fleet_status(fleet: str, limit: int | None) -> ApiCall[FleetInfo]:
    """Ask how a fleet is now."""
    params = {} if limit is None else {"limit": str(limit)}
    return ApiCall("GET", f"{_of(fleet)}/status", _info, params)


def fleet_plan(fleet: str, limit: int | None) -> ApiCall[FleetPlan]:
    """Ask what an arrangement of now would change."""
    return _post(f"{_of(fleet)}/plan", {} if limit is None else {"limit": limit}, _plan)


def change_worker(fleet: str, worker: str, verb: str) -> ApiCall[dict[str, Any]]:
    """``drain`` a worker, or ``undrain`` it."""
    return _post(f"{_of(fleet)}/workers/{quote(worker, safe='')}/{verb}", {}, json_of)


def pin_trajectory(
    fleet: str, trajectory: str, worker: str, project: str | None
) -> ApiCall[dict[str, Any]]:
    """Bind a trajectory to a worker; an empty ``worker`` ends that."""
    params = {} if project is None else {"project": project}
    payload = {"trajectory": trajectory, "worker": worker}
    return _post(f"{_of(fleet)}/pin", payload, json_of, params)


def _of(fleet: str) -> str:
    return f"{_FLEETS}/{quote(fleet, safe='')}"


def _post(
    path: str, payload: Mapping[str, Any], read: Any, params: Mapping[str, str] | None = None
) -> ApiCall[Any]:
    headers = {"Idempotency-Key": uuid4().hex, "Content-Type": "application/json"}
    return ApiCall("POST", path, read, params or {}, headers=headers, content=encode(payload))


def _info(response: ApiResponse) -> FleetInfo:
    return FleetInfo.of(response.json())


def _plan(response: ApiResponse) -> FleetPlan:
    return FleetPlan.of(response.json())
