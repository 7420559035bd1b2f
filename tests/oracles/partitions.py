"""Every assignment of trajectories to workers, and every division of GPUs, one by one: what the best one costs, for few of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from placement.arrange import Presorted, SizeTable

Tables = Sequence[Sequence[float]]


def assignment_cost(lengths: Sequence[float], workers: Sequence[int], tables: Tables) -> float:
    """Return formula 2: the greatest of longest × seconds per token at the group's size."""
    groups = [
        [length for length, worker in zip(lengths, workers, strict=True) if worker == number]
        for number in range(len(tables))
    ]
    return max(
        max(group) * table[len(group) - 1] if group else 0.0
        for group, table in zip(groups, tables, strict=True)
    )


def least_cost_of_assignments(lengths: Sequence[float], tables: Tables) -> float:
    """Return the least cost over all m^n assignments."""
    every = product(range(len(tables)), repeat=len(lengths))
    return min(assignment_cost(lengths, workers, tables) for workers in every)


def divisions(gpus: int, degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every multiset of ``degrees`` with the sum ``gpus``, each descending."""
    if not gpus:
        yield ()
    for number, degree in enumerate(sorted(degrees, reverse=True)):
        if degree <= gpus:
            lower = sorted(degrees, reverse=True)[number:]
            for rest in divisions(gpus - degree, lower):
                yield (degree, *rest)


def least_cost_of_divisions(
    trajectories: Presorted, gpus: int, tables: Mapping[int, SizeTable]
) -> tuple[float, int, int]:
    """Return the least cost over all divisions, how many there are, and how many were evaluated.

    A division that does not meet the best cost so far is left out by one greedy fill.
    """
    best, every, evaluated = float("inf"), 0, 0
    for degrees in divisions(gpus, list(tables)):
        every += 1
        workers = [tables[degree] for degree in degrees]
        if best < float("inf") and trajectories.fill(workers, best)[0] < trajectories.count:
            continue
        evaluated += 1
        best = min(best, trajectories.least_bound(workers))
    return best, every, evaluated
