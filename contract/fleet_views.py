"""Bodies of the answers about fleets: their status, and what an arrangement of now would change.

Workers are named, where `contract.fleet_status` has their numbers. Seconds are durations or ages, tokens are counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from contract.fleet_reports import KeeperReport, OwnWorkerReport
from contract.fleet_status import (
    CacheMoveStatus,
    FleetPlanStatus,
    FleetStatus,
    FleetTrajectoryStatus,
    FleetWorkerStatus,
    PlannedPlacement,
)
from domain.fleets import FleetEngine, PlacementName, PriorityUse, TransferAdapter

#: In place of a reason that may contain an address.
HIDDEN_REASON = "it fails"


class FleetWorkerView(msgspec.Struct):
    """A worker of a fleet and what it has to do."""

    name: str
    #: Null: the reader may not know it.
    url: str | None
    degree: int
    slots: int
    #: Slots that generations hold, and generations that wait for one.
    running: int
    waiting: int
    #: Trajectories whose cache it has, and their tokens.
    trajectories: int
    context_tokens: int
    drained: bool
    #: Why it gets no further generation by its own fault; empty: it is healthy.
    unhealthy: str
    weights_version: int
    #: What it does with priorities, as probed; empty: not known yet.
    priorities: PriorityUse
    #: How caches are moved from and to it, as probed; empty: not known yet.
    moves: TransferAdapter

    @classmethod
    def of(cls, status: FleetWorkerStatus, *, addresses: bool) -> Self:
        """Return the view of a worker; ``addresses``: the reader may know them."""
        facts = status.facts
        return cls(
            facts.name,
            facts.url if addresses else None,
            facts.degree,
            facts.slots,
            status.running,
            status.waiting,
            status.trajectories,
            status.context_tokens,
            facts.drained,
            facts.unhealthy if addresses or not facts.unhealthy else HIDDEN_REASON,
            facts.weights_version,
            facts.priorities,
            facts.moves,
        )


class FleetTrajectoryView(msgspec.Struct):
    """A trajectory of a fleet that is not finished."""

    trajectory: str
    project: str
    #: ``runs``, ``queued``, ``waits`` or ``in_tool``.
    state: str
    worker: str | None
    #: Generations that ended.
    steps: int
    sampled_tokens: int
    #: Of all its steps; null: nothing was predicted.
    predicted_tokens: float | None
    context_tokens: int
    pinned: bool


class CacheMoveView(msgspec.Struct):
    """A move of a cache that is planned or runs."""

    trajectory: str
    project: str
    source: str
    target: str
    #: ``planned``, ``running`` or ``given_up``.
    state: str
    context_tokens: int
    #: Time by which the trajectory is expected to end sooner, with the transfer counted.
    gain_seconds: float
    age_seconds: float


class OwnWorkerView(msgspec.Struct):
    """A worker on GPUs of the pool, as the keeper of fleets found it last."""

    name: str
    degree: int
    #: ``waits``, ``starts``, ``serves``, ``drains``, ``ends`` or ``ended``.
    state: str
    #: Why; empty for readers of one project.
    detail: str
    #: Empty while it has no GPUs.
    node: str
    gpus: list[int]
    #: The action that runs its engine; empty: none does.
    action: str


class FleetDetails(msgspec.Struct):
    """A fleet as it is now."""

    name: str
    engine: FleetEngine
    policy: PlacementName
    #: As declared; empty: as the workers say.
    transfer: TransferAdapter
    workers: list[FleetWorkerView]
    #: Generations without a worker, by the code of their wait.
    unrouted: dict[str, int]
    #: Trajectories that are not finished, of all projects.
    live: int
    #: Those of the reader's projects, longest first.
    trajectories: list[FleetTrajectoryView]
    moves: list[CacheMoveView]
    #: Predictions that changed nothing, by cause.
    refused: dict[str, int]
    #: Measured rank correlation of predicted and true remaining seconds; 1 without samples.
    correlation: float
    #: Predicted and true remaining seconds at the first prediction of the trajectories that finished last, of all projects.
    finished: list[tuple[float, float]]
    #: Mean seconds of a generation; 0: none has ended.
    generation_seconds: float
    #: Workers on GPUs of the pool, those that do not serve too.
    own: list[OwnWorkerView]

    @classmethod
    def of(
        cls, status: FleetStatus, report: KeeperReport | None = None, *, addresses: bool
    ) -> Self:
        """Return the view of a fleet; ``addresses``: the reader may know those of its workers."""
        names = worker_names(status.workers)
        own = () if report is None else report.own
        return cls(
            status.name,
            status.engine,
            status.policy,
            status.transfer,
            [FleetWorkerView.of(each, addresses=addresses) for each in status.workers],
            status.unrouted,
            status.live,
            [_trajectory(each, names) for each in status.trajectories],
            [_move(each, names) for each in status.moves],
            status.refused,
            status.correlation,
            status.finished,
            status.generation_seconds,
            [_own_worker(each, addresses=addresses) for each in own],
        )


def _own_worker(each: OwnWorkerReport, *, addresses: bool) -> OwnWorkerView:
    detail = each.detail if addresses else ""
    return OwnWorkerView(
        each.name, each.degree, each.state, detail, each.node, list(each.gpus), each.action
    )


class PlannedPlacementView(msgspec.Struct):
    """A trajectory that an arrangement of now would have on another worker."""

    trajectory: str
    project: str
    #: Null: it has no worker yet.
    worker: str | None
    planned: str
    #: Of its cache, which would be moved or filled again.
    context_tokens: int
    #: Predicted to be sampled still; null: nothing was predicted.
    tokens_left: float | None


class FleetPlanView(msgspec.Struct):
    """What an arrangement of a fleet's trajectories would change now; nothing was changed."""

    fleet: str
    #: ``arranged``, or why nothing is arranged: ``no_trajectories``, ``too_many``, ``no_worker``, ``one_worker``, ``unpredicted``, ``kept``.
    code: str
    reason: str
    #: Trajectories that are not pinned, and those of them that would change their worker, of all projects.
    trajectories: int
    changes: int
    #: Trajectories of which something is predicted; the others count as typical ones.
    predicted: int
    #: Estimated seconds until all that is left has ended, where it is and as arranged, and by how much that is sooner; null: nothing is
    #: arranged.
    kept_seconds: float | None
    planned_seconds: float | None
    gain_seconds: float | None
    #: Those of the reader's projects, longest first.
    placements: list[PlannedPlacementView]

    @classmethod
    def of(cls, status: FleetStatus, plan: FleetPlanStatus) -> Self:
        """Return the view of a plan of the fleet of ``status``."""
        names = worker_names(status.workers)
        return cls(
            status.name,
            plan.code,
            plan.sentence,
            plan.trajectories,
            plan.changes,
            plan.predicted,
            plan.kept_seconds,
            plan.planned_seconds,
            gain_seconds(plan),
            [_placement(each, names) for each in plan.placements],
        )


