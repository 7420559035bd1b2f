"""Groups: the waiting actions that share a key resource, and the units left for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from domain.resources import MILLI
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.profile import Profile

if TYPE_CHECKING:  # numpy, which a web process never needs
    from domain.operators import Operator


@dataclass(slots=True)
class Group:
    """Input of a policy (paper §4.2: C_j, the rest of W.split(R_j), R_j, and the heap).

    All lists are in service order.
    """

    resource: str
    #: Units left after the smallest uses of other groups and all claims.
    operator: Operator
    #: Admitted by the scan: at their smallest counts they all fit at once.
    candidates: Sequence[Choices]
    #: The rest of the group, behind the candidates.
    behind: Sequence[Choices] = ()
    #: Seconds until each running action that holds the resource ends; residual when overdue.
    running: Sequence[float] = ()
    #: Largest fair share of one grant in milli-units, for policies that cap.
    fair_share: int | None = None

    @property
    def elastic(self) -> bool:
        """Some candidate has several counts; otherwise there is nothing to decide."""
        return any(len(each) > 1 for each in self.candidates)


class TriedEviction(NamedTuple):
    """One number of evictions that was evaluated."""

    evicted: int
    #: Sum of finish times in seconds; None: pruned, since it cannot be below the best so far.
    objective_seconds: float | None


@dataclass(slots=True)
class Arrangement:
    """Output of a policy: the first ``len(units)`` candidates are granted, the others keep waiting."""

    #: Granted milli-units of the key resource, one per granted candidate.
    units: list[int]
    #: Sum of finish times of the group; None when the policy does not compute it.
    objective_seconds: float | None = None
    #: Evictions in the order in which they were tried; the first one evicts no candidate.
    trials: Sequence[TriedEviction] = ()
    #: Predicted ends of the granted candidates, in seconds from now.
    ends: Sequence[float] = ()


def at_smallest(group: Group) -> Arrangement:
    """Grant all candidates at their smallest counts (Algorithm 1, lines 5 and 6)."""
    return Arrangement(
        [each.smallest for each in group.candidates],
        ends=[each.smallest_seconds for each in group.candidates],
    )


class ResizeCandidate(NamedTuple):
    """A malleable action, running or about to start."""

    profile: Profile
    #: Remaining part of T_ori; None: unknown.
    left_seconds: float | None
    project: str = ""
    #: How much its completion time counts.
    weight: float = 1.0


class Outlook(NamedTuple):
    """A submitted action, as seen by a policy that orders actions by their trajectories; all in seconds."""

    #: Predicted rest of its trajectory, and the largest such rest in the pool.
    remaining_seconds: float
    longest_seconds: float
    #: Predicted delay of all actions together that it would overtake.
    delay_seconds: float = 0.0
    #: Such delays so far, and the ACT of finished actions.
    delayed_seconds: float = 0.0
    act_seconds: float = 0.0


def fair_share(units: int, elastic: int) -> int:
    """Return the cap on a grant when ``units`` milli-units serve that many elastic actions."""
    return max(1, -(-max(0, units) // (MILLI * max(1, elastic)))) * MILLI
