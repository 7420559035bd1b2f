"""PaperPolicy: Heddle as printed.

Order: Algorithm 1, by predicted remaining tokens. Workers: presorted dynamic programming over a batch that begins, with interference by the
size of groups alone (formula 3; `placement.arrange` finds the same optimum sooner, and allows empty groups), mapped to workers by degree
(§6.2). Moves: by rank of the predicted total (§5.3). A later request goes where its trajectory is, whatever the load; a trajectory
that arrives after its batch was arranged joins the group of its length, about which the paper says nothing.

It is here to be compared with. Under predictions with errors, tools that take long, or little room for caches it is slower than plain
stickiness; `hedged` is the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placement.arrange import arrange, by_degree, size_tables
from placement.explanation import CACHED, JOINED, LEAST_LOADED
from placement.facts import BatchArrangement, Move, Prediction, TrajectoryFacts, WorkerFacts
from placement.moves import Ranking, worker_by_rank
from placement.policies.grouping import as_arrangement, known_predictions, worker_for_length
from placement.policies.plain import cache_aware
from placement.policies.protocol import FleetView
from placement.priorities import rank_by_tokens
from placement.worker_loads import usable


class PaperPolicy:
    """Heddle's order, arrangement and moves."""

    name = "paper"
    arranges = True
    folds = False

    def __init__(self) -> None:
        #: By batch; what the fleet's facts determine.
        self._rankings: dict[str, Ranking] = {}

    def rank(self, trajectory: TrajectoryFacts, fleet: FleetView) -> float:
        """Return the predicted remaining tokens."""
        return rank_by_tokens(trajectory.prediction)

    def choose(self, trajectory: TrajectoryFacts, fleet: FleetView) -> tuple[int, str] | None:
        """Return where the cache is; for a new trajectory the group of its length, else the worker with fewest."""
        loads = usable(fleet.loads)
        if not loads:
            return None
        numbers = {load.facts.number for load in loads}
        if trajectory.worker in numbers:
            assert trajectory.worker is not None
            return trajectory.worker, CACHED
        if trajectory.prediction is not None:
            joined = worker_for_length(fleet.groups(trajectory.batch), trajectory.total_tokens)
            if joined in numbers:
                assert joined is not None
                return joined, JOINED
        load, _ = cache_aware(trajectory, loads)
        return load.facts.number, LEAST_LOADED

    def arrange(
        self, batch: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts], fleet: FleetView
    ) -> BatchArrangement | None:
        """Return the arrangement of least cost, by the size of groups alone."""
        lengths = [each.tokens for each in known_predictions(batch)]
        contexts = [
            each.context_tokens + tokens / 2 for each, tokens in zip(batch, lengths, strict=True)
        ]
        ordered = by_degree(workers)
        tables = size_tables(fleet.times, ordered, len(batch), sum(contexts) / len(contexts))
        return as_arrangement(batch, ordered, lengths, arrange(lengths, tables))

    def move(self, trajectory: TrajectoryFacts, fleet: FleetView) -> Move | None:
        """Return the move to the worker of its rank."""
        groups, ranking = fleet.groups(trajectory.batch), self._rankings.get(trajectory.batch)
        position = None if ranking is None else ranking.position(trajectory.key)
        if not groups or position is None or trajectory.worker is None:
            return None
        target = worker_by_rank(groups, position, fleet.remaining(trajectory.batch))
        if target == trajectory.worker:
            return None
        length, tokens = trajectory.total_tokens, trajectory.context_tokens
        return Move(trajectory.key, trajectory.worker, target, tokens, 0.0, length)

    def predicted(self, trajectory: TrajectoryFacts, prediction: Prediction) -> None:
        """Rank a trajectory by its new predicted total."""
        self._rank(trajectory, trajectory.sampled_tokens + prediction.tokens)

    def _rank(self, trajectory: TrajectoryFacts, total_tokens: float) -> None:
        if trajectory.batch:
            ranking = self._rankings.setdefault(trajectory.batch, Ranking())
            ranking.put(trajectory.key, trajectory.order, total_tokens)

    def left(self, trajectory: TrajectoryFacts) -> None:
        """Take a trajectory out of its batch's ranking."""
        ranking = self._rankings.get(trajectory.batch)
        if ranking is not None:
            ranking.remove(trajectory.key)
            if not len(ranking):
                del self._rankings[trajectory.batch]

    def remember(self) -> bytes:
        """Return nothing: rankings follow from predicted totals."""
        return b""

    def recall(self, memory: bytes, trajectories: Mapping[str, TrajectoryFacts]) -> None:
        """Rank the trajectories of a fleet."""
        self._rankings = {}
        for each in trajectories.values():
            if each.prediction is not None:
                self._rank(each, each.total_tokens)
