"""Conditions of web processes: those that died without a successor, and those that answer late. Pure.

A web process that ends in order takes its sign of life away. One that was killed leaves it, and is dead until another
process begins on its host: each process that begins replaces the one that died first there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from tangram_web.problems import kinds
from tangram_web.problems.facts import Condition, Found, SystemFacts, WebProcessFact
from tangram_web.problems.kinds import Severity
from tangram_web.problems.thresholds import ProblemThresholds
from tangram_web.problems.wording import clock, counted, hold, limit_of


def web_dead(facts: SystemFacts, limits: ProblemThresholds, _: Collection[str]) -> Found:
    """Return the hosts on which web processes died and were not replaced."""
    if facts.web is None:
        return None
    running = [each for each in facts.web.values() if not each.ended]
    alive = sum(age_of(each, facts) <= limits.part_dead_seconds for each in running)
    dead = without_successor(facts.web, facts, limits.part_dead_seconds)
    by_host: dict[str, list[WebProcessFact]] = defaultdict(list)
    for each in dead:
        by_host[each.host].append(each)
    return [_dead(host, found, alive) for host, found in sorted(by_host.items())]


def age_of(process: WebProcessFact, facts: SystemFacts) -> float:
    """Return for how long a process has shown no life."""
    return facts.now - max(process.at, facts.web_since)


def without_successor(
    processes: Mapping[str, WebProcessFact], facts: SystemFacts, dead_seconds: float
) -> list[WebProcessFact]:
    """Return the dead processes that no later one of their host replaces, first dead first."""
    dead = [
        each for each in processes.values() if not each.ended and age_of(each, facts) > dead_seconds
    ]
    dead.sort(key=lambda each: each.at)
    for each in sorted(processes.values(), key=lambda each: each.began):
        earlier = (d for d in dead if d.host == each.host and d.at <= each.began and d is not each)
        replaced = next(earlier, None)
        if replaced is not None:
            dead.remove(replaced)
    return dead


def _dead(host: str, dead: list[WebProcessFact], alive: int) -> Condition:
    single, at = len(dead) == 1, min(each.at for each in dead)
    pids = ", ".join(str(each.pid) for each in dead)
    others = (
        f"{counted(alive, 'other')} {'answers' if alive == 1 else 'answer'}."
        if alive
        else "No other answers: pages and API are down, running actions continue."
    )
    what = "Web process" if single else f"{len(dead)} web processes"
    return hold(
        kinds.WEB_DEAD,
        host,
        f"{what} on {host} {'is' if single else 'are'} dead",
        f"web process on {host} dead" if single else f"web processes on {host} dead",
        f"Process {pids} showed no life after {clock(at)}. {others}",
        severity=Severity.WARNING if alive else Severity.CRITICAL,
        since=at,
        evidence="Workers",
        evidence_link="/workers/",
    )


def web_late(facts: SystemFacts, limits: ProblemThresholds, raised: Collection[str]) -> Found:
    """Return the web processes that live and answer late."""
    if facts.web is None:
        return None
    found = []
    for each in facts.web.values():
        subject, age = f"{each.host}:{each.pid}", age_of(each, facts)
        above = limit_of(
            kinds.WEB_LATE,
            subject,
            raised,
            limits.web_delay_seconds,
            limits.web_delay_clear_seconds,
        )
        if each.ended or age > limits.part_dead_seconds:
            continue
        if each.delay_seconds > above:
            detail = f"Requests to it waited up to {each.delay_seconds:.1f} s for the process."
        elif age > limits.web_late_seconds:
            detail = f"Its last sign of life is of {clock(each.at)}."
        else:
            continue
        found.append(_late(subject, each, detail))
    return found


def _late(subject: str, process: WebProcessFact, detail: str) -> Condition:
    return hold(
        kinds.WEB_LATE,
        subject,
        f"Web process {process.pid} on {process.host} answers late",
        f"web process on {process.host} late",
        detail,
        evidence="Workers",
        evidence_link="/workers/",
    )
