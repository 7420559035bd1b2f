"""Frames of single projects, folded while a page follows them.

Theory of operation. The fold of one project is a `FrameFold` that takes the events of that project,
and those of nodes and configuration. It begins with a copy of what the fold of all projects knows
of the project (open actions, holdings, environments, recent activity), so counts, maps and charts
are right from its first frame. The fold is dropped when no page follows the project.

Units held by other projects show as taken, without a name: `OTHERS` on cores, ``others`` of GPUs
and of counted resources.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from domain.codec import JournalEntry
from domain.decisions import EndMove, Forget, TransferFile
from domain.events import (
    ActionSubmitted,
    ConfigApplied,
    EnvironmentRemoved,
    EnvironmentsForked,
    NodeJoined,
    NodeLost,
    NodeRefuses,
    NodeReturned,
)
from domain.ids import ResourceId
from domain.resources import MILLI
from tangram_web.live.capacity import OTHERS
from tangram_web.live.frames import FrameFold
from tangram_web.live.rollups.recent import WINDOW_SECONDS
from tangram_web.live.rollups.rollup import Rollup
from tangram_web.live.topics import TopicFrame

#: Projects that are folded at once: those followed last.
MAX_FOLDED: Final = 32
#: Facts about every project.
_SHARED: Final = (NodeJoined, NodeLost, NodeReturned, NodeRefuses, Forget, ConfigApplied)


class ProjectFrames:
    """The folds of the projects that pages follow."""

    def __init__(self, all_projects: FrameFold) -> None:
        self._all_projects = all_projects
        self._folds: dict[str, ProjectFold] = {}

    def follow(self, projects: Collection[str]) -> None:
        """Fold these projects from now on, and no others."""
        self._folds = {
            project: self._folds.get(project) or ProjectFold(project, self._all_projects)
            for project in list(projects)[:MAX_FOLDED]
        }

    def fold(self, entry: JournalEntry) -> None:
        """Fold one entry, after the fold of all projects did."""
        for fold in self._folds.values():
            fold.fold(entry)

    def frames(self, at: float) -> dict[str, TopicFrame]:
        """Return the frames of the followed projects' topics at journal time ``at``."""
        return {
            topic: frame
            for fold in self._folds.values()
            for topic, frame in fold.frames(at).items()
        }


class ProjectFold(FrameFold):
    """State of one project, and of the capacity that it shares with others."""

    def __init__(self, project: str, all_projects: FrameFold) -> None:
        super().__init__(recent_projects=0)
        self._project, self._all_projects = project, all_projects
        self._suffix = f"@{project}"
        self._at, self.wall_offset = all_projects.journal_time(0.0), all_projects.wall_offset
        self.recent = all_projects.project_activity.copy_of(project)
        if self.recent.began is not None:
            self._since = self.recent.began + self.wall_offset
        self.open_actions = all_projects.open_actions.for_project(project)
        self.trajectories = all_projects.trajectories.for_project(project)
        self.capacity = all_projects.capacity.for_project(project)
        self.holders = all_projects.holders.for_actions(self.open_actions)
        for action in self.open_actions.by_id.values():
            self.capacity.hold(action.node, action.allocations)

    def take(self, fact: object) -> None:
        """Fold an event or decision about this project or about all."""
        if type(fact) in self._handlers and self._concerns(fact):
            self._revision += 1
            super().take(fact)

    def _concerns(self, fact: Any) -> bool:
        if isinstance(fact, ActionSubmitted):
            return bool(fact.action.project == self._project)
        if (action := getattr(fact, "action_id", None)) is not None:
            return action in self.open_actions.by_id
        if isinstance(fact, (TransferFile, EnvironmentRemoved, EndMove)):
            return fact.trajectory.startswith(f"{self._project}/")
        if isinstance(fact, EnvironmentsForked):
            return fact.source.startswith(f"{self._project}/")
        if isinstance(fact, _SHARED):
            return True
        return getattr(fact, "project", None) == self._project

    def _levels(self) -> dict[str, float]:
        return dict(self.open_actions.everything.counts())

    def _record(self, second: Rollup) -> None:
        """Store nothing: the fold of all projects makes the rollups of each."""

    def _overview(self) -> dict[str, Any]:
        body = super()._overview()
        default = self.capacity.config.projects.get(self._project)
        default_pool = default.default_pool if default else "default"
        names = {default_pool, *self.open_actions.pools}
        body["pools"] = [pool for pool in body["pools"] if pool["name"] in names]
        for resource in body["resources"]:
            held = self._all_projects.capacity.held[ResourceId(resource["name"])] / MILLI
            resource["others"] = max(0.0, held - resource["held"])
        # Services are shared by all projects.
        since = self._at - WINDOW_SECONDS
        body["restores"] = self._all_projects.residents.restores_since(since)
        return body

    def node_rows(self) -> list[dict[str, Any]]:
        """Return all nodes as the project sees them."""
        self.nodes_revision = self._all_projects.nodes_revision
        if self._rows_revision != self.nodes_revision:
            self._rows_revision = self.nodes_revision
            gpus = self._all_projects.holders.held_by_others(self._project, "gpu")
            pairs = zip(self._all_projects.node_rows(), self.capacity.rows(), strict=True)
            self._rows = [_as_seen(every, own, gpus) for every, own in pairs]
        return self._rows

    def _holders(self) -> dict[str, Any]:
        """Return the project's own holders; services are shared by all projects."""
        rows = self.holders.rows(self._at, self.wall_offset)
        return {"nodes": rows, **self._all_projects.residents.rows(self.wall_offset)}


def _as_seen(every: dict[str, Any], own: dict[str, Any], gpus: dict[str, str]) -> dict[str, Any]:
    """Return the row of a node with the project's own holdings, and the rest as held by others."""
    return every | {
        "cores": _cores(every["cores"], own["cores"]),
        "cores_own": own["cores_held"],
        "environments": own["environments"],
        "gpus": every["gpus"] | {"others": gpus.get(every["name"], "")},
    }


def _cores(every: bytes, own: bytes) -> bytes:
    """Return own cores as they are, and `OTHERS` for cores that other projects hold."""
    held, mine = np.frombuffer(every, np.uint8), np.frombuffer(own, np.uint8)
    others = np.where((mine == 0) & (held > 0), np.uint8(OTHERS), mine)
    return others.astype(np.uint8).tobytes()
