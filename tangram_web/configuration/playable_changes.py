"""Playable changes: the part of a change that a simulation of the last minutes can evaluate. Pure.

Playable are inputs of the core and its ledgers: policies, limits, quotas, shares, degrees of
services, nodes in service. Not playable is the behaviour of the outside: other answers of an API,
another model, a node that stops sending heartbeats.
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
#: Kind → reason why its other members are not playable.
_WHY: Final = {
    "Pool": "a simulated node never loses its heartbeat, and a paused pool would never finish",
    "Resource": "answers of an API are replayed as recorded",
    "GpuService": "restores and calls take as long as they were measured",
    "Node": "it is a note that changes nothing",
}
_ABSENT: Final = object()


class Playability(NamedTuple):
    """Whether any change is playable, and the changes that are not, with the reason."""

    anything: bool
    not_played: tuple[str, ...]


def playability(changes: Iterable[Change], pool: str, used: Mapping[str, Set[str]]) -> Playability:
    """Return which of ``changes`` a simulation of a window of ``pool`` can evaluate.

    ``used``: kind (``Resource``, ``GpuService``, ``Node``) → names that occur in the window.
    """
    anything, not_played = False, []
    for change in changes:
        for member, why in _members(change, pool, used):
            if why:
                not_played.append(f"{change.kind} {change.name}{member}: {why}")
            anything |= not why
    return Playability(anything, tuple(not_played))


def _members(change: Change, pool: str, used: Mapping[str, Set[str]]) -> Iterator[tuple[str, str]]:
    """Yield each changed member, with the reason why it is not playable; empty if it is."""
    if change.kind == "Pool" and change.name != pool:
        yield "", f"the window is of pool {pool}"
    elif change.kind == "Node" and change.name not in used["Node"]:
        yield "", f"it is no present node of pool {pool}"
    elif change.kind == "Node":
        yield "", ""
    elif change.kind == "Project":
        yield "", "the window is of one pool, with its present projects"
    elif change.name not in used.get(change.kind, {change.name}):
        yield "", "no action of the last minutes uses it"
    elif change.after is None:
        yield "", "it is deleted: actions that use it would wait forever"
    elif change.after.get("limit_units") == 0:
        yield " limit_units", "no grants: actions that use it would wait forever"
    else:
        before = change.before or {}
        for member in sorted({*before, *change.after}):
            values = [each.get(member, _ABSENT) for each in (before, change.after)]
            if values[0] != values[1]:
                yield f" {member}", "" if member in PLAYED[change.kind] else _WHY[change.kind]
