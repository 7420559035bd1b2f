"""HedgedPolicy (default): trajectory-aware where that pays by its own estimate, and cache-aware everywhere else.

Order: longest remaining first in seconds, fading to least attained service as the measured rank correlation of the predictor falls.
Workers: where the cache is. It is left only for a worker with a free slot, when the wait for a slot is expected to take ``patience`` times
as long as to fill the cache again; and never, in an arranged batch, to a worker of a longer group that still has trajectories: queues of short
groups are part of the plan. A batch is arranged only if the arrangement is estimated to end sooner by ``arrange_share`` than to give
each trajectory to the worker where it is fastest then; both estimates are made with the predictor's error, as declared or as the
measured correlation implies. Where that error is larger than the differences that it predicts, neither estimate is worth much: the
longest of a group of alike predictions decides, and an arrangement puts trajectories of one prompt together. Then nothing is arranged. Moves: `placement.moves.SoonerRule`.

Nothing here needs a prediction to be right. Without any, it is cache-aware routing with the order of Autellix.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Final

import msgspec

from placement.arrange import arrange, by_degree, size_tables
from placement.estimates import Work, assignment_seconds, worthwhile
from placement.explanation import CACHED, JOINED, LEAST_LOADED, OVERLOADED
from placement.facts import (
    BatchArrangement,
    Move,
    Prediction,
    TrajectoryFacts,
    WorkerFacts,
    WorkerLoad,
)
from placement.moves import SoonerRule, worker_pace
from placement.policies.grouping import (
    as_arrangement,
    known_predictions,
    worker_for_length,
    workers_of_longer,
)
from placement.policies.protocol import FleetView
from placement.priorities import Fade, rank_by_seconds, remaining_seconds
from placement.worker_loads import usable

#: A measured correlation below it implies no larger error.
_LEAST_CORRELATION: Final = 0.1
_MOST_SIGMA: Final = 3.0


class HedgedSettings(msgspec.Struct, frozen=True):
    """Settings of `hedged`; each part can be off, to measure the others."""

    fade: Fade = Fade()
    #: By which share an arrangement must be estimated to end sooner; inf: batches are not arranged.
    arrange_share: float = 0.05
    #: None: no moves.
    moves: SoonerRule | None = SoonerRule()
    #: Waits for a slot, in times to fill the cache again, at which a trajectory leaves its worker; inf: never.
    patience: float = 3.0


class HedgedPolicy:
    """Our order, arrangement and moves."""

    name = "hedged"
    folds = True

    def __init__(self, settings: HedgedSettings | None = None) -> None:
        self.settings = settings or HedgedSettings()
        self.arranges = math.isfinite(self.settings.arrange_share)

    def rank(self, trajectory: TrajectoryFacts, fleet: FleetView) -> float:
        """Return the rank by remaining seconds on its worker."""
        load = None if trajectory.worker is None else fleet.load(trajectory.worker)
        token_seconds = 0.0
        if load is not None:
            # What is served first does not wait for its turn: queues would weigh tokens more than tools.
            at_once = max(1, min(load.facts.slots, load.generations))
            context = load.context_tokens / max(1, load.trajectories)
            token_seconds = fleet.busy_times.token_seconds(load.facts.degree, at_once, context)
        said = trajectory.prediction
        return rank_by_seconds(
            None if said is None else remaining_seconds(said, token_seconds),
            trajectory.sampled_tokens * token_seconds,
            self.settings.fade.weight(fleet.correlation()),
            fleet.typical_seconds(),
        )

    def choose(self, trajectory: TrajectoryFacts, fleet: FleetView) -> tuple[int, str] | None:
        """Return where the cache is, or where the trajectory is fastest without it."""
        home = None if trajectory.worker is None else fleet.load(trajectory.worker)
        if home is not None and home.facts.usable:
            other = self._instead(home, trajectory, fleet)
            return (home.facts.number, CACHED) if other is None else (other, OVERLOADED)
        loads = usable(fleet.loads)
        if not loads:
            return None
        if trajectory.prediction is not None:
            joined = worker_for_length(fleet.groups(trajectory.batch), trajectory.total_tokens)
            if any(load.facts.number == joined for load in loads):
                assert joined is not None
                return joined, JOINED
        return self._fastest(loads, trajectory, fleet).facts.number, LEAST_LOADED

    def _instead(
        self, home: WorkerLoad, trajectory: TrajectoryFacts, fleet: FleetView
    ) -> int | None:
        """Return the worker to go to because its own is overloaded; None: it is not."""
        slots = max(1, home.facts.slots)
        before = home.generations - slots + 1
        if before <= 0:
            return None
        wait = before * fleet.generation_seconds() / slots
        tokens, times = trajectory.context_tokens, fleet.times
        longer = workers_of_longer(fleet.groups(trajectory.batch), home.facts.number)
        free = [
            load
            for load in usable(fleet.loads)
            if load.generations < load.facts.slots
            and not (load.trajectories and load.facts.number in longer)
            and wait > self.settings.patience * times.prefill_seconds(load.facts.degree, tokens)
            and load.context_tokens + tokens <= times.kv_tokens(load.facts.degree)
        ]
        return self._fastest(free, trajectory, fleet).facts.number if free else None

    def _fastest(
        self, loads: Sequence[WorkerLoad], trajectory: TrajectoryFacts, fleet: FleetView
    ) -> WorkerLoad:
        """Return the worker with the least seconds per token for one more trajectory, of equals that with fewest."""

        def pace(load: WorkerLoad) -> tuple[float, float, int]:
            context = load.context_tokens + trajectory.context_tokens
            seconds = worker_pace(load, load.trajectories + 1, context, fleet)
            return seconds, load.trajectories / max(1, load.facts.slots), load.generations

        return min(loads, key=pace)

    def arrange(
        self, batch: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts], fleet: FleetView
    ) -> BatchArrangement | None:
        """Return the arrangement of a batch where it is estimated to pay; None: it does not, or predictions are not trusted."""
        known = sum(each.prediction is not None for each in batch)
        trusted = self.settings.fade.weight(fleet.correlation()) > 0
        if not trusted or 2 * known < len(batch) or len(workers) < 2:
            return None
        predictions = known_predictions(batch)
        sigma = expected_sigma(predictions, fleet.correlation())
        if log_spread(predictions) < sigma:
            return None
        lengths = [each.tokens for each in predictions]
        contexts = [float(each.context_tokens) for each in batch]
        work = Work(lengths, [each.tool_seconds for each in predictions], contexts)
        ordered = by_degree(workers)
        grown = [context + tokens / 2 for context, tokens in zip(contexts, lengths, strict=True)]
        times = fleet.busy_times
        tables = size_tables(times, ordered, len(batch), fmean(grown), sigma)
        partition = arrange(lengths, tables, grown)
        kept = self._kept(ordered, len(batch), fmean(grown), fleet)
        before, after = (
            assignment_seconds(times, ordered, places, work, sigma)
            for places in (kept, partition.workers)
        )
        if not worthwhile(before, after, self.settings.arrange_share):
            return None
        return as_arrangement(batch, ordered, lengths, partition)

    def _kept(
        self, workers: Sequence[WorkerFacts], count: int, context: float, fleet: FleetView
    ) -> list[int]:
        """Return the place in ``workers`` that each of ``count`` new trajectories has if they are routed one by one."""
        loads = [fleet.load(worker.number) for worker in workers]
        counts = [0 if load is None else load.trajectories for load in loads]

        def pace(at: int) -> tuple[float, float, int]:
            load = WorkerLoad(workers[at], 0, counts[at] + 1, 0)
            tokens = round((counts[at] + 1) * context)
            slots = max(1, workers[at].slots)
            return worker_pace(load, counts[at] + 1, tokens, fleet), counts[at] / slots, at

        heap = [pace(at) for at in range(len(workers))]
        heapq.heapify(heap)
        found = []
        for _ in range(count):
            at = heap[0][2]
            found.append(at)
            counts[at] += 1
            heapq.heapreplace(heap, pace(at))
        return found

    def move(self, trajectory: TrajectoryFacts, fleet: FleetView) -> Move | None:
        """Return the move of a trajectory that ends sooner by it, while predictions are trusted."""
        rule = self.settings.moves
        if rule is None or self.settings.fade.weight(fleet.correlation()) <= 0:
            return None
        return rule.move(trajectory, fleet)

    def predicted(self, trajectory: TrajectoryFacts, prediction: Prediction) -> None:
        """Store nothing: the fleet's facts have it."""

    def left(self, trajectory: TrajectoryFacts) -> None:
        """Store nothing."""

    def remember(self) -> bytes:
        """Return nothing: there is no state."""
        return b""

    def recall(self, memory: bytes, trajectories: Mapping[str, TrajectoryFacts]) -> None:
        """Restore nothing."""


def expected_sigma(predictions: Sequence[Prediction], correlation: float) -> float:
    """Return the deviation of the log errors of predictions: the greater of what they declare and what the correlation implies.

    Of predictions with variance V in log tokens that correlate by ρ with the truth, errors of variance V(1/ρ² − 1) are to be expected.
    """
    declared = math.sqrt(fmean(each.sigma**2 for each in predictions))
    trusted = min(1.0, max(_LEAST_CORRELATION, correlation))
    implied = log_spread(predictions) * math.sqrt(1 / trusted**2 - 1)
    return min(_MOST_SIGMA, max(declared, implied))


def log_spread(predictions: Sequence[Prediction]) -> float:
    """Return the deviation of predicted log tokens: what a predictor distinguishes."""
    return pstdev([math.log1p(each.tokens) for each in predictions])
