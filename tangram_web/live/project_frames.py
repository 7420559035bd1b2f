"""Frames of single projects, folded while somebody watches them.

Theory of operation. The fold of one project is a `FrameFold` that takes in what its project does,
and what happens to nodes and configuration. It begins with a copy of what the fold of everything
knows of the project (live actions, what they hold, environments, its last minutes), so counts, maps
and charts are right from its first frame (`pasts.py`). Where nobody watches a project its fold is
forgotten.

What other projects hold shows as capacity that is taken, without a name: `OTHERS` on cores,
``others`` of GPUs and of counted resources.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from domain.codec import JournalEntry
from domain.decisions import Forget, TransferFile
from domain.events import (
    ActionSubmitted,
    ConfigApplied,
    EnvironmentRemoved,
    NodeJoined,
    NodeLost,
    NodeReturned,
)
from domain.ids import ResourceId
from domain.resources import MILLI
from tangram_web.live.capacity import OTHERS
from tangram_web.live.frame import Frame
from tangram_web.live.frames import FrameFold

#: Projects that are folded at once; of more, those watched last.
MOST: Final = 32
#: Concern every project.
_SHARED: Final = (NodeJoined, NodeLost, NodeReturned, Forget, ConfigApplied)


class Parts:
    """The folds of the projects that are watched."""

    def __init__(self, whole: FrameFold) -> None:
        self._whole = whole
        self._folds: dict[str, ProjectFold] = {}

    def watch(self, projects: Collection[str]) -> None:
        """Fold these projects from now on, and no others."""
        wanted = list(projects)[:MOST]
        self._folds = {
            project: self._folds.get(project) or ProjectFold(project, self._whole)
            for project in wanted
        }

    def fold(self, entry: JournalEntry) -> None:
        """Take one cycle in, after the whole did."""
        for fold in self._folds.values():
            fold.fold(entry)

    def frames(self, at: float) -> dict[str, Frame]:
        """Return what each topic of the watched projects says at journal time ``at``."""
        return {
            topic: frame
            for fold in self._folds.values()
            for topic, frame in fold.frames(at).items()
        }


class ProjectFold(FrameFold):
    """What one project does, and what there is to share."""

    def __init__(self, project: str, whole: FrameFold) -> None:
        super().__init__(projects=0)
        self._project, self._whole = project, whole
        self._suffix = f"@{project}"
        self._at, self.wall_offset = whole.journal_time(0.0), whole.wall_offset
        self.flow = whole.pasts.part(project)
        if self.flow.began is not None:
            self._since = self.flow.began + self.wall_offset
        self.population = whole.population.part(project)
        self.capacity = whole.capacity.part(project)
        self.origins = whole.origins.part(project)
        self.holders = whole.holders.part(self.population)
        for live in self.population.actions.values():
            self.capacity.hold(live.node, live.allocations)

    def _take(self, message: object) -> None:
        if self._concerns(message):
            super()._take(message)

    def _concerns(self, message: Any) -> bool:
        """Say whether a message is about this project, or about all."""
        if isinstance(message, ActionSubmitted):
            return bool(message.action.project == self._project)
        if (action := getattr(message, "action_id", None)) is not None:
            return action in self.population.actions
        if isinstance(message, (TransferFile, EnvironmentRemoved)):
            return message.trajectory.startswith(f"{self._project}/")
        if isinstance(message, _SHARED):
            return True
        return getattr(message, "project", None) == self._project

    def _levels(self) -> dict[str, float]:
        return dict(self.population.everything.counts())

    def _remember(self, wall: int) -> None:
        """Keep nothing for weeks: nobody stores it."""

    def _overview(self) -> dict[str, Any]:
        body = super()._overview()
        default = self.capacity.config.projects.get(self._project)
        home = default.default_pool if default else "default"
        body["pools"] = [
            pool for pool in body["pools"] if pool["name"] in {home, *self.population.pools}
        ]
        for resource in body["resources"]:
            held = self._whole.capacity.held[ResourceId(resource["name"])] / MILLI
            resource["others"] = max(0.0, held - resource["held"])
        return body

    def rows_of_nodes(self) -> list[dict[str, Any]]:
        """Return all nodes as the project sees them."""
        self.nodes_revision = self._whole.nodes_revision
        if self._rows_of != self.nodes_revision:
            self._rows_of = self.nodes_revision
            gpus = self._whole.holders.of_others(self._project, "gpu")
            pairs = zip(self._whole.rows_of_nodes(), self.capacity.rows(), strict=True)
            self._rows = [_beside(all_, own, gpus) for all_, own in pairs]
        return self._rows

    def _holders(self) -> dict[str, Any]:
        """Return its own holders; services are everybody's."""
        rows = self.holders.rows(self._at, self.wall_offset)
        return {"nodes": rows, **self._whole.residents.rows(self.wall_offset)}


def _beside(all_: dict[str, Any], own: dict[str, Any], gpus: dict[str, str]) -> dict[str, Any]:
    """Return a node as one project sees it: its own cores, and what others leave of it."""
    return all_ | {
        "cores": _cores(all_["cores"], own["cores"]),
        "cores_own": own["cores_held"],
        "environments": own["environments"],
        "gpus": all_["gpus"] | {"others": gpus.get(all_["name"], "")},
    }


def _cores(all_: bytes, own: bytes) -> bytes:
    """Return one's own cores as they are, and of those of others that they are held."""
    held, mine = np.frombuffer(all_, np.uint8), np.frombuffer(own, np.uint8)
    others = np.where((mine == 0) & (held > 0), np.uint8(OTHERS), mine)
    return others.astype(np.uint8).tobytes()
