"""Conditions of all kinds of problems: what is wrong in some facts.

One function for each kind returns the conditions that hold, or None where its facts are unknown. Texts name
times of day in UTC and no ages, so that they change with facts only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from tangram_web.problems import kinds, part_conditions, web_conditions, work_conditions
from tangram_web.problems.facts import Condition, Found, SystemFacts
from tangram_web.problems.kinds import ProblemKind
from tangram_web.problems.thresholds import ProblemThresholds

Check = Callable[[SystemFacts, ProblemThresholds, Collection[str]], Found]

CHECKS: Final[dict[ProblemKind, Check]] = {
    kinds.NODE_LOST: part_conditions.node_lost,
    kinds.NODE_LATE: part_conditions.node_late,
    kinds.PART_DEAD: part_conditions.part_dead,
    kinds.PART_LATE: part_conditions.part_late,
    kinds.WEB_DEAD: web_conditions.web_dead,
    kinds.WEB_LATE: web_conditions.web_late,
    kinds.POOL_PAUSED: work_conditions.pool_paused,
    kinds.QUOTA_EXHAUSTED: work_conditions.quota_exhausted,
    kinds.CIRCUIT_OPEN: work_conditions.circuit_open,
    kinds.SERVICE_THRASHING: work_conditions.service_thrashing,
    kinds.SERVICE_QUARANTINED: work_conditions.service_quarantined,
    kinds.TASK_FAILING: work_conditions.task_failing,
    kinds.FAMILY_SLOW: work_conditions.family_slow,
    kinds.DISK_SHORT: part_conditions.disk_short,
    kinds.REDIS_MEMORY: part_conditions.redis_memory,
    kinds.REDIS_REPLICAS: part_conditions.redis_replicas,
    kinds.BLOCKER: work_conditions.blocker,
    kinds.DEAD_LETTERS: part_conditions.dead_letters,
    kinds.WEBHOOK_FAILING: part_conditions.webhook_failing,
}


def conditions_of(
    facts: SystemFacts, thresholds: ProblemThresholds, raised: Collection[str] = ()
) -> tuple[list[Condition], set[str]]:
    """Return the conditions that hold, and the kinds whose facts are unknown."""
    found: list[Condition] = []
    unknown: set[str] = set()
    for kind, check in CHECKS.items():
        holding = check(facts, thresholds, raised)
        if holding is None:
            unknown.add(kind.key)
        else:
            found += holding
    return found, unknown
