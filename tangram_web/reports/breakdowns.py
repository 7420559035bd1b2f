"""Breakdowns of finished actions: times by phase and by family, and how many units elastic actions got. Pure.

Seconds throughout; a quantile is linear between neighbours (numpy's default), of the rows that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

PHASES: Final = ("act", "queue", "overhead", "execution")
#: Families that are listed, by their share of all time.
MOST_FAMILIES: Final = 30


class FinishedRow(NamedTuple):
    """The fields of a finished action that a report reads, in the order of its query."""

    kind: str
    family: str | None
    outcome: str
    exit_code: int | None
    cost: Mapping[str, Any]
    units: Mapping[str, float]
    act_seconds: float
    queue_seconds: float
    overhead_seconds: float
    execution_seconds: float

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than completed, or with an exit code that is not 0."""
        return self.outcome != "completed" or bool(self.exit_code)


class PhaseTimes(msgspec.Struct, frozen=True):
    """Times of one phase."""

    phase: str
    mean: float
    p50: float
    p95: float
    p99: float


class FamilyTimes(msgspec.Struct, frozen=True):
    """Actions of one family (of one kind where none is declared)."""

    family: str
    actions: int
    failed: int
    act_mean: float
    act_p95: float
    #: Share of the ACT of all actions.
    share: float


class GrantedCounts(msgspec.Struct, frozen=True):
    """Elastic actions that asked for one set of counts of a resource and got one of them."""

    resource: str
    feasible: str
    granted: float
    actions: int
    execution_mean: float


def phase_times(rows: Sequence[FinishedRow]) -> list[PhaseTimes]:
    """Return mean and quantiles of ACT and each phase; empty without rows."""
    if not rows:
        return []
    found = []
    for phase in PHASES:
        values = np.array([getattr(row, f"{phase}_seconds") for row in rows])
        p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99))
        found.append(PhaseTimes(phase, float(values.mean()), float(p50), float(p95), float(p99)))
    return found


def family_times(rows: Sequence[FinishedRow]) -> list[FamilyTimes]:
    """Return the families that take most time, the first one most."""
    groups: dict[str, list[FinishedRow]] = {}
    for row in rows:
        groups.setdefault(row.family or row.kind, []).append(row)
    whole = sum(row.act_seconds for row in rows) or 1.0
    found = [
        FamilyTimes(
            name,
            len(members),
            sum(row.failed for row in members),
            float(np.mean([row.act_seconds for row in members])),
            float(np.quantile([row.act_seconds for row in members], 0.95)),
            sum(row.act_seconds for row in members) / whole,
        )
        for name, members in groups.items()
    ]
    return sorted(found, key=lambda each: (-each.share, each.family))[:MOST_FAMILIES]


def granted_counts(rows: Sequence[FinishedRow]) -> list[GrantedCounts]:
    """Return which counts elastic actions got, by resource, feasible counts and count."""
    groups: dict[tuple[str, str, float], list[float]] = {}
    for row in rows:
        for resource, feasible in row.cost.items():
            granted = row.units.get(resource)
            if granted is not None and _elastic(feasible):
                key = (resource, _counts(feasible), float(granted))
                groups.setdefault(key, []).append(row.execution_seconds)
    return [
        GrantedCounts(*key, len(seconds), float(np.mean(seconds)))
        for key, seconds in sorted(groups.items())
    ]


def _elastic(feasible: Any) -> bool:
    """Say whether a cost lists several counts: ``[1, 2, 4]``, or ``{"min": 1, "max": 8}``."""
    if isinstance(feasible, Mapping):
        return feasible.get("min") != feasible.get("max")
    return isinstance(feasible, list) and len(feasible) > 1


def _counts(feasible: Any) -> str:
    if isinstance(feasible, Mapping):
        return f"{feasible.get('min', 1):g} to {feasible.get('max', 1):g}"
    return ", ".join(f"{count:g}" for count in feasible)
