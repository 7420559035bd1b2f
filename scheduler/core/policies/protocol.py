"""Protocol of scheduling policies: rank, arrange, resize, with the defaults of ``minimum``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from domain.elasticity import Elasticity
from domain.limits import Share
from domain.resources import UnitSet
from scheduler.core.policies.group import (
    Arrangement,
    Group,
    Outlook,
    ResizeCandidate,
    at_smallest,
)

#: Sort key of the head of a wait queue: priority, turn of its service, arrival; smaller is earlier. An
#: action that is served earlier than it arrived has two numbers in place of the last one.
Rank = tuple[float, ...]


class Policy(ABC):
    """How a pool distributes its units; immutable, equal parameters give equal decisions."""

    #: Calls of GPU services take turns (`scheduler.core.residency.service_turns`).
    takes_turns: ClassVar[bool] = True
    #: `arrange` decides about the admitted candidates; else each is granted at its `admit_count`.
    arranges: ClassVar[bool] = False
    #: Grants are capped by `Group.fair_share`, which the cycle computes on demand.
    caps_grants: ClassVar[bool] = False
    #: `arrange` sees durations with the restores that calls need (`residency.restore_costs`).
    charges_restores: ClassVar[bool] = True
    #: `resize` sets the units of malleable actions while they run.
    resizes: ClassVar[bool] = False
    #: `critical` and `lead` order the actions of trajectories; the core predicts ends for them.
    leads: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name in the configuration of pools (``paper``, ``fixed(4)``)."""

    def rank(self, rank: Rank) -> Rank:
        """Return the sort key of a queue's head among all heads."""
        return rank

    def critical(self, remaining_seconds: float, longest_seconds: float) -> bool:
        """Return whether a trajectory with this predicted rest may set the end of the step."""
        return False

    def lead(self, outlook: Outlook) -> float:
        """Return how early an action of a critical trajectory is served, from 0 (as it arrived) to 1."""
        return 0.0

    def in_pool(self, shares: Mapping[str, Mapping[str, Share]]) -> Policy:
        """Return the policy of a pool with these shares: kind → project → share."""
        return self

    def head_start(self, project: str) -> float:
        """Return how early actions of ``project`` are served, from 0 (as they arrived) to 1."""
        return 0.0

    def admit_count(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the count of the key resource at which the scan admits an action.

        ``elasticity`` is its profile, for policies that cap grants.
        """
        return units[0]

    def arrange(self, group: Group) -> Arrangement:
        """Return how many candidates of ``group`` are granted, and with which units."""
        return at_smallest(group)

    def resize(
        self,
        candidates: Sequence[ResizeCandidate],
        total: int,
        allowances: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Return the milli-units of each malleable action when they share ``total``.

        The smallest counts fit into ``total`` together. ``allowances`` limit the milli-units beyond
        them by project.
        """
        return [each.profile.counts[0] for each in candidates]
