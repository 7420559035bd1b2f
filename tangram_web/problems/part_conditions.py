"""Conditions of nodes and of the parts of Tangram: pure functions from facts to what is wrong now.

Each returns None where its facts are unknown. ``raised`` has the ids of problems that are raised: they end at
the lower threshold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from tangram_web.lib.explorer_links import explorer_link
from tangram_web.problems import kinds
from tangram_web.problems.facts import Condition, Found, SystemFacts
from tangram_web.problems.kinds import ProblemKind, Severity
from tangram_web.problems.thresholds import ProblemThresholds
from tangram_web.problems.wording import clock, counted, hold, limit_of, verb_address

#: Roles without which nothing can proceed, and roles that may be taken away on purpose.
VITAL: Final = ("loop", "node")
OPTIONAL: Final = ("jobs", "rollout")
#: An optional role may start this late after the others.
OPTIONAL_SECONDS: Final = 60.0
#: An optional role that is gone for this long counts as removed.
REMOVED_SECONDS: Final = 3600.0
_ROLE_NAMES: Final = {
    "loop": "scheduler loop",
    "node": "node worker",
    "projector": "projector",
    "jobs": "jobs worker",
    "rollout": "rollout worker",
}


def node_lost(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the nodes that are lost."""
    if facts.nodes is None:
        return None
    return [
        _lost(node, facts)
        for node in facts.nodes
        if node["state"] == "lost" and (node.get("alarm") or not node.get("drained"))
    ]


def _lost(node: dict[str, Any], facts: SystemFacts) -> Condition:
    name, pool, loss = node["name"], node["pool"], node.get("loss") or {}
    stranded = int(loss.get("open", 0))
    alone = "has no other node" in node.get("alarm", "")
    waiting = _queued(facts, pool) if alone else _bound(facts, name)
    said = str(loss.get("says", ""))
    rest = f" Pool {pool} has no other node: its actions wait." if alone else ""
    parts = [f"{stranded:,} stranded"] if stranded else []
    parts += [f"{waiting:,} waiting"] if waiting else []
    verb = "forget" if node.get("drained") else "retire"
    return hold(
        kinds.NODE_LOST,
        name,
        f"Node {name} is lost",
        f"node {name} lost",
        f"No heartbeat. {said}{rest}".strip(),
        severity=Severity.CRITICAL if node.get("alarm") else Severity.WARNING,
        since=loss.get("since"),
        affected=stranded + waiting,
        affected_word="action" if stranded + waiting == 1 else "actions",
        affected_note=", ".join(parts),
        affected_link=explorer_link("actions", state="queued", pool=pool)
        if alone
        else explorer_link("actions", node=name),
        owner_note=f"pool {pool}",
        verb=f"{verb.title()} node…",
        verb_link=verb_address("node", verb, name),
        evidence="What it held",
        evidence_link=explorer_link("actions", node=name),
        marks=(f"pool/{pool}",),
        mark="node lost",
    )


def _queued(facts: SystemFacts, pool: str) -> int:
    rows = (facts.overview or {}).get("pools", ())
    return sum(int(row["queued"]) for row in rows if row["name"] == pool)


def _bound(facts: SystemFacts, node: str) -> int:
    return sum(each.waiting for each in facts.queues or () if each.node == node)


def node_late(facts: SystemFacts, limits: ProblemThresholds, _: Collection[str]) -> Found:
    """Return the nodes that answer late or take nothing."""
    if facts.nodes is None:
        return None
    found = []
    for node in facts.nodes:
        name, hindrance = node["name"], str(node.get("hindrance") or "")
        if node["state"] != "ready" or _is_disk(hindrance):
            continue
        at = facts.node_workers.get(name)
        late = at is not None and facts.now - at > limits.node_late_seconds
        if hindrance or late:
            fact = "takes no actions" if hindrance else "answers late"
            detail = f"It gets no actions: {hindrance}." if hindrance else (
                f"The last sign of life of its worker is of {clock(at or 0.0)}."
            )  # fmt: skip
            found.append(_about_node(kinds.NODE_LATE, node, fact, detail))
    return found


def _about_node(kind: ProblemKind, node: dict[str, Any], fact: str, detail: str) -> Condition:
    name = node["name"]
    return hold(
        kind,
        name,
        f"Node {name} {fact}",
        f"node {name} {fact}",
        detail,
        owner_note=f"pool {node['pool']}",
        verb="Drain node…",
        verb_link=verb_address("node", "drain", name),
        evidence="Workers",
        evidence_link="/workers/",
        marks=(f"pool/{node['pool']}",),
        mark=kind.name.lower(),
    )


def _is_disk(hindrance: str) -> bool:
    return "disk" in hindrance


