"""Conditions of work and of what it waits for: pools, quotas, services, tasks. Pure functions from facts.

Each returns None where its facts are unknown. ``raised`` has the ids of problems that are raised: they end at
the lower threshold. Names of tasks are in conditions of their project only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import quote

from domain.backends import LLM, owner_of
from tangram_web.lib.explorer_links import explorer_link
from tangram_web.problems import kinds
from tangram_web.problems.facts import BlockerFact, Condition, Found, QueueFact, SystemFacts
from tangram_web.problems.kinds import ProblemKind, Severity
from tangram_web.problems.thresholds import ProblemThresholds
from tangram_web.problems.wording import (
    clock,
    counted,
    duration,
    hold,
    limit_of,
    span,
    verb_address,
)


def pool_paused(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the paused pools with waiting actions."""
    if facts.overview is None:
        return None
    return [
        hold(
            kinds.POOL_PAUSED,
            (name := row["name"]),
            f"Pool {name} is paused",
            f"pool {name} paused",
            f"{counted(row['queued'], 'action')} wait; running ones continue.",
            affected=row["queued"],
            affected_link=explorer_link("actions", state="queued", pool=name),
            owner_note=f"pool {name}",
            verb="Resume pool…",
            verb_link=verb_address("pool", "resume", name),
            evidence="Queues",
            evidence_link="/queues/",
            marks=(f"pool/{name}",),
            mark="paused",
        )
        for row in facts.overview.get("pools", ())
        if row["paused"] and row["queued"]
    ]


def waiting_for(facts: SystemFacts, resource: str) -> int:
    """Return how many queued actions need a resource."""
    rows = (facts.overview or {}).get("wanted", ())
    return sum(int(row["waiting"]) for row in rows if row["resource"] == resource)


def _project_of(resource: str) -> str:
    return (owner_of(resource) or "") if resource.startswith(LLM) else ""


def _name_of(resource: str) -> str:
    """Return a resource as sentences name it: ``API serper`` for ``api:serper``."""
    kind, _, name = resource.partition(":")
    return f"API {name}" if kind == "api" and name else resource


