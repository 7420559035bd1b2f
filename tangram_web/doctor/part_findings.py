"""Findings about what the parts of a cluster must have in common: a loop that leads, the time, and the version. Pure.

Clocks are compared with that of Redis by each machine, and the differences with one another. Versions of one release
work together, and those of neighbouring releases while an upgrade lasts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from contract.machine_facts import ClockDifference
from tangram_web.doctor.cluster_facts import ClusterFacts
from tangram_web.doctor.cluster_finding import ClusterFinding, fault, note, unknown
from tangram_web.problems import kinds
from tangram_web.problems.wording import duration

#: From here on, signs of life look late and times on pages contradict each other.
FAULT_SECONDS: Final = 2.0
NOTE_SECONDS: Final = 0.5
CLOCK, VERSION, STANDBY = "clock", "version", "standby"
_NTP: Final = (
    "synchronise the clocks by NTP: `timedatectl timesync-status`, or `chronyc tracking`, says on each of the two machines"
    " whether it is"
)
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)\b")


def leader(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find that no loop leads."""
    if facts.leader is None:
        yield fault(
            kinds.PART_DEAD.key, "loop", "No scheduler loop leads: nothing is granted.",
            kinds.PART_DEAD.to_do,
        )  # fmt: skip


def standbys(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find the standbys that would have to restore everything before they lead."""
    for part in facts.parts:
        if part.cold:
            yield note(
                STANDBY, part.name, f"Standby {part.name} keeps no state, and would lead some seconds later: {part.cold}",
                "it tries again within a minute; if that lasts, start it with the leader's version and managers",
            )  # fmt: skip


def clocks(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find the machines whose clocks differ from the loop's."""
    ours = None if facts.leader is None else facts.leader.clock
    reference, base = "the loop's", ours or ClockDifference(0.0)
    if ours is None:
        reference = "that of Redis"
        if facts.leader is not None:
            yield unknown(
                CLOCK, "loop", "The loop does not report its clock: those of others are compared with that of Redis.",
                "upgrade the loop",
            )  # fmt: skip
    else:
        yield from _skew("redis", "Redis", ClockDifference(0.0), base, reference)
    if facts.web_clock is not None:
        host = facts.web_host
        yield from _skew(f"web@{host}", f"web process on {host}", facts.web_clock, base, reference)
    for node in facts.nodes:
        if not node.is_silent and node.machine is not None and node.machine.clock is not None:
            named = f"node {node.place}"
            yield from _skew(node.name, named, node.machine.clock, base, reference)


def _skew(
    subject: str, named: str, theirs: ClockDifference, base: ClockDifference, reference: str
) -> Iterator[ClusterFinding]:
    seconds = theirs.seconds - base.seconds
    within = theirs.within_seconds + base.within_seconds
    certain = abs(seconds) - within
    if certain < NOTE_SECONDS:
        return
    way = "ahead of" if seconds > 0 else "behind"
    sentence = (
        f"The clock of {named} is {duration(abs(seconds))} {way} {reference}"
        f" (within {within:.3f} s)."
    )
    yield (fault if certain >= FAULT_SECONDS else note)(CLOCK, subject, sentence, _NTP)


def versions(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find the parts and nodes whose version differs from the loop's by a release or more."""
    ours = "" if facts.leader is None else facts.leader.version
    if facts.leader is not None and not _release(ours):
        yield unknown(
            VERSION, "loop", "The loop does not report its version: no other one can be compared.",
            "upgrade the loop, or look at `tangram status`",
        )  # fmt: skip
    if not _release(ours):
        return
    silent: dict[str, list[str]] = defaultdict(list)
    for part in facts.parts:
        if _release(part.version):
            yield from _other_version(part.name, f"{part.role} {part.name}", part.version, ours)
        else:
            silent[part.role].append(part.name)
    for role, names in sorted(silent.items()):
        yield unknown(
            VERSION, role, f"{', '.join(sorted(names))} does not report its version: it is of an earlier one than {ours}.",
            f"upgrade the {role} worker, as in \"Upgrades\" of docs/operations.md",
        )  # fmt: skip
    for node in facts.nodes:
        if node.is_silent:
            continue
        if _release(node.version):
            yield from _other_version(node.name, f"node {node.place}", node.version, ours)
        else:
            yield unknown(
                VERSION, node.name, f"Node {node.place} does not report its version.",
                "upgrade its worker",
            )  # fmt: skip


def _other_version(subject: str, named: str, theirs: str, ours: str) -> Iterator[ClusterFinding]:
    apart = _releases_apart(_release(theirs), _release(ours))
    if not apart:
        return
    sentence = f"The version of {named} is {theirs}, and the loop's is {ours}"
    cure = (
        "upgrade it, drained before if it is a node"
        if _release(theirs) < _release(ours)
        else "upgrade the loop first"
    )
    cure += ': "Upgrades" of docs/operations.md'
    if apart == 1:
        yield note(VERSION, subject, f"{sentence}: one release apart, as during an upgrade.", cure)
    else:
        yield fault(VERSION, subject, f"{sentence}: more than one release apart.", cure)


def _release(version: str) -> tuple[int, ...]:
    """Return major and minor version; nothing where there is none."""
    found = _RELEASE.match(version)
    return () if found is None else (int(found[1]), int(found[2]))


def _releases_apart(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many releases lie between two; another major version counts as many."""
    if one[0] != other[0]:
        return 2
    return abs(one[1] - other[1])
