"""Explanations of routes: the reasons that a generation is on its worker or waits, as pages show them.

Codes are stable; sentences are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from placement.facts import GenerationRoute, Prediction, TrajectoryFacts
from placement.fleet_state import FleetGeneration, FleetTrajectory

#: Reasons of a route.
CACHED: Final = "cached"
LEAST_LOADED: Final = "least_loaded"
ARRANGED: Final = "arranged"
JOINED: Final = "joined"
MOVED: Final = "moved"
PINNED: Final = "pinned"
BESIDE: Final = "beside"
NO_IDENTITY: Final = "no_identity"
WORKER_LOST: Final = "worker_lost"
OVERLOADED: Final = "overloaded"
#: Reasons to wait.
BATCH_GATHERS: Final = "batch_gathers"
TRANSFER_RUNS: Final = "transfer_runs"
NO_USABLE_WORKER: Final = "no_usable_worker"

#: Of them, those that end without another event.
_BOUNDED: Final = (BATCH_GATHERS, TRANSFER_RUNS)

SENTENCES: Final = {
    CACHED: "The worker has the cache of this trajectory.",
    LEAST_LOADED: "The worker has the least to do.",
    ARRANGED: "The arrangement of the batch gives this trajectory to the worker.",
    JOINED: "The trajectory arrived late; the worker has those of its predicted length.",
    MOVED: "The cache of this trajectory was moved to the worker, or the move was too late and the worker fills it again.",
    PINNED: "An operator pinned the trajectory to the worker.",
    BESIDE: "Another generation of this trajectory is on the worker.",
    NO_IDENTITY: "The request names no trajectory; the worker has the least to do.",
    WORKER_LOST: "The former worker takes no generations any more, or lost its cache.",
    OVERLOADED: "The worker with the cache has too much to do.",
    BATCH_GATHERS: "The members of its batch that are still to arrive are waited for.",
    TRANSFER_RUNS: "The cache of this trajectory is being moved.",
    NO_USABLE_WORKER: "No worker of the fleet takes generations: all are drained, unhealthy or asleep.",
}


class RouteExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts behind the latest route of a trajectory."""

    trajectory: str
    #: None: no generation of it was routed yet.
    route: GenerationRoute | None
    #: A reason of this module.
    code: str
    sentence: str
    #: When it was routed; None: it was not.
    routed_at: float | None = None
    #: Why its latest generation waits, a reason of this module; empty: it does not.
    waits: str = ""
    #: Until when it waits at most; None: for an event.
    waits_until: float | None = None
    #: Where it was before, and its tokens then.
    former_worker: int | None = None
    context_tokens: int = 0
    #: Worker that its next generation is bound to; None: it is not pinned.
    pin: int | None = None
    #: Generations on the worker before it, and on the usable worker with fewest.
    generations: int = 0
    least_generations: int = 0
    prediction: Prediction | None = None
    #: Measured rank correlation of predicted and true remaining seconds.
    correlation: float = 1.0
    #: Tokens of the latest prompt that the engine had in its cache.
    cached_tokens: int = 0
    #: Whether a worker runs a generation of it, and whether one is routed and has not begun.
    runs: bool = False
    queued: bool = False


def explain(
    facts: TrajectoryFacts,
    course: FleetTrajectory,
    generations: Sequence[FleetGeneration],
    until: float | None,
    correlation: float,
) -> RouteExplanation:
    """Return the explanation of a trajectory's latest route; ``generations``: its own that have not ended."""
    waits = next((each.waits for each in generations if each.waits), "")
    begun = [each.weights_version is not None for each in generations if each.route is not None]
    code = waits or ("" if course.route is None else course.route.reason)
    return RouteExplanation(
        trajectory=facts.key,
        route=course.route,
        code=code,
        sentence=SENTENCES.get(code, ""),
        routed_at=None if course.route is None else course.routed_at,
        waits=waits,
        waits_until=until if waits in _BOUNDED else None,
        former_worker=course.former_worker,
        pin=course.pin,
        context_tokens=facts.context_tokens,
        generations=course.others,
        least_generations=course.least_others,
        prediction=facts.prediction,
        correlation=correlation,
        cached_tokens=course.cached_tokens,
        runs=any(begun),
        queued=not all(begun),
    )
