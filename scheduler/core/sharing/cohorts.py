"""Cohorts: how much of a shared resource each project may use (Kueue's formula).

Every project has a *nominal* share. Other projects may borrow the part it does not use, up to its
lending limit; it may borrow from them, up to its borrowing limit. Capacity beyond all nominal shares
belongs to the cohort. Without a limit, everything may be lent or borrowed; a project without a share
has a nominal one of 0. (Kueue, pkg/cache/scheduler/resource_node.go.)

There is one cohort for each shared cluster-wide resource (``api:search``), and for each shared kind of a
pool: for ``cpu``, the sum over its nodes. Sums are updated with every grant and release, so a question
costs the same however many projects and actions there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from domain.chunks import CHUNKED, SIZES, amount_at, level_of
from domain.ids import ResourceId
from domain.limits import Share
from domain.resources import MILLI

#: The share of a project that has none.
NO_SHARE: Final = Share(0)


class CohortKey(NamedTuple):
    """Name of a cohort; ``pool`` is empty for a cluster-wide resource."""

    pool: str
    #: A kind of the pool's nodes (``cpu``), or the resource.
    name: str


@dataclass(slots=True)
class Cohort:
    """Shares and use of one shared resource, by project; amounts are milli-units."""

    shares: Mapping[str, Share]
    used: dict[str, int] = field(default_factory=dict)
    #: Sum of nominal shares; the part of it that may be lent; use beyond the parts that are not lent.
    nominal: int = field(init=False)
    lendable: int = field(init=False)
    beyond: int = field(init=False)

    def __post_init__(self) -> None:
        parts = self.shares.values()
        self.nominal = sum(share.nominal for share in parts)
        self.lendable = sum(share.nominal - share.kept for share in parts)
        self.beyond = sum(max(0, n - self.share_of(name).kept) for name, n in self.used.items())

    def share_of(self, project: str) -> Share:
        """Return the share of ``project``."""
        return self.shares.get(project, NO_SHARE)

    def add(self, project: str, amount: int) -> None:
        """Add ``amount``, which may be negative, to the use of ``project``."""
        kept, before = self.share_of(project).kept, self.used.get(project, 0)
        after = before + amount
        self.beyond += max(0, after - kept) - max(0, before - kept)
        if after:
            self.used[project] = after
        else:
            self.used.pop(project, None)

    def left(self, project: str, capacity: int, promised: int = 0) -> int:
        """Return how much ``project`` may still take of ``capacity``; negative after a cut.

        ``promised`` may not be borrowed: other projects wait for it within their nominal shares.
        """
        share, mine = self.share_of(project), self.used.get(project, 0)
        parent = max(0, capacity - self.nominal) + self.lendable - self.beyond - promised
        own = max(0, share.kept - mine)
        if share.borrow is None:
            return own + parent
        room = (share.nominal - share.kept) - max(0, mine - share.kept) + share.borrow
        return own + min(parent, room)

    def entitled(self, project: str, amount: int = 0) -> int:
        """Return the rest of the nominal share of ``project`` after ``amount`` more; negative if it borrows."""
        return self.share_of(project).nominal - self.used.get(project, 0) - amount


@dataclass(slots=True)
class Sharing:
    """All shared resources, and how much of them each project holds."""

    #: Follows from configuration and actions.
    cohorts: dict[CohortKey, Cohort] = field(default_factory=dict)
    #: Resources on which a share keeps malleable actions narrow: a cycle examines them again when
    #: some of it is released.
    limited: set[ResourceId] = field(default_factory=set)


def charged(name: str, amount: int) -> int:
    """Return the amount that a grant charges to a share: of a chunked resource the whole chunk."""
    if name not in CHUNKED:
        return amount
    level = level_of(amount)
    return amount if level is None else amount_at(level)


def largest_within(name: str, most: int) -> int:
    """Return the largest amount that charges no more than ``most`` to a share."""
    if name not in CHUNKED:
        return most
    return max((size * MILLI for size in SIZES if size * MILLI <= most), default=0)
