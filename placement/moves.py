"""Rules of moves: where the cache of a trajectory that is in a tool is better, by rank as the paper has it, or by when it ends.

By rank (heddle, §5.3). Trajectories of a batch are ranked by predicted total, longest first. Group i of the arrangement had s_i of n
members; of n* that are left, ranks below the real bound (s_1 + … + s_i) · n*/n belong to its worker. No load is looked at.

By ends (`SoonerRule`). A trajectory moves where it ends sooner by a share of what is left for it (20 %), the transfer counted; and only
where the longest trajectory there, slowed by it, still ends before it would have. So a move shortens what it is for, and does not
lengthen what it is not for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import fsum

import msgspec

from placement.facts import ArrangedGroup, Move, Prediction, TrajectoryFacts, WorkerLoad
from placement.policies.protocol import FleetView


class Ranking:
    """Trajectories of a batch by predicted total, longest first; ties by arrival."""

    def __init__(self) -> None:
        self._order: list[tuple[float, int]] = []
        self._places: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def put(self, key: str, order: int, total_tokens: float) -> None:
        """Add a trajectory, or change its total."""
        self.remove(key)
        place = self._places[key] = (-total_tokens, order)
        insort(self._order, place)

    def remove(self, key: str) -> None:
        """Remove a trajectory, if it is ranked."""
        place = self._places.pop(key, None)
        if place is not None:
            del self._order[bisect_left(self._order, place)]

    def position(self, key: str) -> int | None:
        """Return how many are before a trajectory; None: it is not ranked."""
        place = self._places.get(key)
        return None if place is None else bisect_left(self._order, place)


def worker_by_rank(groups: Sequence[ArrangedGroup], position: int, left: int) -> int:
    """Return the worker whose scaled group has ``position`` when ``left`` of the trajectories are left."""
    arranged = sum(group.size for group in groups)
    bound = 0
    for group in groups:
        bound += group.size
        if position < bound * left / arranged:
            return group.worker
    return groups[-1].worker


class SoonerRule(msgspec.Struct, frozen=True, gc=False):
    """Moves by when trajectories end."""

    #: Of the seconds that are left: a smaller gain moves nothing.
    least_share: float = 0.2
    #: A trajectory with less left is not worth a transfer.
    least_seconds: float = 2.0

    def move(self, trajectory: TrajectoryFacts, fleet: FleetView) -> Move | None:
        """Return the move of a trajectory that is in a tool; None: it stays."""
        source = None if trajectory.worker is None else fleet.load(trajectory.worker)
        if source is None or trajectory.prediction is None:
            return None
        tokens, tools = trajectory.prediction.tokens, trajectory.prediction.tool_seconds
        candidates = least_crowded_by_degree(source, fleet)
        if not candidates or tokens <= 0:
            return None
        here = tools + tokens * self._pace(source, trajectory, fleet)
        if here < self.least_seconds:
            return None
        transfer = fleet.times.transfer_seconds(trajectory.context_tokens)
        paces = [(self._pace(target, trajectory, fleet), target) for target in candidates]
        pace, target = min(paces, key=lambda each: (each[0], each[1].facts.number))
        there = transfer + tools + tokens * pace
        if there > (1 - self.least_share) * here:
            return None
        if _longest_seconds(target, trajectory, fleet) > here:
            return None
        return Move(
            trajectory.key,
            source.facts.number,
            target.facts.number,
            trajectory.context_tokens,
            here - there,
            here,
        )

    def _pace(self, load: WorkerLoad, trajectory: TrajectoryFacts, fleet: FleetView) -> float:
        """Return the seconds per token that a trajectory has on a worker until its end."""
        assert trajectory.prediction is not None
        here = load.facts.number == trajectory.worker
        context = load.context_tokens + (0 if here else trajectory.context_tokens)
        beside = _beside(load, trajectory.key, trajectory.prediction.tokens, fleet)
        return worker_pace(load, 1 + beside, context, fleet)


def _beside(load: WorkerLoad, key: str, tokens: float, fleet: FleetView) -> float:
    """Return how many others generate on a worker, on average, while a trajectory samples ``tokens``."""
    pace = worker_pace(load, load.trajectories, load.context_tokens, fleet)
    others = (fleet.trajectories[each] for each in fleet.residents(load.facts.number))
    # `fsum`, since the order of residents is not part of a snapshot.
    return fsum(_share(other.prediction, tokens, pace) for other in others if other.key != key)


def _share(left: Prediction | None, tokens: float, pace: float) -> float:
    """Return for which part of a trajectory with ``tokens`` left another one generates; an unknown one always does."""
    if left is None:
        return 1.0
    generating = left.tokens * pace
    whole = generating + left.tool_seconds
    return min(1.0, left.tokens / tokens) * generating / whole if whole else 0.0


def _longest_seconds(load: WorkerLoad, joining: TrajectoryFacts, fleet: FleetView) -> float:
    """Return the seconds until the longest trajectory of a worker ends with one more beside it."""
    known = [fleet.trajectories[each].prediction for each in fleet.residents(load.facts.number)]
    left = [each for each in known if each is not None]
    if not left:
        return 0.0
    longest = max(left, key=lambda each: (each.tokens, each.tool_seconds))
    context = load.context_tokens + joining.context_tokens
    beside = _beside(load, "", max(1.0, longest.tokens), fleet)
    pace = worker_pace(load, 1 + beside, context, fleet)
    return max(each.tokens * pace + each.tool_seconds for each in left)


def worker_pace(load: WorkerLoad, batch: float, context_tokens: int, fleet: FleetView) -> float:
    """Return the seconds per token of each of ``batch`` sequences, in turns where slots or room for caches do not suffice.

    ``context_tokens``: of all trajectories that are on the worker.
    """
    facts, times = load.facts, fleet.busy_times
    slots = max(1, facts.slots)
    at_once = max(1, min(slots, round(batch)))
    context = context_tokens / max(1, load.trajectories)
    turns = max(1.0, batch / slots, context_tokens / max(1.0, times.kv_tokens(facts.degree)))
    return times.token_seconds(facts.degree, at_once, context) * turns


def least_crowded_by_degree(source: WorkerLoad, fleet: FleetView) -> list[WorkerLoad]:
    """Return of each degree the usable worker, other than ``source`` and with its weights, with fewest trajectories by slot."""
    found: dict[int, WorkerLoad] = {}
    for load in fleet.loads:
        facts = load.facts
        if not facts.usable or facts.number == source.facts.number:
            continue
        if facts.weights_version != source.facts.weights_version:
            continue
        best = found.get(facts.degree)
        if best is None or _crowd(load) < _crowd(best):
            found[facts.degree] = load
    return list(found.values())


def _crowd(load: WorkerLoad) -> tuple[float, int]:
    return load.trajectories / max(1, load.facts.slots), load.context_tokens
