"""What the doctor finds in a cluster: one finding names its subject, the fact with its number, and the cure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingSeverity(StrEnum):
    """How bad a finding is, worst first."""

    #: Something does not work, or will not for long.
    FAULT = "fault"
    #: It works; a change is advisable.
    NOTE = "note"
    #: A part does not report it.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ClusterFinding:
    """One finding."""

    severity: FindingSeverity
    #: That of a problem (`tangram_web.problems.kinds`), where the Problems page knows the same fault.
    kind: str
    #: Node, part, group or host.
    subject: str
    sentence: str
    cure: str


def worst_first(findings: list[ClusterFinding]) -> list[ClusterFinding]:
    """Return findings by severity, kind and subject."""
    rank = list(FindingSeverity)
    return sorted(findings, key=lambda each: (rank.index(each.severity), each.kind, each.subject))


def fault(kind: str, subject: str, sentence: str, cure: str) -> ClusterFinding:
    """Return a fault."""
    return ClusterFinding(FindingSeverity.FAULT, kind, subject, sentence, cure)


def note(kind: str, subject: str, sentence: str, cure: str) -> ClusterFinding:
    """Return a note."""
    return ClusterFinding(FindingSeverity.NOTE, kind, subject, sentence, cure)


def unknown(kind: str, subject: str, sentence: str, cure: str) -> ClusterFinding:
    """Return what is not known."""
    return ClusterFinding(FindingSeverity.UNKNOWN, kind, subject, sentence, cure)
