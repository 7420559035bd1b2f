"""Three-way merge of two edits of one revision. Pure.

A member that one edit changed gets its value. A member that both changed differently is a conflict:
the merged text has mine, and the page shows both. An object that one edit deleted and the other
changed is a conflict, too: the merged text keeps it as changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Key = tuple[str, str]
Spec = Mapping[str, Any]
Specs = Mapping[Key, Spec]

_ABSENT: Any = object()
#: In place of a member: the whole object.
WHOLE: Final = "whole object"


class MergeConflict(NamedTuple):
    """A member that both edits changed differently."""

    kind: str
    name: str
    member: str
    theirs: Any
    mine: Any


class MergeResult(NamedTuple):
    """The merged specs and the conflicts."""

    specs: dict[Key, dict[str, Any]]
    conflicts: list[MergeConflict]


def merge(base: Specs, theirs: Specs, mine: Specs, *, prune: bool = False) -> MergeResult:
    """Merge the objects in ``mine``; the result leaves the other objects out.

    ``prune``: objects missing in ``mine`` are deleted, so the result includes the objects that
    ``theirs`` added or changed meanwhile.
    """
    specs: dict[Key, dict[str, Any]] = {}
    conflicts: list[MergeConflict] = []
    for key, wanted in mine.items():
        before, now = base.get(key), theirs.get(key)
        if before is not None and now is None:  # they deleted it
            if wanted != before:
                specs[key] = dict(wanted)
                conflicts.append(MergeConflict(*key, WHOLE, None, dict(wanted)))
            continue
        merged = specs[key] = {}
        for member in dict.fromkeys([*wanted, *(now or {}), *(before or {})]):
            values = [(each or {}).get(member, _ABSENT) for each in (before, now, wanted)]
            value, conflict = _merged(*values)
            if value is not _ABSENT:
                merged[member] = value
            if conflict:
                shown = [None if each is _ABSENT else each for each in values]
                conflicts.append(MergeConflict(*key, member, shown[1], shown[2]))
    for key in theirs.keys() - mine.keys() if prune else ():
        before, now = base.get(key), theirs[key]
        if now != before:
            specs[key] = dict(now)
            if before is not None:
                conflicts.append(MergeConflict(*key, WHOLE, dict(now), None))
    return MergeResult(specs, conflicts)


def _merged(base: Any, theirs: Any, mine: Any) -> tuple[Any, bool]:
    """Return the value of one member, and whether both changed it differently."""
    if mine == base:
        return theirs, False
    return mine, theirs not in (base, mine)
