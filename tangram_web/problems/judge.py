"""Judge of problems: what becomes of conditions over time. Pure; time is an argument.

Rules
1. A condition that holds for the ``raise_seconds`` of its kind without a break raises a problem: *new*, and
   *held* after `NEW_SECONDS`.
2. A problem whose condition is gone for the ``clear_seconds`` of its kind without a break is *cleared*. It
   stays listed for `LISTED_SECONDS`. A break that is shorter changes nothing, so a condition that
   flickers raises one problem, once.
3. A condition that holds again after its problem was cleared is another incident.
4. An operator acknowledges a problem; it stays listed and leaves the banner. The note ends with the incident.
5. While the facts of a kind are unknown, its problems stay as they are, and the time does not count.
6. Problems rank by severity, then by the actions that they hold up, then by age; cleared ones come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from tangram_web.problems.conditions import conditions_of
from tangram_web.problems.facts import Condition, SystemFacts
from tangram_web.problems.kinds import KIND_OF, ProblemKind, Severity
from tangram_web.problems.thresholds import ProblemThresholds

#: A problem is new for this long.
NEW_SECONDS: Final = 60.0
#: A cleared problem is listed for this long.
LISTED_SECONDS: Final = 600.0
_SEVERITIES: Final = list(Severity)


class ProblemState(StrEnum):
    """State of a problem."""

    #: The condition does not hold long enough yet; not listed.
    PENDING = "pending"
    NEW = "new"
    HELD = "held"
    ACKNOWLEDGED = "acknowledged"
    CLEARED = "cleared"


#: States of problems that are there.
RAISED: Final = (ProblemState.NEW, ProblemState.HELD, ProblemState.ACKNOWLEDGED)


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator said to a problem."""

    by: str
    note: str
    at: float
    #: `SystemProblem.raised_at` of the incident that it is about.
    incident: float


class SystemProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A condition and what became of it. Times are wall clock."""

    condition: Condition
    state: ProblemState
    #: Since when the condition holds.
    began_at: float
    raised_at: float = 0.0
    #: When the condition was last seen, and when the facts were last known.
    seen_at: float
    #: Since when the condition is gone; None while it holds.
    gone_at: float | None = None
    cleared_at: float | None = None
    acknowledged: Acknowledgement | None = None
    #: Whether the raise and the clear were handed to the outbox of webhooks.
    announced: bool = False
    clear_announced: bool = False

    @property
    def id(self) -> str:
        """Return what identifies the problem."""
        return self.condition.id

    @property
    def is_raised(self) -> bool:
        """Whether it is raised and not cleared."""
        return self.state in RAISED

    @property
    def is_critical(self) -> bool:
        """Whether it is raised and critical, and not acknowledged."""
        critical = self.condition.severity == Severity.CRITICAL
        return critical and self.state in (ProblemState.NEW, ProblemState.HELD)

    @property
    def since(self) -> float:
        """Return since when it is there, by its facts or as it was seen."""
        return self.began_at if self.condition.since is None else self.condition.since

    @property
    def incident(self) -> str:
        """Return what identifies this incident among all of the problem."""
        return f"{self.id}@{self.raised_at:.3f}"


def judge(
    facts: SystemFacts,
    previous: Iterable[SystemProblem],
    now: float,
    thresholds: ProblemThresholds,
    acknowledgements: Mapping[str, Acknowledgement] | None = None,
) -> list[SystemProblem]:
    """Return the problems at ``now`` in their rank, pending ones included."""
    before = {each.id: each for each in previous}
    raised = {key for key, each in before.items() if each.is_raised}
    found, unknown = conditions_of(facts, thresholds, raised)
    return follow(found, unknown, before, now, acknowledgements or {})


def follow(
    found: Iterable[Condition],
    unknown: Iterable[str],
    before: Mapping[str, SystemProblem],
    now: float,
    acknowledgements: Mapping[str, Acknowledgement],
) -> list[SystemProblem]:
    """Return what becomes of the problems ``before`` with the conditions that hold now."""
    holding = {each.id: each for each in found}
    blind = set(unknown)
    after: list[SystemProblem] = []
    for key in before.keys() | holding.keys():
        known, condition = before.get(key), holding.get(key)
        if known is not None and known.condition.kind in blind:
            kept: SystemProblem | None = msgspec.structs.replace(known, seen_at=now)
        elif condition is not None:
            kept = _holds(known, condition, now)
        else:
            assert known is not None
            kept = _gone(known, now)
        if kept is not None:
            after.append(_acknowledged(kept, acknowledgements.get(key)))
    return ranked(after)


def _holds(known: SystemProblem | None, condition: Condition, now: float) -> SystemProblem | None:
    kind = KIND_OF[condition.kind]
    if known is None or known.state is ProblemState.CLEARED:
        state, began = ProblemState.PENDING, now
        announced = known is not None and not known.clear_announced and known.announced
        if announced:  # the end of the incident before is announced first
            return known
        known = SystemProblem(condition=condition, state=state, began_at=began, seen_at=now)
    held = msgspec.structs.replace(known, condition=condition, seen_at=now, gone_at=None)
    if held.state is ProblemState.PENDING:
        if now - held.began_at < kind.raise_seconds:
            return held
        return msgspec.structs.replace(held, state=ProblemState.NEW, raised_at=now)
    if held.state is ProblemState.NEW and now - held.raised_at >= NEW_SECONDS:
        return msgspec.structs.replace(held, state=ProblemState.HELD)
    return held


def _gone(known: SystemProblem, now: float) -> SystemProblem | None:
    kind: ProblemKind = KIND_OF[known.condition.kind]
    if known.state is ProblemState.PENDING:
        return None
    if known.state is ProblemState.CLEARED:
        listed = now - (known.cleared_at or 0.0) < LISTED_SECONDS
        return known if listed else None
    gone_at = now if known.gone_at is None else known.gone_at
    if now - gone_at < kind.clear_seconds:
        return msgspec.structs.replace(known, gone_at=gone_at)
    return msgspec.structs.replace(
        known, state=ProblemState.CLEARED, gone_at=gone_at, cleared_at=now
    )


def _acknowledged(problem: SystemProblem, given: Acknowledgement | None) -> SystemProblem:
    """Apply the acknowledgement of this incident, or its end."""
    if not problem.is_raised:
        return problem
    if given is not None and abs(given.incident - problem.raised_at) < 0.001:
        return msgspec.structs.replace(problem, state=ProblemState.ACKNOWLEDGED, acknowledged=given)
    if problem.state is ProblemState.ACKNOWLEDGED:
        return msgspec.structs.replace(problem, state=ProblemState.HELD, acknowledged=None)
    return problem


def ranked(problems: Iterable[SystemProblem]) -> list[SystemProblem]:
    """Return the problems in their rank."""
    return sorted(problems, key=rank)


def rank(problem: SystemProblem) -> tuple[bool, int, int, float, str]:
    """Return the key of the order: severity, actions held up, age, and the id of equals."""
    condition = problem.condition
    return (
        not problem.is_raised,
        _SEVERITIES.index(Severity(condition.severity)),
        -condition.affected,
        problem.since,
        problem.id,
    )


def listed(problems: Iterable[SystemProblem]) -> list[SystemProblem]:
    """Return the problems that readers see: all but pending ones."""
    return [each for each in problems if each.state is not ProblemState.PENDING]
