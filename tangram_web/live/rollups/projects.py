"""Recent activity and rollups of single projects, kept before a page asks for them (decision 0034).

Recent activity. Beside the activity of all projects, that of the `MAX_RECENT` projects that acted
last is counted and closed second by second. A page of one project that is opened now has the same
points, durations and rows as one that was open all the time. Each costs some microseconds a second.
A project without an entry in the retained journal is known to have been idle; once the activity of
any project was dropped this is no longer known, so that activity begins at the present second.

Rollups of 15 s and 5 min, for 14 days, of at most `MAX_PROJECTS` projects
1. A project that acts takes the place of the one that was idle for longest, if that was idle for
   `IDLE_SECONDS`. Without this limit, more busy projects than places would evict each other for
   ever, and none would have a history.
2. Rollups of a kept project have no gaps while the fold runs: an idle project has empty rollups.
3. A project that loses its place is dropped as a whole, in memory and in Redis.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Final, NamedTuple

from domain.decisions import Finish
from tangram_web.live.rollups.histogram import PhaseHistogram
from tangram_web.live.rollups.recent import CHART_SECONDS, RecentActivity
from tangram_web.live.rollups.rollup import SIZES, Rollup, RollupBuilder, rollup_of_second

#: Projects whose recent activity is kept.
MAX_RECENT: Final = 64
#: Projects whose rollups are stored. A busy one needs about two megabytes of Redis.
MAX_PROJECTS: Final = 16
#: Seconds without an action before a place is given to another project.
IDLE_SECONDS: Final = 600.0
#: Sizes that are stored for single projects.
PROJECT_SIZES: Final = SIZES[1:]
_IDLE: Final = {"queued": 0.0, "granted": 0.0, "running": 0.0}


class StoredProject(NamedTuple):
    """What Redis holds of a project."""

    #: Wall clock of its last activity.
    active_at: float
    #: Size → beginning of the newest rollup.
    newest: Mapping[int, int]


class PendingRollups(NamedTuple):
    """Changes that are not in Redis yet."""

    #: Projects that lost their place; they may have got one again since.
    dropped: frozenset[str]
    #: Project → wall clock of its last activity.
    active_at: Mapping[str, float]
    rollups: Mapping[str, Mapping[int, list[Rollup]]]


class ProjectRollups:
    """Builds rollups of a bounded number of projects, and holds them until they are stored."""

    def __init__(
        self, stored: Mapping[str, StoredProject] | None = None, most: int = MAX_PROJECTS
    ) -> None:
        self._most = most
        projects = (stored or {}).items()
        self._builders = {project: RollupBuilder(one.newest) for project, one in projects}
        self._active_at = {project: one.active_at for project, one in projects}
        self._dropped: set[str] = set()

    def admit(self, project: str, wall: float, *, active: bool) -> bool:
        """Return whether a project has a place; one that is active takes a free place."""
        if project not in self._builders:
            if not active or not self._free_place(wall):
                return False
            self._builders[project], self._active_at[project] = RollupBuilder(), wall
        if active:
            self._active_at[project] = max(wall, self._active_at[project])
        return True

    def add(self, project: str, second: Rollup) -> None:
        """Add the next second of a project that has a place."""
        self._builders[project].add(second)

    def projects_except(self, projects: Iterable[str]) -> list[str]:
        """Return the projects that have a place and are not among ``projects``."""
        return list(self._builders.keys() - set(projects))

    def take_pending(self) -> PendingRollups:
        """Return and remove the changes that are to be stored."""
        rollups = {
            project: {size: taken[size] for size in PROJECT_SIZES}
            for project, builder in self._builders.items()
            if (taken := builder.take_complete())
        }
        pending = PendingRollups(frozenset(self._dropped), dict(self._active_at), rollups)
        self._dropped.clear()
        return pending

    def _free_place(self, wall: float) -> bool:
        if len(self._builders) < self._most:
            return True
        idlest = min(self._active_at, key=self._active_at.__getitem__, default=None)
        if idlest is None or wall - self._active_at[idlest] < IDLE_SECONDS:
            return False
        del self._builders[idlest], self._active_at[idlest]
        self._dropped.add(idlest)
        return True


class ProjectActivity:
    """Recent activity by project, of the projects that acted last."""

    def __init__(self, all_projects: RecentActivity, most: int = MAX_RECENT) -> None:
        #: Gives the open second and the first one.
        self._all_projects = all_projects
        self._most = most
        self._recent: OrderedDict[str, RecentActivity] = OrderedDict()
        #: The project that acted last.
        self._last: str | None = None
        self._dropped_any = False
        #: Replaced by the fold whose rollups are stored.
        self.rollups = ProjectRollups(most=0)

    def submit(self, project: str) -> None:
        """Count a submission of a project."""
        if (recent := self._of(project)) is not None:
            recent.submit()

    def finish(self, project: str, finish: Finish, at: float, exit_code: int | None = None) -> None:
        """Count a finished action of a project."""
        if (recent := self._of(project)) is not None:
            recent.finish(finish, at, exit_code)

    def skip_to(self, second: int) -> None:
        """Skip a long silence, as the activity of all projects does."""
        for recent in self._recent.values():
            recent.skip_to(second)

    def close_second(self, levels: Callable[[str], Mapping[str, float]], wall: int) -> None:
        """Close the open second, which began at ``wall``; ``levels`` returns those of a project."""
        for project, recent in self._recent.items():
            now = levels(project)
            active = recent.is_active or any(now.values())
            second = recent.close_second(now, wall)
            if self.rollups.admit(project, wall, active=active):
                self.rollups.add(project, second)
        for project in self.rollups.projects_except(self._recent):
            now = levels(project)
            self.rollups.admit(project, wall, active=any(now.values()))
            self.rollups.add(project, rollup_of_second(wall, 0, {}, now, PhaseHistogram()))

    def copy_of(self, project: str) -> RecentActivity:
        """Return a copy of a project's activity, for a fold that continues from here."""
        known = self._recent.get(project)
        return self._idle_so_far() if known is None else deepcopy(known)

    def _of(self, project: str) -> RecentActivity | None:
        """Return the activity to count into; None where none is kept or the project is unknown."""
        if project == self._last:
            return self._recent[project]  # the last one is never dropped
        if not self._most or not project:
            return None
        self._last = project
        recent = self._recent.get(project)
        if recent is None:
            recent = self._recent[project] = self._idle_so_far()
            if len(self._recent) > self._most:
                self._recent.popitem(last=False)
                self._dropped_any = True
        else:
            self._recent.move_to_end(project)
        return recent

    def _idle_so_far(self) -> RecentActivity:
        """Return the activity of a project that was idle for as long as the journal shows."""
        recent, now = RecentActivity(), self._all_projects.open_second
        began = self._all_projects.began
        if now is not None and began is not None:
            recent.begin(now if self._dropped_any else began)
            first = max(recent.began or 0, now - CHART_SECONDS)
            recent.open_second = first
            for second in range(first, now):
                recent.close_second(_IDLE, second)
        return recent
