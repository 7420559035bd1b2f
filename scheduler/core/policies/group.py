"""One group: the waiting actions that share a key resource, and what is left of it for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from domain.operators import Operator
from scheduler.core.policies.choices import Choices


@dataclass(slots=True)
class Group:
    """What a policy is shown (paper §4.2: C_j, the rest of W.split(R_j), R_j, and the heap).

    All lists are in the order in which actions are served.
    """

    resource: str
    #: What remains of the resource after the smallest uses by other groups and all claims.
    operator: Operator
    #: Admitted by the scan: at their smallest counts they all fit at once.
    candidates: Sequence[Choices]
    #: The rest of the group, waiting behind them.
    behind: Sequence[Choices] = ()
    #: Seconds until each running action that holds the resource ends; residual when overdue.
    running: Sequence[float] = ()
    #: Largest fair share of one grant in milli-units, for policies that cap.
    fair_share: int | None = None

    @property
    def elastic(self) -> bool:
        """Some candidate has a choice; otherwise there is nothing to decide."""
        return any(len(each) > 1 for each in self.candidates)


class Trial(NamedTuple):
    """One eviction that was looked at."""

    evicted: int
    #: Sum of ends in seconds; None: given up, since it cannot be below the best so far.
    objective_seconds: float | None


@dataclass(slots=True)
class Arrangement:
    """What a policy decided: the first ``len(units)`` candidates go, the others keep waiting."""

    #: Granted milli-units of the key resource, one per candidate that goes.
    units: list[int]
    #: Sum of ends of the whole group; None when the policy does not look at it.
    objective_seconds: float | None = None
    #: What was tried, in that order; the first one evicts nobody.
    trials: Sequence[Trial] = ()
    #: Predicted ends of those that go, in seconds from now.
    ends: Sequence[float] = ()


def at_smallest(group: Group) -> Arrangement:
    """Let everybody go at the smallest count (Algorithm 1, lines 5 and 6)."""
    return Arrangement(
        [each.smallest for each in group.candidates],
        ends=[each.smallest_seconds for each in group.candidates],
    )
