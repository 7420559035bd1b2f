"""Snapshots of a driver's environments: taken by sealing, begun from, exported to other nodes and fetched from them.

A trajectory that declares a snapshot begins from it at its first use here (`ensure`); the snapshot is fetched
when this node does not have it, once for all trajectories that wait.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

from msgspec.structs import replace

from domain.action import EnvironmentSpec, Outcome
from domain.decisions import ForkEnvironment
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.ids import TrajectoryKey
from domain.ports import RunOrder, RunReport
from domain.ports.drivers import FetchSnapshot
from domain.snapshots import SnapshotReport
from managers.common.start_log import sync_directory
from managers.cpu.disk_use import measure_all
from managers.cpu.tree.forking import EnvironmentForking
from managers.cpu.tree.layers import LAYERS, TreeRecord
from managers.cpu.tree.snapshot import (
    KeptSnapshot,
    SnapshotStore,
    export,
    import_archive,
)
from managers.cpu.workspaces import Workspaces


class SnapshotKeeper:
    """The snapshots of one driver."""

    def __init__(
        self,
        state: Path,
        workspaces: Workspaces,
        forking: EnvironmentForking,
        store: SnapshotStore,
        fetch: FetchSnapshot | None,
    ) -> None:
        self._state = state
        self._workspaces = workspaces
        self._forking = forking
        self._store = store
        self._fetch = fetch
        self._turns: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, order: ForkEnvironment) -> SnapshotReport:
        """Take a snapshot; one of the same environment under the same name is kept. Raises as a fork."""
        project, name = order.project, order.snapshot
        known = await asyncio.to_thread(self._store.find, project, name)
        if known is not None:
            if known.record.trajectory != order.source:
                raise Conflict(f"there is a snapshot {name!r} already", code="exists")
            return SnapshotReport(
                size_bytes=known.size_bytes, image=known.record.image, way="sealed", seconds=0.0
            )
        record, report = await self._forking.snapshot(order)
        layers = [self._state / LAYERS / each for each in record.stack.sealed]
        size = await asyncio.to_thread(measure_all, layers)
        snapshot = KeptSnapshot(
            project=project,
            name=name,
            record=replace(record, trajectory=order.source),
            size_bytes=size.used_bytes,
            marks=self._forking.marks,
            first_uid=self._workspaces.uid_of(layers[-1]),
        )
        try:
            await asyncio.to_thread(self._store.add, snapshot)
        finally:
            self._forking.released(record.stack.sealed)
        return SnapshotReport(
            size_bytes=size.used_bytes,
            image=record.image,
            way=report.way,
            seconds=report.seconds,
            frozen_seconds=report.frozen_seconds,
        )

    async def drop(self, project: str, name: str) -> None:
        """Delete a snapshot; an unknown one is ignored."""
        await asyncio.to_thread(self._store.remove, project, name)
        await self._forking.collect()

    async def all(self) -> list[tuple[str, str]]:
        """Return project and name of each snapshot here."""
        return [(each.project, each.name) for each in await asyncio.to_thread(self._store.all)]

    async def export(self, project: str, name: str) -> AsyncIterator[bytes]:
        """Yield the archive of a snapshot. Raises NotFound, Unavailable."""
        snapshot = await asyncio.to_thread(self._store.find, project, name)
        if snapshot is None:
            raise NotFound(f"there is no snapshot {name!r} on this node")
        async for piece in export(self._state, snapshot):
            yield piece

    async def begin(self, order: RunOrder) -> RunReport | None:
        """Make the environment of an order as `ensure`; a report when that fails."""
        trajectory, spec = order.action.trajectory_key, order.environment
        if trajectory is None or spec is None or spec.snapshot is None:
            return None
        try:
            await self.ensure(trajectory, spec)
        except (TangramError, OSError) as error:
            detail = f"the environment cannot begin from snapshot {spec.snapshot!r}: {error}"
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        return None

    async def ensure(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> None:
        """Make the environment of a trajectory from the snapshot that it declares, unless it exists.

        Raises NotFound, InvalidRequest, Unavailable, StorageFull, OSError.
        """
        name, project = spec.snapshot, trajectory.partition("/")[0]
        if name is None or self._workspaces.of(trajectory).exists():
            return
        async with self._turns[project, name]:
            snapshot = await asyncio.to_thread(self._store.find, project, name)
            if snapshot is None or snapshot.imported:
                snapshot = await self._import(project, name, snapshot)
        if not await self._forking.has_image(snapshot.record):
            raise InvalidRequest(
                f"snapshot {name!r} needs image {snapshot.record.image!r}, which this node does not have"
            )
        if not self._workspaces.of(trajectory).exists():
            await self._forking.begin_from(snapshot.record, trajectory)

    async def begin_with(
        self,
        trajectory: TrajectoryKey,
        name: str,
        archive: AsyncGenerator[bytes, None],
        check: Callable[[TreeRecord], None],
    ) -> None:
        """Make the environment of a trajectory with the archive of the snapshot ``name``, on disk; it is not kept as one.

        ``check`` raises for a record that this node cannot use. Nothing is done where the environment exists. Raises as `ensure`.
        """
        if self._workspaces.of(trajectory).exists():
            return
        project = trajectory.partition("/")[0]
        try:
            snapshot = await self._take_in(project, name, archive, None)
            check(snapshot.record)
            await self._forking.begin_from(snapshot.record, trajectory)
            await asyncio.to_thread(sync_directory, self._workspaces.of(trajectory).parent)
        finally:
            await self.drop(project, name)

    async def _import(self, project: str, name: str, known: KeptSnapshot | None) -> KeptSnapshot:
        """Get a snapshot from its node, unless ``known`` is still the same."""
        if self._fetch is None:
            raise NotFound(f"there is no snapshot {name!r}")
        return await self._take_in(project, name, self._fetch(project, name), known)

    async def _take_in(
        self,
        project: str,
        name: str,
        archive: AsyncGenerator[bytes, None],
        known: KeptSnapshot | None,
    ) -> KeptSnapshot:
        with self._workspaces.draft() as draft:
            async with aclosing(archive) as pieces:
                snapshot = await import_archive(
                    self._state,
                    draft,
                    pieces,
                    self._forking.marks,
                    self._workspaces.new_owner,
                    self._forking.keep,
                    known,
                )
        if snapshot is known:
            return snapshot
        if (snapshot.project, snapshot.name) != (project, name):
            raise InvalidRequest("the other node sent another snapshot")
        layers = snapshot.record.stack.sealed
        for layer in layers[1:]:  # the first one is counted with the new owner
            self._workspaces.share(self._state / LAYERS / layer)
        try:
            snapshot = replace(snapshot, record=self._forking.adapted(snapshot.record))
            await asyncio.to_thread(self._store.add, snapshot)
        finally:
            self._forking.released(layers)
        return snapshot
