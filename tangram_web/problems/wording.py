"""Words of problems, and how a condition is made of them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from tangram_web.problems.facts import Condition
from tangram_web.problems.kinds import ProblemKind


def verb_address(kind: str, verb: str, target: str) -> str:
    """Return the address of the page of a verb."""
    return f"/act/{kind}/{verb}/?{urlencode({'target': target})}"


def clock(wall: float) -> str:
    """Return a time of day: ``07:18:11 UTC``."""
    return f"{datetime.fromtimestamp(wall, UTC):%H:%M:%S} UTC"


def counted(count: float, word: str) -> str:
    """Return a number with its noun: ``1 action``, ``1,200 actions``."""
    return f"{count:,.0f} {word}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Return a time in words, as pages show it: ``3.1 s``, ``12 min 16 s``."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def span(seconds: float) -> str:
    """Return a round length of time: ``10 min``, ``1 h``."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def hold(
    kind: ProblemKind, subject: str, title: str, brief: str, detail: str, **rest: Any
) -> Condition:
    given: dict[str, Any] = {"severity": kind.severity.value} | rest
    return Condition(
        kind=kind.key, subject=subject, title=title, brief=brief, detail=detail, **given
    )


def limit_of(
    kind: ProblemKind, subject: str, raised: Collection[str], upper: float, lower: float
) -> float:
    """Return the threshold of a problem: the lower one while it is raised."""
    return lower if f"{kind.key}:{subject}" in raised else upper
