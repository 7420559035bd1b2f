"""LlmFleet: the workers behind one model name; events in, routes and moves out.

Theory of operation. A request names its trajectory by ``key`` and, where a trajectory has several at once, itself by ``generation``;
else the key names both. `request` returns its route, or None while it waits: for the members of its batch, for a transfer, or for a usable
worker. Routes that become known later are returned by `routed`, once each; `due` says when to ask without another event. What is
reported about something unknown changes nothing, so a late report of what ended is harmless.

Rules
1. A generation is routed once. If its worker is unusable before it began, `routed` returns another route for it.
2. Generations of a trajectory that run together are on one worker. A request without a key has the least filled worker.
3. A worker that is absent from `set_workers` is lost: its caches are void. Its generations that began are still to be ended by their
   reports. Other weights make a worker's caches void as well; a drained or sleeping one keeps them.
4. A pinned trajectory never moves. A pin to a worker that is unusable when its next request arrives ends.
5. A trajectory without a generation that has been silent for ``silent_seconds`` is forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from domain.errors import InvalidRequest
from placement import fleet_state
from placement.explanation import (
    BATCH_GATHERS,
    MOVED,
    TRANSFER_RUNS,
    WORKER_LOST,
    RouteExplanation,
    explain,
)
from placement.facts import GenerationRoute, Move, Prediction, TrajectoryFacts, WorkerFacts
from placement.fleet_facts import FleetFacts
from placement.fleet_questions import PlannedArrangement, left_over, planned_arrangement
from placement.fleet_state import FleetGeneration, FleetMemory, FleetTrajectory
from placement.fold import Fold, WideSite, folds
from placement.gathering import GatheringBatch
from placement.generation_routes import GenerationRoutes
from placement.policies.protocol import PlacementPolicy, WorkerTimes
from placement.transmission import CacheTransfer, TransmissionScheduler

SILENT_SECONDS: Final = 3600.0
#: Causes for which predictions are refused.
UNUSABLE: Final = "unusable"
LATE: Final = "late"


class LlmFleet:
    """Routes the generations of a fleet and plans moves."""

    def __init__(
        self,
        policy: PlacementPolicy,
        times: WorkerTimes,
        workers: Iterable[WorkerFacts] = (),
        *,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.policy = policy
        self.facts = FleetFacts(times)
        self.facts.workers.set_workers(workers)
        #: Predictions that were refused, by cause.
        self.refused: dict[str, int] = {}
        self._silent_seconds = silent_seconds
        self._routes = GenerationRoutes(policy, self.facts)
        self._transmission = TransmissionScheduler()
        #: Trajectories whose requests wait for a transfer, and until when.
        self._for_transfer: dict[str, float] = {}
        #: Predictions of trajectories that have not arrived, and when they were made.
        self._early: dict[str, tuple[float, Prediction]] = {}

    # --- time ---------------------------------------------------------------------------------

    def due(self) -> float | None:
        """Return when a waiting request is routed without another event; None: never."""
        gathers = self.facts.batches.due()
        times = [*self._for_transfer.values(), *(() if gathers is None else (gathers,))]
        return min(times, default=None)

    def routed(self, at: float) -> list[tuple[str, GenerationRoute]]:
        """Return the generations that were routed since the last call, with their routes, by the time they were.

        Those that `request` returned are not among them, except for a route that replaces another.
        """
        self._advance(at)
        return self._routes.fetch()

    def _advance(self, at: float) -> None:
        facts = self.facts
        facts.now = max(facts.now, at)
        for batch in facts.batches.overdue(facts.now):
            self._arrange(batch)
        if self._for_transfer:
            for key in [key for key, until in self._for_transfer.items() if until <= facts.now]:
                self._wait_no_longer(key)
        before = facts.now - self._silent_seconds
        while facts.in_tools and next(iter(facts.in_tools.values())) < before:
            self._forget(next(iter(facts.in_tools)), compare=False)
        while self._early and next(iter(self._early.values()))[0] < before:
            del self._early[next(iter(self._early))]

    # --- workers ------------------------------------------------------------------------------

    def set_workers(self, workers: Iterable[WorkerFacts], at: float) -> None:
        """Replace the workers: an absent one is lost (rule 3)."""
        self._advance(at)
        before = {each.number: each for each in self.facts.workers.facts}
        self.facts.workers.set_workers(workers)
        after = {each.number: each for each in self.facts.workers.facts}
        if before == after:
            return
        lost = before.keys() - after.keys()
        changed = (each for number, each in after.items() if number in before)
        void = lost | {
            each.number
            for each in changed
            if each.weights_version != before[each.number].weights_version
        }
        closed = {number for number, each in after.items() if not each.usable}
        interrupted = self._transmission.give_up_workers(void, closed)
        if void:
            self._void_caches(void, lost)
        self._routes.route_again()
        for key in interrupted:
            self._wait_no_longer(key)
        self.facts.batches.forget_unused(self.facts.now - self._silent_seconds)

    def _void_caches(self, void: set[int], lost: set[int]) -> None:
        for key, facts in [*self.facts.trajectories.items()]:
            if facts.worker not in void:
                continue
            if facts.worker not in lost and self._routes.route_of(key) is not None:
                continue  # it fills the cache there with the new weights
            self.facts.change(key, worker=None)
            self._routes.courses[key].note = WORKER_LOST

    # --- generations --------------------------------------------------------------------------

    def expect(self, batch: str, size: int, at: float) -> None:
        """Announce a batch of ``size`` trajectories."""
        self._advance(at)
        self.facts.batches.expect(batch, size, self.facts.now)

    def request(
        self,
        key: str,
        at: float,
        *,
        generation: str = "",
        group: str = "",
        batch: str = "",
        batch_size: int = 0,
        priority: int = 0,
        prompt_tokens: int = 0,
    ) -> GenerationRoute | None:
        """Return the route of a generation; None: it waits, and `routed` returns it.

        ``key``: its trajectory; empty: none. ``generation``: its own name; empty: the key. A name that is known already
        returns what it got. Raises InvalidRequest without both.
        """
        self._advance(at)
        name = generation or key
        if not name:
            raise InvalidRequest("request: give `key` (a trajectory) or `generation` (a name)")
        known = self._routes.generations.get(name)
        if known is not None:
            return known.route
        asked = FleetGeneration(name, key, self.facts.now, prompt_tokens, priority)
        self._routes.generations[name] = asked
        waits = False
        if key and key not in self._routes.courses:
            self._arrive(asked, group, batch)
            waits = bool(batch) and self._gather(asked, batch, batch_size)
        elif key:
            marks = self._routes.courses[key].marks
            self.facts.return_from_tool(key, prompt_tokens, priority, marks)
            waits = self._wait_beside(asked) or self._wait_for_transfer(asked)
        if not waits:
            self._routes.route(asked)
        self._routes.fetchable.pop(name, None)
        return asked.route

    def _arrive(self, asked: FleetGeneration, group: str, batch: str) -> None:
        key = asked.trajectory
        facts = TrajectoryFacts(
            key,
            0,
            group=group,
            batch=batch,
            priority=asked.priority,
            context_tokens=asked.prompt_tokens,
        )
        self.facts.arrive(facts)
        self._routes.courses[key] = FleetTrajectory([asked.name])
        _, early = self._early.pop(key, (0.0, None))
        if early is not None:
            self._accept(key, early)

    def _gather(self, asked: FleetGeneration, name: str, size: int) -> bool:
        """Say whether the first generation of a member waits for the other members."""
        gather = self.policy.arranges and bool(self.facts.usable_workers)
        batch = self.facts.batches.join(name, asked.trajectory, size, self.facts.now, gather=gather)
        if batch.closed:
            return False
        asked.waits = BATCH_GATHERS
        if batch.complete:
            self._arrange(batch)
        return True

    def _arrange(self, batch: GatheringBatch) -> None:
        """End the gathering of a batch: arrange its members, and route what waits."""
        keys = self.facts.batches.close(batch)
        members = [self.facts.trajectories[key] for key in keys]
        workers = self.facts.usable_workers
        if members and workers:
            arranged = self.policy.arrange(members, workers, self.facts)
            if arranged is not None:
                batch.groups = arranged.groups
                for key in keys:
                    self._routes.courses[key].assigned = arranged.workers.get(key)
        for key in keys:
            self._routes.route_waiting(key)

    def _wait_beside(self, asked: FleetGeneration) -> bool:
        """Let a generation wait for what another one of its trajectory waits for; False: none waits."""
        siblings = self._routes.courses[asked.trajectory].generations
        waits = (self._routes.generations[name].waits for name in siblings)
        asked.waits = next((code for code in waits if code), "")
        siblings.append(asked.name)
        return bool(asked.waits)

    def _wait_for_transfer(self, asked: FleetGeneration) -> bool:
        """Let a generation wait for the transfer of its cache; False: there is none, or to fill it again is shorter."""
        key = asked.trajectory
        transfer = self._transmission.of(key)
        target = None if transfer is None else self.facts.load(transfer.move.target)
        began = transfer is not None and transfer.began_at is not None
        prefill_seconds = 0.0  # without a target nothing is waited for
        if target is not None:
            tokens = self.facts.trajectories[key].context_tokens
            prefill_seconds = self.facts.times.prefill_seconds(target.facts.degree, tokens)
        until = self._transmission.tool_returned(key, self.facts.now, prefill_seconds)
        if until is not None:
            asked.waits = TRANSFER_RUNS
            self._for_transfer[key] = until
            return True
        if began and target is not None:
            self._moved_to(key, target.facts.number)
        return False

    def _wait_no_longer(self, key: str) -> None:
        """End the wait for a transfer: one that still runs is given up, and its target fills the cache again."""
        if self._for_transfer.pop(key, None) is None:
            return
        transfer = self._transmission.of(key)
        self._transmission.give_up(key)
        if transfer is not None:
            self._moved_to(key, transfer.move.target)
        self._routes.route_waiting(key)

    def _moved_to(self, key: str, worker: int) -> None:
        self.facts.change(key, worker=worker)
        self._routes.courses[key].note = MOVED

    def begin(self, generation: str, at: float) -> None:
        """Note that a worker runs a generation from now on."""
        self._advance(at)
        asked = self._routes.generations.get(generation)
        if asked is not None and asked.route is not None:
            load = self.facts.load(asked.route.worker)
            asked.weights_version = -1 if load is None else load.facts.weights_version
            asked.began_at = self.facts.now

    def end(
        self,
        generation: str,
        at: float,
        prompt_tokens: int = 0,
        sampled_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> None:
        """Note the end of a generation; without tokens it failed or was withdrawn, and counts as no step."""
        self._advance(at)
        ended = self._routes.generations.get(generation)
        if ended is None:
            return
        void = self._weights_changed(ended)
        self._routes.drop(ended)
        key = ended.trajectory
        if not key:
            return
        course, facts = self._routes.courses[key], self.facts.trajectories[key]
        course.generations.remove(generation)
        if prompt_tokens > 0 or sampled_tokens > 0:
            if ended.weights_version is not None:
                computed = prompt_tokens - cached_tokens
                seconds = self.facts.now - ended.began_at
                self.facts.generation_took(seconds, computed, sampled_tokens)
            course.cached_tokens = cached_tokens
            self.facts.change(
                key,
                steps=facts.steps + 1,
                sampled_tokens=facts.sampled_tokens + max(0, sampled_tokens),
                context_tokens=max(0, prompt_tokens) + max(0, sampled_tokens),
                worker=None if void else facts.worker,
            )
        if not course.generations:
            self._for_transfer.pop(key, None)
            self.facts.enter_tool(key)

    def _weights_changed(self, ended: FleetGeneration) -> bool:
        """Say whether a generation began with other weights than its worker has now."""
        load = None if ended.route is None else self.facts.load(ended.route.worker)
        return load is not None and ended.weights_version not in (None, load.facts.weights_version)

    # --- trajectories -------------------------------------------------------------------------

    def predict(
        self, key: str, prediction: Prediction, at: float, *, step: int | None = None
    ) -> None:
        """Replace what is expected to be left of a trajectory.

        ``step``: generations that had ended when the prediction was made. One of another step is late; without ``step``,
        one that arrives after the next generation was routed. Unusable and late ones change nothing and are counted.
        """
        self._advance(at)
        facts = self.facts.trajectories.get(key)
        if not prediction.usable:
            self._refuse(UNUSABLE)
        elif facts is None:
            self._early.pop(key, None)
            self._early[key] = (self.facts.now, prediction)
        elif (step is not None and step != facts.steps) or (
            step is None and self._routes.route_of(key) is not None
        ):
            self._refuse(LATE)
        else:
            self._accept(key, prediction)

    def _refuse(self, cause: str) -> None:
        self.refused[cause] = self.refused.get(cause, 0) + 1

    def _accept(self, key: str, prediction: Prediction) -> None:
        self.policy.predicted(self.facts.trajectories[key], prediction)
        self.facts.predict(key, prediction, self._routes.courses[key].marks)
        if key in self.facts.in_tools:
            self._transmission.want(key, self._better_place(key))

    def finish(self, key: str, at: float) -> None:
        """Forget a trajectory that is finished, and its generations; compare what was predicted of it with the truth."""
        self._advance(at)
        self._early.pop(key, None)
        if key in self._routes.courses:
            self._forget(key, compare=True)

    def _forget(self, key: str, *, compare: bool) -> None:
        course = self._routes.courses[key]
        for name in course.generations:
            self._routes.drop(self._routes.generations[name])
        del self._routes.courses[key]
        self._for_transfer.pop(key, None)
        self._transmission.give_up(key)
        self.policy.left(self.facts.leave(key, course.marks if compare else ()))

    def pin(self, key: str, worker: int | None, at: float) -> bool:
        """Pin a trajectory to a usable worker from its next generation on; None: to none. False: one of both is unknown."""
        self._advance(at)
        course = self._routes.courses.get(key)
        if course is None or not (worker is None or self.facts.workers.usable(worker)):
            return False
        course.pin = worker
        self.facts.change(key, pinned=worker is not None)
        self._transmission.want(key, None)
        return True

    # --- moves --------------------------------------------------------------------------------

    def moves(self, at: float) -> list[Move]:
        """Return the moves to start now; none shares a worker with another one that is planned or runs."""
        self._advance(at)
        seconds = self.facts.times.transfer_seconds
        return self._transmission.start(self.facts.now, self._better_place, seconds)

    def _better_place(self, key: str) -> Move | None:
        """Return where the policy would move a trajectory that may move: in a tool, not pinned, between equal weights."""
        facts = self.facts.trajectories[key]
        source = self.facts.workers.of(facts.worker)
        if source is None or facts.pinned or key not in self.facts.in_tools:
            return None
        move = self.policy.move(facts, self.facts)
        target = None if move is None else self.facts.load(move.target)
        if move is None or target is None or not target.facts.usable or target is source:
            return None
        if source.facts.weights_version != target.facts.weights_version:
            return None
        finite = math.isfinite(self.facts.times.transfer_seconds(move.context_tokens))
        return move if finite else None

    def move_began(self, key: str, at: float) -> bool:
        """Note that a transfer begins. False: the move was dropped, and the transfer must not start."""
        self._advance(at)
        return self._transmission.began(key, self.facts.now)

    def move_ended(self, key: str, at: float, moved_tokens: int) -> None:
        """Note that a transfer ended; 0 tokens: it failed, and the cache is where it was."""
        self._advance(at)
        transfer = self._transmission.ended(key)
        if transfer is None or transfer.void:
            return
        if moved_tokens > 0:
            self._moved_to(key, transfer.move.target)
        self._wait_no_longer(key)

    # --- questions ----------------------------------------------------------------------------

    def plan(self) -> PlannedArrangement:
        """Return what an arrangement of all trajectories that are not pinned would change. Changes nothing."""
        return planned_arrangement(self.policy, self.facts)

    def folds(self, sites: Iterable[WideSite], *, shared_store: bool = False) -> list[Fold]:
        """Return the folds that are estimated to end sooner, the greatest gain first, of a policy that folds.

        Changes nothing: workers that then sleep or wake are reported by `set_workers`. ``shared_store``: workers share caches.
        """
        if not self.policy.folds:
            return []
        left = left_over(self.facts, self._routes.generations.values())
        return folds(left, sites, self.facts.busy_times, shared_store=shared_store)

    def why(self, key: str) -> RouteExplanation | None:
        """Return the facts behind the latest route of a trajectory, or why it waits; None: it is not known."""
        course = self._routes.courses.get(key)
        if course is None:
            return None
        generations = [self._routes.generations[name] for name in course.generations]
        facts = self.facts.trajectories[key]
        batch = self.facts.batches.get(facts.batch)
        until = self._for_transfer.get(key, None if batch is None else batch.until)
        return explain(facts, course, generations, until, self.facts.correlation())

    @property
    def transfers(self) -> Iterable[CacheTransfer]:
        """Return the moves that are planned or run."""
        return self._transmission.transfers

    # --- snapshot -----------------------------------------------------------------------------

    def remember(self) -> bytes:
        """Return the whole state; equal states give equal bytes."""
        facts = self.facts
        courses, generations, fetchable = self._routes.remember()
        return fleet_state.encode(
            FleetMemory(
                now=facts.now,
                arrivals=facts.arrivals,
                workers=[*facts.workers.facts],
                trajectories=[*facts.trajectories.values()],
                courses=courses,
                generations=generations,
                fetchable=fetchable,
                in_tools=[*facts.in_tools.items()],
                early=[(key, at, each) for key, (at, each) in self._early.items()],
                for_transfer=[*self._for_transfer.items()],
                batches=facts.batches.remember(),
                transmission=self._transmission.remember(),
                correlation=facts.remember_correlation(),
                refused=sorted(self.refused.items()),
                policy=self.policy.remember(),
                mean_generation_seconds=facts.mean_generation_seconds,
                measurement=facts.measurement,
                prompts=facts.prompts,
            )
        )

    def recall(self, memory: bytes) -> None:
        """Restore what `remember` returned, in a fleet of the same policy that has received no events."""
        state, facts = fleet_state.decode(memory), self.facts
        facts.now, facts.arrivals = state.now, state.arrivals
        facts.mean_generation_seconds = state.mean_generation_seconds
        facts.prompts = state.prompts
        facts.workers.set_workers(state.workers)
        facts.batches.recall(state.batches)
        facts.recall(state.trajectories, dict(state.in_tools), state.correlation, state.measurement)
        self._routes.recall(state.courses, state.generations, state.fetchable)
        self._transmission.recall(state.transmission)
        self._for_transfer = dict(state.for_transfer)
        self._early = {key: (at, each) for key, at, each in state.early}
        self.refused = dict(state.refused)
        self.policy.recall(state.policy, facts.trajectories)
