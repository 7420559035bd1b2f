"""Questions to a fleet that change nothing: what an arrangement of now would change, and what is left for a fold.

An arrangement of now is asked of the fleet's policy, for all trajectories that are not pinned as if they were one batch. Its gain is
the estimate of when all that is left has ended, where it is now and as arranged (`placement.estimates`), by the predictions as they are.
Neither counts the caches that would be moved or filled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from placement.arrange import by_degree
from placement.estimates import Work, assignment_seconds
from placement.facts import TrajectoryFacts, WorkerFacts
from placement.fleet_facts import FleetFacts
from placement.fleet_state import FleetGeneration
from placement.fold import LeftOver
from placement.policies.grouping import known_predictions
from placement.policies.protocol import PlacementPolicy

#: Trajectories that are arranged at most: it takes some 5 ms for each thousand, and the loop decides nothing meanwhile.
MAX_PLANNED: Final = 10_000

#: Codes of an answer.
ARRANGED: Final = "arranged"
NO_TRAJECTORIES: Final = "no_trajectories"
TOO_MANY: Final = "too_many"
NO_WORKER: Final = "no_worker"
ONE_WORKER: Final = "one_worker"
UNPREDICTED: Final = "unpredicted"
KEPT: Final = "kept"

PLAN_SENTENCES: Final = {
    ARRANGED: "The policy arranges the trajectories as they are now.",
    NO_TRAJECTORIES: "The fleet has no trajectory that is not pinned.",
    TOO_MANY: f"More than {MAX_PLANNED} trajectories are not finished: so many are not arranged at once.",
    NO_WORKER: "No worker of the fleet takes generations.",
    ONE_WORKER: "One worker alone takes generations.",
    UNPREDICTED: "Nothing is predicted of most trajectories, so that their rests cannot be compared.",
    KEPT: "The policy leaves every trajectory where it is: by its predictions, and by how right they were, an arrangement"
    " would not end enough sooner.",
}  # fmt: skip


class PlannedChange(msgspec.Struct, frozen=True, gc=False):
    """A trajectory that an arrangement of now would have on another worker."""

    trajectory: str
    worker: int | None
    planned: int


class PlannedArrangement(msgspec.Struct, frozen=True, gc=False):
    """What an arrangement of now would change."""

    #: A key of `PLAN_SENTENCES`.
    code: str
    #: Trajectories that are not pinned, and those of them of which something is predicted; the others count as typical ones.
    trajectories: int
    predicted: int = 0
    #: Longest predicted first.
    changes: tuple[PlannedChange, ...] = ()
    #: Estimated seconds until all that is left has ended, where it is and as arranged; None: nothing is arranged.
    kept_seconds: float | None = None
    planned_seconds: float | None = None


def planned_arrangement(policy: PlacementPolicy, facts: FleetFacts) -> PlannedArrangement:
    """Return what an arrangement of all trajectories that are not pinned would change."""
    workers = facts.usable_workers
    members = [each for each in facts.trajectories.values() if not each.pinned]
    known = sum(each.prediction is not None for each in members)
    code = _impossible(members, workers) or ("" if known else _unarranged(members, workers))
    arranged = None if code else policy.arrange(members, workers, facts)
    if arranged is None:
        code = code or _unarranged(members, workers)
        return PlannedArrangement(code, len(members), known)
    planned = arranged.workers
    changed = [each for each in members if planned.get(each.key, each.worker) != each.worker]
    changed.sort(key=lambda each: (-each.total_tokens, each.order))
    kept, after = _estimates(members, workers, planned, facts)
    changes = tuple(PlannedChange(each.key, each.worker, planned[each.key]) for each in changed)
    return PlannedArrangement(ARRANGED, len(members), known, changes, kept, after)


def _impossible(members: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts]) -> str:
    if not members:
        return NO_TRAJECTORIES
    if not workers:
        return NO_WORKER
    return TOO_MANY if len(members) > MAX_PLANNED else ""


def _unarranged(members: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts]) -> str:
    """Return why a policy arranged nothing."""
    if len(workers) < 2:
        return ONE_WORKER
    known = sum(each.prediction is not None for each in members)
    return UNPREDICTED if 2 * known < len(members) else KEPT


def _estimates(
    members: Sequence[TrajectoryFacts],
    workers: Sequence[WorkerFacts],
    planned: Mapping[str, int],
    facts: FleetFacts,
) -> tuple[float, float]:
    """Return the seconds until all has ended, as it is and as planned; one without a usable worker is where it is planned."""
    ordered = by_degree(workers)
    places = {worker.number: at for at, worker in enumerate(ordered)}
    members = [each for each in members if planned.get(each.key, each.worker) in places]
    rests = known_predictions(members)
    work = Work(
        [rest.tokens for rest in rests],
        [rest.tool_seconds for rest in rests],
        [float(each.context_tokens) for each in members],
    )
    after = [places[planned.get(each.key, each.worker or 0)] for each in members]
    before = [
        places.get(each.worker or 0, place) for each, place in zip(members, after, strict=True)
    ]
    kept, then = (
        assignment_seconds(facts.busy_times, ordered, assigned, work)
        for assigned in (before, after)
    )
    return kept, then


def left_over(facts: FleetFacts, generations: Iterable[FleetGeneration]) -> list[LeftOver]:
    """Return what is left of each trajectory; a running generation is expected to take as long as the mean of late."""
    busy: dict[str, float] = {}
    for each in generations:
        if each.trajectory and each.weights_version is not None:
            rest = max(0.0, each.began_at + facts.generation_seconds() - facts.now)
            busy[each.trajectory] = max(rest, busy.get(each.trajectory, 0.0))
    return [LeftOver(each, busy.get(each.key, 0.0)) for each in facts.trajectories.values()]
