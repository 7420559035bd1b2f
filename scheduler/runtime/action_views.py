"""Views of actions: response bodies made from the machine or from the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from contract.responses import ActionResponse, rfc3339
from domain.action import ActionState
from domain.allocation import Allocation, Placement
from domain.backends import LLM
from domain.decisions import Finish
from domain.events import ActionFinished
from domain.fleets import FLEET, fleet_of, fleet_resource
from domain.resources import units
from scheduler.core.advice.facts import ActionStatus
from scheduler.runtime.rendering import RangeOf, unknown_start, wait_details

_decode_result = msgspec.msgpack.Decoder().decode


def granted_units(node: str | None, allocations: Iterable[Allocation]) -> dict[str, float | int]:
    """Return the granted units by the resource names of the trainer: ``cpu:n1`` is ``cpu``."""
    return {_trainers_name(a.resource, node): units(a.amount) for a in allocations}


def _trainers_name(resource: str, node: str | None) -> str:
    worker = fleet_of(resource)
    return resource.removesuffix(f":{node}") if worker is None else fleet_resource(worker[0])


def placement(node: str | None, allocations: Sequence[Allocation]) -> Placement | None:
    """Return the node and units of an action; None for an action without a node and without named units."""
    if not allocations:
        return None if node is None else Placement(node)
    found = Placement(node)
    for allocation in allocations:
        if allocation.units and allocation.resource.startswith((LLM, FLEET)):
            found = replace(found, units={**found.units, allocation.resource: allocation.units})
        if node is None:
            continue
        if allocation.resource.startswith("cpu:"):
            found = replace(
                found, cpus=allocation.units, shared=allocation.shared, why=allocation.why
            )
        elif allocation.resource.startswith("gpu:"):
            found = replace(found, gpus=allocation.units)
    return found if node is not None or found.units else None


def live_view(
    status: ActionStatus, wall_offset: float, range_of: RangeOf = unknown_start
) -> ActionResponse:
    """Return the view of a live action; ``wall_offset`` turns journal time into wall clock."""
    live, action = status.live, status.live.action

    def wall(at: float | None) -> str | None:
        return None if at is None else rfc3339(at + wall_offset)

    lease = live.lease_expires_at
    return ActionResponse(
        id=action.id,
        state=live.state,
        result=None if lease is None or action.generation else {"expires_at": wall(lease)},
        units=granted_units(live.node, live.allocations),
        placement=placement(live.node, live.allocations),
        waiting=wait_details(status, range_of),
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        kind=action.kind,
        door=action.door,
        attempt=max(1, live.attempt),
        submitted_at=wall(live.submitted_at),
        granted_at=wall(live.granted_at),
        started_at=wall(live.started_at),
    )


def finished_view(
    finish: Finish, report: ActionFinished | None, at: float, wall_offset: float
) -> ActionResponse:
    """Return the view of a finished action from the journal entry that finished it."""
    timing = finish.timing
    finished_at = at + wall_offset
    submitted_at = finished_at - timing.act_seconds
    result: Any = None
    reported = report.result if report is not None and report.result else finish.result
    if reported:
        result = _decode_result(reported)
    return ActionResponse(
        id=finish.action_id,
        state=ActionState.FINISHED,
        outcome=finish.outcome,
        result=result,
        reward=finish.reward,
        units=granted_units(finish.node, finish.allocations) if finish.allocations else {},
        placement=placement(finish.node, finish.allocations),
        timing=timing,
        used=finish.used,
        project=finish.project,
        task=finish.task,
        trajectory=finish.trajectory,
        kind=finish.kind,
        door=finish.door,
        attempt=max(1, finish.attempts),
        detail=finish.detail,
        submitted_at=rfc3339(submitted_at),
        granted_at=rfc3339(submitted_at + timing.queue_seconds) if finish.allocations else None,
        started_at=rfc3339(finished_at - timing.execution_seconds)
        if timing.execution_seconds
        else None,
        finished_at=rfc3339(finished_at),
    )
