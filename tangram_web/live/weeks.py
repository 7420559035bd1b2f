"""The past of single projects, for weeks: rings of 15 s and 5 min of the few that are kept.

Rules (decision 0034)
1. At most `MOST` projects are kept. One that stirs gets the place of the one that was quiet for
   longest, where that was quiet for `QUIET_SECONDS`: were it pushed out at once, more than so many
   busy projects would push each other out for ever, and nobody had a past.
2. What is kept is kept without gaps while somebody looks: a project that does nothing has moments
   in which nothing happened.
3. Whose place is taken is forgotten as a whole, in memory and in Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tangram_web.live.rings import STEPS, Moment, Rings

#: Projects that are kept. A busy one needs about two megabytes of Redis.
MOST: Final = 16
#: Seconds without an action before a place is given to another project.
QUIET_SECONDS: Final = 600.0
#: Sizes that are kept; seconds are kept of everything together alone.
SIZES: Final = STEPS[1:]


class Kept(NamedTuple):
    """What is stored of a project."""

    #: Wall clock when it last had an action.
    stirred: float
    #: Size → beginning of the newest moment.
    newest: Mapping[int, int]


class Changes(NamedTuple):
    """What is to be stored since the last time."""

    #: Projects that are forgotten; a project may have come back since.
    forgotten: frozenset[str]
    #: Project → wall clock when it last had an action.
    stirred: Mapping[str, float]
    moments: Mapping[str, Mapping[int, list[Moment]]]


class Weeks:
    """Takes seconds of projects in, gives out moments that are complete and not stored yet."""

    def __init__(self, kept: Mapping[str, Kept] | None = None, most: int = MOST) -> None:
        self._most = most
        self._rings = {project: Rings(one.newest) for project, one in (kept or {}).items()}
        self._stirred = {project: one.stirred for project, one in (kept or {}).items()}
        self._forgotten: set[str] = set()

    def takes(self, project: str, wall: float, *, stirs: bool) -> bool:
        """Say whether this second of a project is to be kept; find a place for one that stirs."""
        if project not in self._rings:
            if not stirs or not self._has_place(wall):
                return False
            self._rings[project], self._stirred[project] = Rings(), wall
        if stirs:
            self._stirred[project] = max(wall, self._stirred[project])
        return True

    def add(self, project: str, second: Moment) -> None:
        """Take the next second of a project that is kept in."""
        self._rings[project].add(second)

    def others(self, projects: Iterable[str]) -> list[str]:
        """Return those that are kept and are none of ``projects``."""
        return list(self._rings.keys() - set(projects))

    def take(self) -> Changes:
        """Return what is to be stored, and keep it no longer."""
        moments = {
            project: {step: taken[step] for step in SIZES}
            for project, rings in self._rings.items()
            if (taken := rings.take())
        }
        changes = Changes(frozenset(self._forgotten), dict(self._stirred), moments)
        self._forgotten.clear()
        return changes

    def _has_place(self, wall: float) -> bool:
        if len(self._rings) < self._most:
            return True
        quietest = min(self._stirred, key=self._stirred.__getitem__, default=None)
        if quietest is None or wall - self._stirred[quietest] < QUIET_SECONDS:
            return False
        del self._rings[quietest], self._stirred[quietest]
        self._forgotten.add(quietest)
        return True
