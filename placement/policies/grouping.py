"""Groups of a batch: from predictions to the lengths that `placement.arrange` takes, and from its partition to workers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from placement.arrange import Partition
from placement.facts import (
    ArrangedGroup,
    BatchArrangement,
    Prediction,
    TrajectoryFacts,
    WorkerFacts,
)


def known_predictions(batch: Sequence[TrajectoryFacts]) -> list[Prediction]:
    """Return the prediction of each trajectory; one without has the medians of the others, or 1 token where none has any."""
    known = [each.prediction for each in batch if each.prediction is not None]
    typical = Prediction(1.0)
    if known:
        typical = Prediction(
            median(each.tokens for each in known),
            median(each.tool_seconds for each in known),
            median(each.sigma for each in known),
        )
    return [each.prediction or typical for each in batch]


def as_arrangement(
    batch: Sequence[TrajectoryFacts],
    workers: Sequence[WorkerFacts],
    lengths: Sequence[float],
    partition: Partition,
) -> BatchArrangement:
    """Return the workers of a batch; ``lengths`` and ``workers`` are those that were arranged."""
    groups = [
        ArrangedGroup(
            worker.number,
            len(group),
            max(lengths[at] for at in group),
            min(lengths[at] for at in group),
        )
        for worker, group in zip(workers, partition.groups, strict=True)
        if group
    ]
    places = zip(batch, partition.workers, strict=True)
    return BatchArrangement({each.key: workers[at].number for each, at in places}, tuple(groups))


def worker_for_length(groups: Sequence[ArrangedGroup], length: float) -> int | None:
    """Return the worker of a late trajectory: that of the shortest group with a member as long; at the ends the first or the last group."""
    found = groups[0].worker if groups else None
    for group in groups:
        if group.longest >= length:
            found = group.worker
    return found


def workers_of_longer(groups: Sequence[ArrangedGroup], worker: int) -> set[int]:
    """Return the workers whose groups are longer than that of ``worker``; none where it has no group."""
    numbers = [group.worker for group in groups]
    return set(numbers[: numbers.index(worker)]) if worker in numbers else set()
