"""Health of the system in one sentence, and the row of the banner; the same text for page, API and CLI."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tangram_web.problems.judge import ProblemState, SystemProblem
from tangram_web.problems.kinds import KINDS
from tangram_web.problems.wording import counted, duration

#: Problems that a sentence names.
NAMED: Final = 3
#: Without an evaluation for this long the health is unknown.
UNKNOWN_SECONDS: Final = 10.0
_SMALL: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class HealthState(StrEnum):
    """Health of the system."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"


class SystemHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, in words."""

    state: HealthState
    headline: str
    #: Row of the banner; empty while nothing is critical.
    banner: str = ""
    #: Number of problems that are raised, acknowledged ones included.
    count: int = 0
    critical: int = 0
    #: Actions that critical problems hold up.
    actions: int = 0
    conditions: int = len(KINDS)


def unknown_health(age: float | None, why: str = "") -> SystemHealth:
    """Return the health without an evaluation of late, and why there is none."""
    said = "No data yet." if age is None else f"No data for {age:,.0f} s."
    return SystemHealth(state=HealthState.UNKNOWN, headline=f"{why} {said}".strip(), banner=why)


def health_of(
    problems: Sequence[SystemProblem], waiting: int = 0, oldest_seconds: float | None = None
) -> SystemHealth:
    """Return the health with these problems while so many actions wait."""
    raised = [each for each in problems if each.is_raised]
    critical = [each for each in raised if each.is_critical]
    open_ = [each for each in raised if each.state is not ProblemState.ACKNOWLEDGED]
    if critical:
        state = HealthState.CRITICAL
    elif open_:
        state = HealthState.WARNING
    else:
        state = HealthState.OK
    return SystemHealth(
        state=state,
        headline=_headline(raised, critical, open_, waiting, oldest_seconds),
        banner=_banner(critical),
        count=len(raised),
        critical=len(critical),
        actions=sum(each.condition.affected for each in critical),
    )


def _headline(
    raised: Sequence[SystemProblem],
    critical: Sequence[SystemProblem],
    open_: Sequence[SystemProblem],
    waiting: int,
    oldest_seconds: float | None,
) -> str:
    if not open_:
        known = f" {counted(len(raised), 'acknowledged problem')}." if raised else ""
        return f"Everything works. {_waits(waiting, oldest_seconds)}{known}"
    first = f"{counted(len(open_), 'problem')}."
    if not critical:
        return f"{first} No action is held up: {_names(open_)}."
    actions = sum(each.condition.affected for each in critical)
    number = _in_words(len(critical)).capitalize()
    if len(critical) == len(open_):
        verb = "It holds" if len(critical) == 1 else "They hold"
    else:
        verb = f"{number} holds" if len(critical) == 1 else f"{number} hold"
    if not actions:
        return f"{first} {number} {'is' if len(critical) == 1 else 'are'} critical: {_names(critical)}."
    return f"{first} {verb} up {counted(actions, 'action')}: {_names(critical)}."


def _waits(waiting: int, oldest_seconds: float | None) -> str:
    if not waiting:
        return "No action waits."
    verb = "waits" if waiting == 1 else "wait"
    longest = "" if oldest_seconds is None else f", none longer than {duration(oldest_seconds)}"
    return f"{counted(waiting, 'action')} {verb}{longest}."


def _banner(critical: Sequence[SystemProblem]) -> str:
    if not critical:
        return ""
    actions = sum(each.condition.affected for each in critical)
    what = f"{counted(len(critical), 'critical problem')}"
    if actions:
        what += f" {'holds' if len(critical) == 1 else 'hold'} up {counted(actions, 'action')}"
    return f"{what}: {_names(critical)}."


def _names(problems: Sequence[SystemProblem]) -> str:
    named = ", ".join(each.condition.brief for each in problems[:NAMED])
    more = len(problems) - NAMED
    return f"{named} and {more} more" if more > 0 else named


def _in_words(count: int) -> str:
    return _SMALL[count] if count < len(_SMALL) else f"{count:,}"


def last_cleared(problems: Sequence[SystemProblem]) -> SystemProblem | None:
    """Return the problem that was cleared last, of those that are still listed."""
    cleared = [each for each in problems if each.state is ProblemState.CLEARED]
    return max(cleared, key=lambda each: each.cleared_at or 0.0, default=None)