def gain_seconds(plan: FleetPlanStatus) -> float | None:
    """Return by how much sooner all would end; below 0: later; None: nothing is arranged."""
    if plan.kept_seconds is None or plan.planned_seconds is None:
        return None
    return plan.kept_seconds - plan.planned_seconds


def worker_names(workers: Iterable[FleetWorkerStatus]) -> dict[int | None, str]:
    """Return the names of workers by number."""
    return {each.number: each.facts.name for each in workers}


def _trajectory(status: FleetTrajectoryStatus, names: dict[int | None, str]) -> FleetTrajectoryView:
    project, _, name = status.key.partition("/")
    return FleetTrajectoryView(
        name, project, status.state, names.get(status.worker), status.steps, status.sampled_tokens,
        status.predicted_tokens, status.context_tokens, status.pinned,
    )  # fmt: skip


def _move(status: CacheMoveStatus, names: dict[int | None, str]) -> CacheMoveView:
    project, _, name = status.key.partition("/")
    source, target = names.get(status.source, ""), names.get(status.target, "")
    return CacheMoveView(
        name, project, source, target, status.state, status.context_tokens, status.gain_seconds,
        status.age_seconds,
    )  # fmt: skip


def _placement(status: PlannedPlacement, names: dict[int | None, str]) -> PlannedPlacementView:
    project, _, name = status.key.partition("/")
    return PlannedPlacementView(
        name, project, names.get(status.worker), names.get(status.planned, ""), status.context_tokens,
        status.tokens_left,
    )  # fmt: skip