def quota_exhausted(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the quotas that hold actions up."""
    if facts.resources is None or facts.overview is None:
        return None
    found = []
    for resource, status in facts.resources.items():
        waiting = waiting_for(facts, resource)
        empty = [quota for quota in status.get("quotas") or () if quota["left"] < 1]
        if waiting and empty:
            found.append(_exhausted(facts, resource, empty[0], waiting))
    return found


def period_of(quota: dict[str, Any]) -> str:
    """Return the period of a quota in words: ``in 1 h``, ``today (UTC)``."""
    seconds = quota.get("window_seconds")
    if not seconds:
        return f"today ({quota.get('zone') or 'UTC'})"
    return f"in {span(seconds)}"


def _exhausted(facts: SystemFacts, resource: str, quota: dict[str, Any], waiting: int) -> Condition:
    eases = quota.get("eases_in_seconds")
    back = "" if eases is None else f" The first units come back at {clock(facts.now + eases)}."
    name = _name_of(resource)
    short = name.removeprefix("API ")
    return hold(
        kinds.QUOTA_EXHAUSTED,
        resource,
        f"{name} has used up its quota",
        f"quota of {short} used up",
        f"{quota['used']:,g} of {quota['units']:,g} units {period_of(quota)}.{back}",
        project=_project_of(resource),
        affected=waiting,
        affected_link=explorer_link("actions", state="queued", waits=resource),
        owner_note=name,
        verb="Change quota…",
        verb_link=verb_address("resource", "quota", resource),
        evidence="Who used it",
        evidence_link=f"/apis/#{quote(resource)}",
        marks=(resource,),
        mark="quota used up",
    )


def circuit_open(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the APIs that take no calls."""
    if facts.resources is None or facts.overview is None:
        return None
    found = []
    for resource, status in facts.resources.items():
        if not (hindrance := status.get("hindrance")):
            continue
        name, waiting = _name_of(resource), waiting_for(facts, resource)
        found.append(
            hold(
                kinds.CIRCUIT_OPEN,
                resource,
                f"{name} takes no calls",
                f"{name.removeprefix('API ')} takes no calls",
                f"{str(hindrance)[:1].upper()}{str(hindrance)[1:]}.",
                severity=Severity.CRITICAL if waiting else Severity.WARNING,
                project=_project_of(resource),
                affected=waiting,
                affected_link=explorer_link("actions", state="queued", waits=resource),
                owner_note=name,
                verb="Change limit…",
                verb_link=verb_address("resource", "limit", resource),
                evidence="Its answers",
                evidence_link=f"/apis/#{quote(resource)}",
                marks=(resource,),
                mark="takes no calls",
            )
        )
    return found


def service_thrashing(
    facts: SystemFacts, limits: ProblemThresholds, raised: Collection[str]
) -> Found:
    """Return the services that are restored too often."""
    if facts.overview is None:
        return None
    kind, found = kinds.SERVICE_THRASHING, []
    for name, count in facts.overview.get("restores", {}).items():
        upper, lower = limits.restores_per_minute, limits.restores_clear_per_minute + 1
        if count >= limit_of(kind, name, raised, upper, min(upper, lower)):
            title = f"Service {name} is restored again and again"
            detail = f"{counted(count, 'restore')} within a minute."
            found.append(
                _about_service(kind, name, title, f"{name} thrashes", detail, "quarantine")
            )
    return found


def service_quarantined(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the services in quarantine."""
    if facts.overview is None:
        return None
    return [
        _about_service(
            kinds.SERVICE_QUARANTINED, name, f"Service {name} is quarantined",
            f"{name} quarantined", "Its calls wait until the quarantine is lifted.", "release",
            sum(q.waiting for q in facts.queues or () if _waits_for_service(q, name)),
        )
        for name in facts.overview.get("quarantined", ())
    ]  # fmt: skip


def _waits_for_service(queue: QueueFact, name: str) -> bool:
    return queue.code == "service_quarantined" and queue.subject == name


def _about_service(
    kind: ProblemKind, name: str, title: str, brief: str, detail: str, verb: str, waiting: int = 0
) -> Condition:
    return hold(
        kind,
        name,
        title,
        brief,
        detail,
        affected=waiting,
        affected_link=explorer_link("actions", state="queued", kind="call"),
        owner_note=f"service {name}",
        verb="Lift quarantine…" if verb == "release" else "Quarantine…",
        verb_link=verb_address("service", verb, name),
        evidence="GPU map",
        evidence_link="/gpu/",
    )


def task_failing(facts: SystemFacts, limits: ProblemThresholds, raised: Collection[str]) -> Found:
    """Return the tasks that fail."""
    if facts.overview is None:
        return None
    found = []
    for row in facts.overview.get("failing", ()):
        subject = f"{row['project']}/{row['task']}"
        share = limit_of(
            kinds.TASK_FAILING, subject, raised, limits.failing_share, limits.failing_clear_share
        )
        enough = row["finished"] >= limits.failing_actions
        fails = enough and row["failed"] >= share * row["finished"] > 0
        rewards = row["rewarded_at"] is not None and row["unrewarded"] == row["rollouts"]
        unrewarded = rewards and row["unrewarded"] >= limits.unrewarded_rollouts
        if fails or unrewarded:
            owner = facts.owner_in(row["project"])
            found.append(_failing_task(subject, row, owner, fails=fails, unrewarded=unrewarded))
    return found


def _failing_task(
    subject: str, row: dict[str, Any], owner: str, *, fails: bool, unrewarded: bool
) -> Condition:
    task, project, parts = row["task"], row["project"], []
    if fails:
        kinds_of = ", ".join(f"{count:,} × {ending}" for ending, count in row["endings"].items())
        parts.append(f"{row['failed']:,} of {row['finished']:,} actions in 10 min: {kinds_of}.")
    if unrewarded:
        since = clock(row["rewarded_at"])
        parts.append(
            f"{counted(row['unrewarded'], 'rollout')} without a reward; none since {since}."
        )
    count = row["failed"] if fails else row["unrewarded"]
    failures = explorer_link("actions", task=task, project=project, exit="!=0", since="1h")
    return hold(
        kinds.TASK_FAILING,
        subject,
        f"Task {task} is failing",
        f"task {task} failing",
        " ".join(parts),
        project=project,
        affected=count,
        affected_word="failed" if fails else "rollouts",
        affected_note="" if fails else "without a reward",
        affected_link=failures,
        owner=owner,
        owner_note=f"task {task}",
        verb="Pause task…",
        verb_link=verb_address("task", "pause", subject),
        evidence="See failures",
        evidence_link=failures,
    )


def family_slow(facts: SystemFacts, limits: ProblemThresholds, raised: Collection[str]) -> Found:
    """Return the families whose commands run much longer than before."""
    if facts.overview is None:
        return None
    return [
        _slow_family(row, limits.slow_window_seconds, facts.owner_in(row["project"]))
        for row in facts.overview.get("slow", ())
        if _is_slow(row, limits, raised)
    ]


def _subject_of(row: dict[str, Any]) -> str:
    parts = (row["project"], row["task"], row["family"])
    return "/".join(part for part in parts if part)


def _is_slow(row: dict[str, Any], limits: ProblemThresholds, raised: Collection[str]) -> bool:
    median, before = row["median_seconds"], row["earlier_median_seconds"]
    factor = limit_of(
        kinds.FAMILY_SLOW, _subject_of(row), raised, limits.slow_factor, limits.slow_clear_factor
    )
    return bool(
        row["actions"] >= limits.slow_actions
        and row["earlier_actions"] >= limits.slow_earlier_actions
        and row["earlier_seconds"] >= limits.slow_earlier_seconds
        and median >= factor * before
        and median - before >= limits.slow_seconds
    )


def _slow_family(row: dict[str, Any], window_seconds: float, owner: str) -> Condition:
    task, project, family = row["task"], row["project"], row["family"]
    median, before = row["median_seconds"], row["earlier_median_seconds"]
    terms = {"task": task, "project": project, "kind": "exec", "family": family or "none"}
    slow = explorer_link("actions", **terms, execution=f">{before * 1500:.0f}ms", since="1h")
    minutes = f"{max(1, math.ceil(window_seconds / 60))}m"
    what = f"Commands of family {family}" if family else "Commands without a family"
    return hold(
        kinds.FAMILY_SLOW,
        _subject_of(row),
        f"{what} run {median / before:.1f} times as long",
        f"{family or 'commands'} of task {task} slow",
        f"Task {task}: the median of {span(window_seconds)} is {duration(median)}; it was {duration(before)} before.",
        project=project,
        affected=row["actions"],
        affected_word="action" if row["actions"] == 1 else "actions",
        affected_note=f"in {span(window_seconds)}",
        affected_link=explorer_link("actions", **terms, state="finished", since=minutes),
        owner=owner,
        owner_note=f"task {task}",
        verb="Pause task…",
        verb_link=verb_address("task", "pause", f"{project}/{task}"),
        evidence="See slow actions",
        evidence_link=f"{slow}&sort=-execution",
    )


def blocker(facts: SystemFacts, limits: ProblemThresholds, _: Collection[str]) -> Found:
    """Return the action that holds most others up."""
    if facts.queues is None:
        return None
    behind: dict[str, list[QueueFact]] = defaultdict(list)
    for queue in facts.queues:
        held = queue.waited_seconds if queue.held_seconds is None else queue.held_seconds
        if queue.blocked_by and min(queue.waited_seconds, held) > limits.blocked_seconds:
            behind[queue.blocked_by].append(queue)
    held_up = {action: sum(each.waiting for each in queues) for action, queues in behind.items()}
    worst = max(held_up, key=lambda action: (held_up[action], action), default=None)
    known = facts.blockers.get(worst or "")
    if worst is None or known is None or held_up[worst] < limits.blocked_actions:
        return []
    return [_blocked(facts, worst, known, held_up[worst], behind[worst])]


def _blocked(
    facts: SystemFacts, action: str, known: BlockerFact, count: int, behind: Iterable[QueueFact]
) -> Condition:
    longest = max(behind, key=lambda queue: queue.waited_seconds)
    since = facts.now - longest.waited_seconds
    holder = f"Trajectory {known.trajectory}" if known.trajectory else "It"
    holds = f"{holder} holds {longest.held}. " if longest.held else ""
    return hold(
        kinds.BLOCKER,
        action,
        f"Action …{action[-8:]} of task {known.task} holds up {counted(count, 'action')}",
        f"one action of pool {longest.pool} holds up others",
        f"{holds}The first action behind it waits since {clock(since)}.",
        project=known.project,
        since=since,
        affected=count,
        affected_link=explorer_link("actions", state="queued", pool=longest.pool),
        owner=facts.owner_in(known.project),
        owner_note=f"pool {longest.pool}",
        verb="Cancel action…",
        verb_link=verb_address("action", "cancel", action),
        evidence="Open it",
        evidence_link=f"/actions/{action}/",
    )
