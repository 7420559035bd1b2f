"""A trajectory as a ``with`` block: opened at its start, finished at its end, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tangram_client.payloads import call_action, exec_action

if TYPE_CHECKING:
    from tangram_client.aio import AsyncClient
    from tangram_client.client import Client
    from tangram_client.models import ActionView


class _Opened:
    """What is known of an open trajectory."""

    def __init__(self, trajectory: str, task: str, project: str | None) -> None:
        self.id = trajectory
        self.task = task
        #: None: the client's, else the token's.
        self.project = project

    def _owned(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return ``fields`` of an action that belongs to the trajectory's project."""
        return {"project": self.project, **fields}


class Trajectory(_Opened):
    """An open trajectory: commands run in its environment, one after the other."""

    def __init__(
        self, client: Client, trajectory: str, task: str, project: str | None = None
    ) -> None:
        super().__init__(trajectory, task, project)
        self._client = client

    def exec(
        self,
        command: str | Sequence[str],
        *,
        patience_seconds: float | None = None,
        **fields: Any,
    ) -> ActionView:
        """Run a command and wait for its end; ``fields`` as in `payloads.exec_action`."""
        action = exec_action(self.task, command, trajectory=self.id, **self._owned(fields))
        return self._client.run(action, patience_seconds=patience_seconds)

    def call(
        self, target: str, path: str = "/", *, patience_seconds: float | None = None, **fields: Any
    ) -> ActionView:
        """Call a declared API and wait for its answer; ``fields`` as in `payloads.call_action`."""
        action = call_action(self.task, target, path, trajectory=self.id, **self._owned(fields))
        return self._client.run(action, patience_seconds=patience_seconds)

    def put(self, path: str, content: bytes | str) -> None:
        """Write a file below the workspace."""
        self._client.put_file(self.id, path, content, project=self.project)

    def get(self, path: str) -> bytes:
        """Read a file below the workspace."""
        return self._client.get_file(self.id, path, project=self.project)


class AsyncTrajectory(_Opened):
    """An open trajectory: commands run in its environment, one after the other."""

    def __init__(
        self, client: AsyncClient, trajectory: str, task: str, project: str | None = None
    ) -> None:
        super().__init__(trajectory, task, project)
        self._client = client

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        patience_seconds: float | None = None,
        **fields: Any,
    ) -> ActionView:
        """Run a command and wait for its end; ``fields`` as in `payloads.exec_action`."""
        action = exec_action(self.task, command, trajectory=self.id, **self._owned(fields))
        return await self._client.run(action, patience_seconds=patience_seconds)

    async def call(
        self, target: str, path: str = "/", *, patience_seconds: float | None = None, **fields: Any
    ) -> ActionView:
        """Call a declared API and wait for its answer; ``fields`` as in `payloads.call_action`."""
        action = call_action(self.task, target, path, trajectory=self.id, **self._owned(fields))
        return await self._client.run(action, patience_seconds=patience_seconds)

    async def put(self, path: str, content: bytes | str) -> None:
        """Write a file below the workspace."""
        await self._client.put_file(self.id, path, content, project=self.project)

    async def get(self, path: str) -> bytes:
        """Read a file below the workspace."""
        return await self._client.get_file(self.id, path, project=self.project)
