"""What readers see of the problems: pages, API, CLI, metrics and topics have the same rows.

Members of some projects see the problems of these projects and those of what all share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time
from typing import Any

import msgspec
import redis

from tangram_web.lib import bus
from tangram_web.lib.redis_replication import why_refused
from tangram_web.live.access import Sight
from tangram_web.live.topic_store import stored_snapshot
from tangram_web.live.topics import OVERVIEW, RESOURCES
from tangram_web.problems.facts import Condition
from tangram_web.problems.health import (
    UNKNOWN_SECONDS,
    SystemHealth,
    health_of,
    last_cleared,
    unknown_health,
)
from tangram_web.problems.judge import ProblemState, SystemProblem, listed
from tangram_web.problems.kinds import DOCUMENT, KIND_OF
from tangram_web.problems.stored import ProblemStore, StoredProblems
from tangram_web.problems.wording import duration


class ProblemRow(msgspec.Struct, kw_only=True):
    """One problem as readers see it. Times are seconds since 1970."""

    id: str
    kind: str
    kind_name: str
    severity: str
    state: str
    condition: Condition
    since: float
    raised_at: float
    cleared_at: float | None = None
    acknowledged_by: str = ""
    note: str = ""
    #: Section of the documentation.
    help: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it is cleared."""
        return self.state == ProblemState.CLEARED


class ProblemsView(msgspec.Struct, kw_only=True):
    """The health of the system, and the problems in their rank."""

    health: SystemHealth
    #: Second sentence: what runs, and how fast.
    detail: str = ""
    rows: list[ProblemRow] = []
    #: Wall clock of the judgement; 0: there was none.
    at: float = 0.0

    @property
    def count(self) -> int:
        """Number of problems that are raised."""
        return self.health.count

    @property
    def critical(self) -> int:
        """Number of critical problems that are not acknowledged."""
        return self.health.critical

    @property
    def banner(self) -> str:
        """Row of the banner; empty while nothing is critical."""
        return self.health.banner


def row_of(problem: SystemProblem) -> ProblemRow:
    """Return a problem as readers see it."""
    kind, said = KIND_OF[problem.condition.kind], problem.acknowledged
    return ProblemRow(
        id=problem.id,
        kind=kind.key,
        kind_name=kind.name,
        severity=problem.condition.severity,
        state=problem.state.value,
        condition=problem.condition,
        since=problem.since,
        raised_at=problem.raised_at,
        cleared_at=problem.cleared_at,
        acknowledged_by="" if said is None else said.by,
        note="" if said is None else said.note,
        help=f"{DOCUMENT}#{kind.anchor}",
    )


def seen_in(problems: Iterable[SystemProblem], project: str) -> list[SystemProblem]:
    """Return the listed problems that a page of one project shows; all where it is empty."""
    return [
        each for each in listed(problems) if not project or each.condition.project in ("", project)
    ]


def seen_by(problems: Iterable[SystemProblem], sight: Sight) -> list[SystemProblem]:
    """Return the listed problems that a reader may see."""
    return [
        each
        for each in listed(problems)
        if not each.condition.project or sight.sees(each.condition.project)
    ]


def view_of(
    stored: StoredProblems,
    seen: list[SystemProblem],
    overview: Mapping[str, Any] | None,
    now: float,
) -> ProblemsView:
    """Return what a reader who sees these problems is shown."""
    if now - stored.at > UNKNOWN_SECONDS:
        age = now - stored.at if stored.at else None
        return ProblemsView(health=unknown_health(age), at=stored.at)
    counts = (overview or {}).get("counts", {})
    oldest = (overview or {}).get("oldest_seconds")
    return ProblemsView(
        health=health_of(seen, counts.get("queued", 0), oldest),
        detail=_detail(stored, seen, overview),
        rows=[row_of(each) for each in seen],
        at=stored.at,
    )


def _detail(
    stored: StoredProblems, seen: list[SystemProblem], overview: Mapping[str, Any] | None
) -> str:
    parts = []
    if overview:
        running = overview["counts"]["running"]
        parts.append(f"{running:,} {'action runs' if running == 1 else 'actions run'}.")
        p95 = overview["durations"]["phases"]["act"]["p95"]
        if p95 is not None:
            parts.append(f"Action completion time p95 is {duration(p95)}{_usual(stored, p95)}.")
    cleared = last_cleared(seen)
    if cleared is not None:
        parts.append(f"Last problem: {cleared.condition.brief}, now cleared.")
    return " ".join(parts)


def _usual(stored: StoredProblems, p95: float) -> str:
    if stored.usual_p95 is None:
        return ""
    low, high = stored.usual_p95
    between = f"{duration(low)} to {duration(high)}"
    if low <= p95 <= high:
        return f", as usual at this hour ({between})"
    return f"; at this hour it is usually {between}"


def problems_body(
    stored: StoredProblems, seen: list[SystemProblem], overview: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the body of the topic: health and rows."""
    view = view_of(stored, seen, overview, stored.at)
    return {
        "health": msgspec.to_builtins(view.health),
        "detail": view.detail,
        "rows": [msgspec.to_builtins(row) for row in view.rows],
        "waiting": (overview or {}).get("counts", {}).get("queued", 0),
        "judged": stored.at,
    }


def problems_for(sight: Sight | None, project: str = "", now: float | None = None) -> ProblemsView:
    """Return the problems that a reader sees, of one project or of all that may be seen.

    Without access there are none. While Redis does not answer, the health is unknown.
    """
    at = time() if now is None else now
    if sight is None:
        return ProblemsView(health=unknown_health(None))
    client = bus.impatient_client()
    topic = f"{OVERVIEW}@{project}" if project else OVERVIEW
    try:
        stored = ProblemStore(client, bus.keys()).load()
        everything = sight.everything or bool(project)
        overview = stored_snapshot(client, topic) if everything else {}
        if at - stored.at > UNKNOWN_SECONDS and (why := why_refused(client, bus.keys())):
            age = at - stored.at if stored.at else None
            return ProblemsView(health=unknown_health(age, why), at=stored.at)
    except redis.RedisError:
        return ProblemsView(health=unknown_health(None))
    seen = seen_in(seen_by(stored.problems, sight), project)
    return view_of(stored, seen, overview or None, at)


def problem_lines(sight: Sight) -> list[str]:
    """Return each problem that is raised in one line, worst first."""
    rows = problems_for(sight).rows
    return [
        f"{row.severity}: {row.condition.title}. {row.condition.detail}"
        for row in rows
        if not row.is_over
    ]


def resources_for(project: str) -> list[dict[str, Any]]:
    """Return the rows of resources as they were published last; none before. Raises redis.RedisError."""
    topic = f"{RESOURCES}@{project}" if project else RESOURCES
    found: list[dict[str, Any]] = stored_snapshot(bus.impatient_client(), topic).get("rows", [])
    return found
