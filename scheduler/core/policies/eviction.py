"""Greedy eviction: how many candidates are granted, and their units (paper §4.2, Algorithm 1, lines 7 to 12).

The objective of a prefix of the candidates is the sum of ends of all actions of the group: exact
for the prefix, at its best allocation, and estimated for the actions behind it (Algorithm 2).
Starting with all candidates, the last one is evicted while the objective falls.

Departures
1. The first candidate is never evicted (line 12 returns C[: -t + 1]).
2. A decrease of less than one part in 10⁹ is ignored, so that rounding never decides.
3. The computation of an objective stops once it cannot be below the best so far.

Cost: one arrangement for all evictions, and per eviction tried one walk back through it, O(n), and
one estimate, O(depth · r · log h).
"""

from __future__ import annotations

from scheduler.core.policies.dp_arrange import arranger, seconds_of
from scheduler.core.policies.estimate import Estimator
from scheduler.core.policies.group import Arrangement, Group, TriedEviction

#: Least relative decrease of the objective.
TOLERANCE = 1e-9


def evict(group: Group, depth: int) -> Arrangement:
    """Return the best arrangement; ``depth`` as in Algorithm 2."""
    candidates = group.candidates
    count = len(candidates)
    arranged = arranger(candidates, group.operator)
    estimator = Estimator([*candidates, *group.behind], depth)
    chosen = arranged.chosen(count)
    ends = seconds_of(candidates, chosen)
    objective = sum(ends) + estimator.estimate([*group.running, *ends], count)
    trials = [TriedEviction(0, objective)]
    for prefix in range(count - 1, 0, -1):
        # A further eviction must be below this objective.
        bound = objective - TOLERANCE * objective
        fewer = arranged.chosen(prefix)
        fewer_ends = seconds_of(candidates, fewer)
        exact = sum(fewer_ends)
        found = exact + estimator.estimate([*group.running, *fewer_ends], prefix, bound - exact)
        trials.append(TriedEviction(count - prefix, found if found < bound else None))
        if not found < bound:
            break
        objective, chosen, ends = found, fewer, fewer_ends
    units = [each.units[choice] for each, choice in zip(candidates, chosen, strict=False)]
    return Arrangement(units, objective, trials, ends)
