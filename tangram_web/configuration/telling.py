"""What of a change the last minutes can tell when they are played again, and what not. Pure.

Played is what the core and its ledgers decide by: policies, limits, quotas, shares, degrees of
services, how many nodes take work. Not played is what the outside would do: an API that answers
otherwise, a model that is loaded otherwise, a node that falls silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

from tangram_web.pools.applying import Change

#: Kind → members that the simulator plays.
PLAYED: Final = {
    "Pool": {"policy", "shares", "light_by_default"},
    "Resource": {"limit_units", "quotas", "shares"},
    "GpuService": {"degrees", "max_concurrency"},
    "Node": {"drained"},
}
#: Why others are not, by kind.
_WHY: Final = {
    "Pool": "a simulated node never falls silent, and a paused pool would never end",
    "Resource": "what an API answers is played as it was recorded",
    "GpuService": "restores and calls are played as long as they were seen to take",
    "Node": "what is for people changes nothing",
}
_ABSENT: Final = object()


class Told(NamedTuple):
    """Whether there is anything to play, and what is not played."""

    anything: bool
    untold: tuple[str, ...]


def judge(changes: Iterable[Change], pool: str, used: Mapping[str, Set[str]]) -> Told:
    """Say of each change whether playing a window of ``pool`` tells of it.

    ``used``: kind (``Resource``, ``GpuService``, ``Node``) → names that the window has to do with.
    """
    anything, untold = False, []
    for change in changes:
        for member, why in _members(change, pool, used):
            if why:
                untold.append(f"{change.kind} {change.name}{member}: {why}")
            anything |= not why
    return Told(anything, tuple(untold))


def _members(change: Change, pool: str, used: Mapping[str, Set[str]]) -> Iterator[tuple[str, str]]:
    """Yield each changed member, with why it is not played."""
    if change.kind == "Pool" and change.name != pool:
        yield "", f"the window is of pool {pool}"
    elif change.kind == "Node" and change.name not in used["Node"]:
        yield "", f"it is not a node of pool {pool} that is there"
    elif change.kind == "Node":
        yield "", ""
    elif change.kind == "Project":
        yield "", "the window is of one pool, with its projects as they are"
    elif change.name not in used.get(change.kind, {change.name}):
        yield "", "nothing of the last minutes uses it"
    elif change.after is None:
        yield "", "it is deleted: what uses it would wait for ever"
    elif change.after.get("limit_units") == 0:
        yield " limit_units", "nothing would be granted, and what uses it would wait for ever"
    else:
        before = change.before or {}
        for member in sorted({*before, *change.after}):
            values = [each.get(member, _ABSENT) for each in (before, change.after)]
            if values[0] != values[1]:
                yield f" {member}", "" if member in PLAYED[change.kind] else _WHY[change.kind]