def disk_short(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the nodes without disk space."""
    if facts.nodes is None:
        return None
    return [
        _about_node(
            kinds.DISK_SHORT, node, "has a full disk", f"It takes no new work: {node['hindrance']}."
        )
        for node in facts.nodes
        if node["state"] == "ready" and _is_disk(str(node.get("hindrance") or ""))
    ]


def part_dead(facts: SystemFacts, limits: ProblemThresholds, _: Collection[str]) -> Found:
    """Return the roles that show no life."""
    if facts.roles is None:
        return None
    found = []
    for role, at in facts.roles.items():
        age = facts.now - at
        if age <= limits.part_dead_seconds or role not in _ROLE_NAMES:
            continue
        if role in OPTIONAL and not OPTIONAL_SECONDS < age <= REMOVED_SECONDS:
            continue
        name = _ROLE_NAMES[role]
        found.append(_dead(facts, role, f"No {name} shows life", f"no {name}", at))
    if not facts.has_leader and not any(each.subject == "loop" for each in found):
        found.append(_dead(facts, "loop", "No scheduler loop leads", "no scheduler loop", None))
    return found


def _dead(facts: SystemFacts, role: str, title: str, brief: str, at: float | None) -> Condition:
    vital = role in VITAL
    rows = (facts.overview or {}).get("pools", ())
    held_up = sum(int(row["queued"]) for row in rows) if vital else 0
    last = "" if at is None else f"The last sign of life is of {clock(at)}. "
    effect = {
        "loop": "Running actions continue, no other is granted.",
        "node": "No action can run.",
        "projector": "Rows and pages are stale.",
        "jobs": "The projector does its work; retention and webhooks may be late.",
        "rollout": "Rollouts wait for a worker.",
    }[role]
    return hold(
        kinds.PART_DEAD,
        role,
        title,
        brief,
        f"{last}{effect}",
        severity=Severity.CRITICAL if vital else Severity.WARNING,
        since=at,
        affected=held_up,
        affected_link=explorer_link("actions", state="queued"),
        evidence="Workers",
        evidence_link="/workers/",
    )


def part_late(facts: SystemFacts, limits: ProblemThresholds, raised: Collection[str]) -> Found:
    """Return the parts that do not keep up."""
    if facts.roles is None:
        return None
    found = []
    for reader, lag in facts.lags.items():
        above = limit_of(
            kinds.PART_LATE, reader, raised, limits.lag_seconds, limits.lag_clear_seconds
        )
        if lag > above:
            detail = f"It has read the journal up to {clock(facts.now - lag)}: lists and pages are stale."
            found.append(_late(reader, f"Reader {reader} lags", f"{reader} late", detail))
    age = facts.heartbeat_age
    if facts.has_leader and age is not None and age > limits.heartbeat_seconds:
        detail = f"The last heartbeat of the leader is of {clock(facts.now - age)}."
        found.append(_late("heartbeat", "The scheduler loop answers late", "loop late", detail))
    if facts.inbox_entries > limits.inbox_entries:
        detail = f"{counted(facts.inbox_entries, 'message')} wait for the scheduler loop."
        found.append(_late("inbox", "The scheduler loop does not keep up", "inbox full", detail))
    return found


def _late(subject: str, title: str, brief: str, detail: str) -> Condition:
    return hold(
        kinds.PART_LATE,
        subject,
        title,
        brief,
        detail,
        evidence="Workers",
        evidence_link="/workers/",
    )


def redis_memory(facts: SystemFacts, limits: ProblemThresholds, raised: Collection[str]) -> Found:
    """Return whether Redis is short of memory."""
    if facts.redis_memory is None:
        return None
    used, most = facts.redis_memory
    above = limit_of(
        kinds.REDIS_MEMORY,
        "redis",
        raised,
        limits.redis_memory_share,
        limits.redis_memory_clear_share,
    )
    if not most or used / most < above:
        return []
    detail = f"It uses {_gib(used)} of {_gib(most)}. Without memory submissions are refused."
    return [
        hold(
            kinds.REDIS_MEMORY, "redis", "Redis is short of memory", "Redis short of memory", detail,
            evidence="Workers", evidence_link="/workers/",
        )
    ]  # fmt: skip


def redis_replicas(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return whether replicas of Redis are missing that must confirm."""
    if facts.redis_replicas is None:
        return None
    follow, wanted = facts.redis_replicas
    if follow >= wanted:
        return []
    detail = f"{follow} of {wanted} that must confirm follow it. Submissions are refused and nothing is granted; running actions continue."
    rows = (facts.overview or {}).get("pools", ())
    return [
        hold(
            kinds.REDIS_REPLICAS, "redis", "Redis lacks replicas", "Redis lacks replicas", detail,
            affected=sum(int(row["queued"]) for row in rows),
            affected_link=explorer_link("actions", state="queued"),
            evidence="Workers", evidence_link="/workers/",
        )
    ]  # fmt: skip


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def dead_letters(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return whether messages were set aside."""
    if facts.roles is None:
        return None
    if not facts.dead_letters:
        return []
    letters = counted(facts.dead_letters, "message")
    were = "was" if facts.dead_letters == 1 else "were"
    detail = f"{letters} {were} set aside; `manage.py deadletters` lists them with the reason."
    return [
        hold(
            kinds.DEAD_LETTERS, "dead-letters", "Messages could not be processed", "dead letters",
            detail, evidence="Workers", evidence_link="/workers/",
        )
    ]  # fmt: skip


def webhook_failing(facts: SystemFacts, _: ProblemThresholds, __: Collection[str]) -> Found:
    """Return the endpoints that fail."""
    if facts.endpoints is None:
        return None
    return list(_failing_endpoints(facts))


def _failing_endpoints(facts: SystemFacts) -> Iterator[Condition]:
    for each in facts.endpoints or ():
        waiting = f" {counted(each.waiting, 'message')} wait." if each.waiting else ""
        yield hold(
            kinds.WEBHOOK_FAILING,
            each.id,
            f"Webhook to {each.host} fails",
            f"webhook to {each.host} fails",
            f"No delivery has succeeded since {clock(each.failing_since)}.{waiting}",
            project=each.project,
            since=each.failing_since,
            owner=f"project {each.project}",
            verb="Open webhook",
            verb_link=f"/webhooks/{each.id}/",
            evidence="Its answers",
            evidence_link=f"/webhooks/{each.id}/",
        )
