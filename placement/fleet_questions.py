"""Questions to a fleet that change nothing: what an arrangement of now would change, and what is left for a fold."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from placement.fleet_facts import FleetFacts
from placement.fleet_state import FleetGeneration
from placement.fold import LeftOver
from placement.policies.protocol import PlacementPolicy


class PlannedChange(msgspec.Struct, frozen=True, gc=False):
    """A trajectory that an arrangement of now would have on another worker."""

    trajectory: str
    worker: int | None
    planned: int


def planned_changes(policy: PlacementPolicy, facts: FleetFacts) -> list[PlannedChange]:
    """Return what an arrangement of all trajectories that are not pinned would change."""
    workers = facts.usable_workers
    members = [each for each in facts.trajectories.values() if not each.pinned]
    arranged = policy.arrange(members, workers, facts) if members and workers else None
    found = {} if arranged is None else arranged.workers
    return [
        PlannedChange(each.key, each.worker, found[each.key])
        for each in members
        if each.key in found and found[each.key] != each.worker
    ]


def left_over(facts: FleetFacts, generations: Iterable[FleetGeneration]) -> list[LeftOver]:
    """Return what is left of each trajectory; a running generation is expected to take as long as the mean of late."""
    busy: dict[str, float] = {}
    for each in generations:
        if each.trajectory and each.weights_version is not None:
            rest = max(0.0, each.began_at + facts.generation_seconds() - facts.now)
            busy[each.trajectory] = max(rest, busy.get(each.trajectory, 0.0))
    return [LeftOver(each, busy.get(each.key, 0.0)) for each in facts.trajectories.values()]
