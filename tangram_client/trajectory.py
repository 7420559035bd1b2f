"""A trajectory as a ``with`` block: opened at its start, finished at its end, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tangram_client.payloads import call_action, exec_action

if TYPE_CHECKING:
    from tangram_client.aio import AsyncClient
    from tangram_client.client import Client
    from tangram_client.models import ActionView


class Trajectory:
    """An open trajectory: commands run in its environment, one after the other."""

    def __init__(self, client: Client, trajectory: str, task: str) -> None:
        self._client = client
        self.id = trajectory
        self.task = task

    def exec(
        self,
        command: str | Sequence[str],
        *,
        patience_seconds: float | None = None,
        **fields: Any,
    ) -> ActionView:
        """Run a command and wait for its end; ``fields`` as in `payloads.exec_action`."""
        action = exec_action(self.task, command, trajectory=self.id, **fields)
        return self._client.run(action, patience_seconds=patience_seconds)

    def call(
        self, target: str, path: str = "/", *, patience_seconds: float | None = None, **fields: Any
    ) -> ActionView:
        """Call a declared API and wait for its answer; ``fields`` as in `payloads.call_action`."""
        action = call_action(self.task, target, path, trajectory=self.id, **fields)
        return self._client.run(action, patience_seconds=patience_seconds)

    def put(self, path: str, content: bytes | str) -> None:
        """Write a file below the workspace."""
        self._client.put_file(self.id, path, content)

    def get(self, path: str) -> bytes:
        """Read a file below the workspace."""
        return self._client.get_file(self.id, path)


class AsyncTrajectory:
    """An open trajectory: commands run in its environment, one after the other."""

    def __init__(self, client: AsyncClient, trajectory: str, task: str) -> None:
        self._client = client
        self.id = trajectory
        self.task = task

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        patience_seconds: float | None = None,
        **fields: Any,
    ) -> ActionView:
        """Run a command and wait for its end; ``fields`` as in `payloads.exec_action`."""
        action = exec_action(self.task, command, trajectory=self.id, **fields)
        return await self._client.run(action, patience_seconds=patience_seconds)

    async def call(
        self, target: str, path: str = "/", *, patience_seconds: float | None = None, **fields: Any
    ) -> ActionView:
        """Call a declared API and wait for its answer; ``fields`` as in `payloads.call_action`."""
        action = call_action(self.task, target, path, trajectory=self.id, **fields)
        return await self._client.run(action, patience_seconds=patience_seconds)

    async def put(self, path: str, content: bytes | str) -> None:
        """Write a file below the workspace."""
        await self._client.put_file(self.id, path, content)

    async def get(self, path: str) -> bytes:
        """Read a file below the workspace."""
        return await self._client.get_file(self.id, path)
