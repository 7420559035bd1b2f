"""Routes of generations that have not ended, and those that wait for a usable worker.

A generation is routed once; again only if its worker is unusable before it began. The worker of a trajectory's generation is, in this
order: that of another generation of it, that of its pin, that of the arrangement of its batch, and what the policy chooses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from placement.explanation import (
    ARRANGED,
    BESIDE,
    LEAST_LOADED,
    MOVED,
    NO_IDENTITY,
    NO_USABLE_WORKER,
    PINNED,
    WORKER_LOST,
)
from placement.facts import GenerationRoute, TrajectoryFacts
from placement.fleet_facts import FleetFacts
from placement.fleet_state import FleetGeneration, FleetTrajectory
from placement.policies.protocol import PlacementPolicy
from placement.worker_loads import least_filled, usable


class GenerationRoutes:
    """Generations and trajectories of a fleet, with their routes."""

    def __init__(self, policy: PlacementPolicy, facts: FleetFacts) -> None:
        self._policy = policy
        self._facts = facts
        self.generations: dict[str, FleetGeneration] = {}
        #: By key of the trajectory.
        self.courses: dict[str, FleetTrajectory] = {}
        #: Generations whose routes `fetch` has not returned.
        self.fetchable: dict[str, None] = {}

    def fetch(self) -> list[tuple[str, GenerationRoute]]:
        """Return the generations that were routed since the last call, with their routes, by the time they were."""
        found = [(name, self.generations[name].route) for name in self.fetchable]
        self.fetchable = {}
        return [(name, route) for name, route in found if route is not None]

    def route_of(self, key: str) -> GenerationRoute | None:
        """Return the route of the first generation of a trajectory that has one."""
        routes = (self.generations[name].route for name in self.courses[key].generations)
        return next((route for route in routes if route is not None), None)

    def route_waiting(self, key: str) -> None:
        """Route what a trajectory waits for."""
        for name in self.courses[key].generations:
            if self.generations[name].route is None:
                self.route(self.generations[name])

    def route(self, asked: FleetGeneration, reason: str = "") -> None:
        """Route a generation; without a usable worker it waits. ``reason`` replaces that of its worker."""
        picked = self._pick(asked)
        if picked is None:
            asked.waits = NO_USABLE_WORKER
            return
        worker, why = picked
        facts = self._placed(asked, worker)
        rank = self._policy.rank(facts, self._facts)
        asked.route = GenerationRoute(worker, rank if math.isfinite(rank) else 0.0, reason or why)
        asked.waits = ""
        if asked.trajectory:
            self.courses[asked.trajectory].route = asked.route
        self._facts.workers.add(worker, generations=1)
        self.fetchable[asked.name] = None

    def route_again(self) -> None:
        """Route what waits for a usable worker, and what was routed to one that is not and has not begun."""
        for asked in [*self.generations.values()]:
            if asked.waits == NO_USABLE_WORKER:
                self.route(asked)
            elif asked.route is not None and self._is_void(asked, asked.route):
                self._unroute(asked)
                self.route(asked, WORKER_LOST)

    def _is_void(self, asked: FleetGeneration, route: GenerationRoute) -> bool:
        return asked.weights_version is None and not self._facts.workers.usable(route.worker)

    def drop(self, ended: FleetGeneration) -> None:
        """Remove a generation."""
        self._unroute(ended)
        del self.generations[ended.name]

    def _unroute(self, asked: FleetGeneration) -> None:
        if asked.route is not None:
            self._facts.workers.add(asked.route.worker, generations=-1)
        asked.route = None
        self.fetchable.pop(asked.name, None)

    def _pick(self, asked: FleetGeneration) -> tuple[int, str] | None:
        """Return worker and reason; None: no worker is usable."""
        least = least_filled(self._facts.loads)
        if least is None:
            return None
        if not asked.trajectory:
            return least.facts.number, NO_IDENTITY
        usable_now = self._facts.workers.usable
        fixed = self._fixed(asked.trajectory)
        if fixed is not None:
            return fixed
        course, facts = self.courses[asked.trajectory], self._facts.trajectories[asked.trajectory]
        note, course.note = course.note, ""
        chosen = self._policy.choose(facts, self._facts)
        worker, reason = chosen or (least.facts.number, LEAST_LOADED)
        if not usable_now(worker):
            worker, reason = least.facts.number, LEAST_LOADED
        if note == WORKER_LOST or (note == MOVED and worker == facts.worker):
            reason = note
        return worker, reason

    def _fixed(self, key: str) -> tuple[int, str] | None:
        """Return worker and reason where the policy is not asked."""
        course, usable_now = self.courses[key], self._facts.workers.usable
        beside = self.route_of(key)
        if beside is not None and usable_now(beside.worker):
            return beside.worker, BESIDE
        if course.pin is not None and usable_now(course.pin):
            return course.pin, PINNED
        if course.pin is not None:
            course.pin = None
            self._facts.change(key, pinned=False)
        assigned, course.assigned = course.assigned, None
        if assigned is not None and usable_now(assigned):
            return assigned, ARRANGED
        return None

    def _placed(self, asked: FleetGeneration, worker: int) -> TrajectoryFacts:
        """Return the facts of a trajectory that is on ``worker`` from now on; store what its route is explained by."""
        key = asked.trajectory
        if not key:
            return TrajectoryFacts(
                asked.name,
                self._facts.arrivals,
                context_tokens=asked.prompt_tokens,
                worker=worker,
                priority=asked.priority,
            )
        course, before = self.courses[key], self._facts.trajectories[key]
        load = self._facts.load(worker)
        course.routed_at, course.former_worker = self._facts.now, before.worker
        course.others = 0 if load is None else load.generations
        course.least_others = min(
            (each.generations for each in usable(self._facts.loads)), default=0
        )
        return self._facts.change(key, worker=worker)

    def remember(self) -> tuple[list[FleetTrajectory], list[FleetGeneration], list[str]]:
        """Return what is stored of trajectories, in the order of their facts, of generations, and what `fetch` would return."""
        courses = [self.courses[key] for key in self._facts.trajectories]
        return courses, [*self.generations.values()], [*self.fetchable]

    def recall(
        self,
        courses: Iterable[FleetTrajectory],
        generations: Iterable[FleetGeneration],
        fetchable: Iterable[str],
    ) -> None:
        """Add what `remember` returned to empty routes, after the facts were restored."""
        self.courses = dict(zip(self._facts.trajectories, courses, strict=True))
        self.generations = {each.name: each for each in generations}
        self.fetchable = dict.fromkeys(fetchable)
        for each in self.generations.values():
            if each.route is not None:
                self._facts.workers.add(each.route.worker, generations=1)
