"""An open trajectory: its names, and the project that owns its actions."""

from __future__ import annotations

from typing import Any


class OpenTrajectory:
    """Common part of `Trajectory` and `AsyncTrajectory`."""

    def __init__(self, trajectory: str, task: str, project: str | None) -> None:
        self.id = trajectory
        self.task = task
        #: None: the client's, else the token's.
        self.project = project

    def _owned(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return ``fields`` of an action that belongs to the trajectory's project."""
        return {"project": self.project, **fields}
