"""Copies of a node's snapshots in the object store, so that they outlive the node.

A copy is made after the snapshot is registered, in the background, one at a time; a trajectory on this node does not wait for it.
What fails is repeated until the copy is there or the snapshot was removed. A worker that starts makes the copies that are missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

import redis

from domain.errors import NotFound, TangramError
from domain.snapshots import SnapshotFacts
from scheduler.runtime.object_store.contents import keep_made
from scheduler.runtime.object_store.objects import SNAPSHOTS, ObjectStore
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0

#: Project and name → the archive of a snapshot of this node.
ExportSnapshot = Callable[[str, str], AsyncIterator[bytes]]


class SnapshotCopies:
    """Makes the copies of one node."""

    def __init__(self, registry: SnapshotRegistry, store: ObjectStore | None) -> None:
        """Without a store nothing is copied."""
        self._registry = registry
        self._store = store
        self._turn = asyncio.Lock()
        self._making: set[asyncio.Task[None]] = set()

    def keep(self, facts: SnapshotFacts, export: ExportSnapshot) -> None:
        """Have a snapshot copied, unless it has a copy."""
        if self._store is not None:
            task = asyncio.ensure_future(self._keep(self._store, facts, export))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def settled(self) -> None:
        """Wait for the copies that are wanted now."""
        while self._making:
            await asyncio.wait(set(self._making))

    async def close(self) -> None:
        """Break off what is being copied; the next worker repeats it."""
        for task in self._making:
            task.cancel()
        await self.settled()

    async def _keep(self, store: ObjectStore, facts: SnapshotFacts, export: ExportSnapshot) -> None:
        pause = FIRST_PAUSE_SECONDS
        while keep_running():
            try:
                async with self._turn:
                    await self._copy(store, facts, export)
                return
            except NotFound:
                return  # it was removed here
            except (TangramError, OSError, redis.RedisError) as error:
                log.warning(
                    "the copy of snapshot %s of project %s waits: %s",
                    facts.name,
                    facts.project,
                    error,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _copy(self, store: ObjectStore, facts: SnapshotFacts, export: ExportSnapshot) -> None:
        project, name = facts.project, facts.name
        if await self._registry.find(project, name) != facts:
            return  # it was removed, and perhaps taken again
        if await self._registry.copy_of(facts) is not None:
            return
        content = await keep_made(store, SNAPSHOTS, project, partial(export, project, name))
        await self._registry.add_copy(facts, content)
