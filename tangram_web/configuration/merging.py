"""Two people changed what both had looked at: the three-way merge of documents. Pure.

A member that only one of them changed has that one's value. One that both changed otherwise is a
clash: mine stands in the merged text, and the page shows both. So is an object that one deleted and the
other changed: it stands in the text as the other has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Key = tuple[str, str]
Spec = Mapping[str, Any]
Specs = Mapping[Key, Spec]

_ABSENT: Any = object()
#: Stands for a member where an object as a whole is meant.
WHOLE: Final = "all of it"


class Clash(NamedTuple):
    """One member that both changed."""

    kind: str
    name: str
    member: str
    theirs: Any
    mine: Any


class Merged(NamedTuple):
    """What comes of it."""

    specs: dict[Key, dict[str, Any]]
    clashes: list[Clash]


def merge(base: Specs, theirs: Specs, mine: Specs, *, prune: bool = False) -> Merged:
    """Merge the objects that ``mine`` names; others are theirs, and are left out.

    ``prune``: what ``mine`` does not name is to be deleted, so what they made or changed meanwhile is
    named, or it would go with the rest.
    """
    specs: dict[Key, dict[str, Any]] = {}
    clashes: list[Clash] = []
    for key, wanted in mine.items():
        before, now = base.get(key), theirs.get(key)
        if before is not None and now is None:  # they deleted it
            if wanted != before:
                specs[key] = dict(wanted)
                clashes.append(Clash(*key, WHOLE, None, dict(wanted)))
            continue
        merged = specs[key] = {}
        for member in dict.fromkeys([*wanted, *(now or {}), *(before or {})]):
            values = [(each or {}).get(member, _ABSENT) for each in (before, now, wanted)]
            value, clash = _merged(*values)
            if value is not _ABSENT:
                merged[member] = value
            if clash:
                shown = [None if each is _ABSENT else each for each in values]
                clashes.append(Clash(*key, member, shown[1], shown[2]))
    for key in theirs.keys() - mine.keys() if prune else ():
        before, now = base.get(key), theirs[key]
        if now != before:
            specs[key] = dict(now)
            if before is not None:
                clashes.append(Clash(*key, WHOLE, dict(now), None))
    return Merged(specs, clashes)


def _merged(base: Any, theirs: Any, mine: Any) -> tuple[Any, bool]:
    """Return the value of one member, and whether both changed it differently."""
    if mine == base:
        return theirs, False
    return mine, theirs not in (base, mine)
