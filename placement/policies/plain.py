"""Plain policies, the rivals of trajectory-aware placement: an order × a router, as engines and RL frameworks have them.

Orders
    rr          by arrival of the request, as engines do: each step joins the end of the queue (heddle, §4.2)
    fcfs        by arrival of the trajectory
    autellix    least attained service: fewest sampled tokens first (Autellix's PLAS)
Routers
    least       fewest generations (Slime)
    cache       where the cache is, whatever the load; a new trajectory goes where fewest trajectories are (Verl)
    hybrid      `least` while the most and the fewest generations of a worker differ by more than 32, else `cache` (Verl*)
    sglang      `hybrid` by the rule of SGLang's gateway: they differ by more than 64, and by more than a factor 1.5

They predict, arrange and move nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from placement.explanation import CACHED, LEAST_LOADED, OVERLOADED
from placement.facts import (
    BatchArrangement,
    Move,
    Prediction,
    TrajectoryFacts,
    WorkerFacts,
    WorkerLoad,
)
from placement.policies.protocol import FleetView
from placement.worker_loads import usable

Order = Callable[[TrajectoryFacts], float]
Router = Callable[[TrajectoryFacts, Sequence[WorkerLoad]], tuple[WorkerLoad, str]]

#: Difference of generations above which `hybrid` ignores caches (heddle, §7).
HYBRID_DIFFERENCE: Final = 32
#: SGLang's gateway: `balance_abs_threshold`, `balance_rel_threshold`.
SGLANG_DIFFERENCE: Final = 64
SGLANG_FACTOR: Final = 1.5


def by_request(trajectory: TrajectoryFacts) -> float:
    """Return equal ranks, so that the queue's own order counts."""
    return 0.0


def by_trajectory(trajectory: TrajectoryFacts) -> float:
    """Return a greater rank for an earlier trajectory."""
    return -float(trajectory.order)


def by_attained_service(trajectory: TrajectoryFacts) -> float:
    """Return a greater rank for fewer sampled tokens."""
    return -float(trajectory.sampled_tokens)


def least_load(trajectory: TrajectoryFacts, loads: Sequence[WorkerLoad]) -> tuple[WorkerLoad, str]:
    """Return the worker with fewest generations."""
    return min(loads, key=lambda load: load.generations), LEAST_LOADED


def cache_aware(trajectory: TrajectoryFacts, loads: Sequence[WorkerLoad]) -> tuple[WorkerLoad, str]:
    """Return the worker with the cache; without one, that with fewest trajectories."""
    for load in loads:
        if load.facts.number == trajectory.worker:
            return load, CACHED
    return min(loads, key=lambda load: (load.trajectories, load.generations)), LEAST_LOADED


def hybrid(difference: float, factor: float = 1.0) -> Router:
    """Return a router that ignores caches while generations differ by more than both bounds."""

    def route(trajectory: TrajectoryFacts, loads: Sequence[WorkerLoad]) -> tuple[WorkerLoad, str]:
        counts = [load.generations for load in loads]
        most, least = max(counts), min(counts)
        if most - least > difference and most > least * factor:
            return least_load(trajectory, loads)[0], OVERLOADED
        return cache_aware(trajectory, loads)

    return route


ORDERS: Final[Mapping[str, Order]] = {
    "rr": by_request,
    "fcfs": by_trajectory,
    "autellix": by_attained_service,
}
ROUTERS: Final[Mapping[str, Router]] = {
    "least": least_load,
    "cache": cache_aware,
    "hybrid": hybrid(HYBRID_DIFFERENCE),
    "sglang": hybrid(SGLANG_DIFFERENCE, SGLANG_FACTOR),
}


class PlainPolicy:
    """One order and one router."""

    arranges = False
    folds = False

    def __init__(self, order: str, router: str) -> None:
        self.name = f"{order}+{router}"
        self._order, self._router = ORDERS[order], ROUTERS[router]

    def rank(self, trajectory: TrajectoryFacts, fleet: FleetView) -> float:
        """Return the rank of the order."""
        return self._order(trajectory)

    def choose(self, trajectory: TrajectoryFacts, fleet: FleetView) -> tuple[int, str] | None:
        """Return the worker of the router."""
        loads = usable(fleet.loads)
        if not loads:
            return None
        load, reason = self._router(trajectory, loads)
        return load.facts.number, reason

    def arrange(
        self, batch: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts], fleet: FleetView
    ) -> BatchArrangement | None:
        """Return None: trajectories are routed one by one."""
        return None

    def move(self, trajectory: TrajectoryFacts, fleet: FleetView) -> Move | None:
        """Return None: no cache is moved."""
        return None

    def predicted(self, trajectory: TrajectoryFacts, prediction: Prediction) -> None:
        """Ignore a prediction."""

    def left(self, trajectory: TrajectoryFacts) -> None:
        """Ignore the end of a trajectory."""

    def remember(self) -> bytes:
        """Return nothing: there is no state."""
        return b""

    def recall(self, memory: bytes, trajectories: Mapping[str, TrajectoryFacts]) -> None:
        """Restore nothing."""
