"""Environments of one driver: their cores, those that live, and those that are prepared.

environments = DriverEnvironments(tools, {"swe:1": 8})
await environments.adopt(living)      takes over what a predecessor has left
environments.begin()                  prepares in the background
await environments.close(keep=False)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from domain.action import EnvironmentSpec
from domain.errors import TangramError
from domain.ids import TrajectoryKey
from managers.common.removals import Removals
from managers.cpu.environment.adoption import InitRecord
from managers.cpu.environment.cpusets import CoreSets, open_core_sets
from managers.cpu.environment.freezers import Freezers
from managers.cpu.environment.kept import Confinement
from managers.cpu.environment.prepared import PreparedEnvironments
from managers.cpu.environment.starting import StoreTools
from managers.cpu.environment.store import KeptEnvironments
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.shared_cores import SharedCores

_log = logging.getLogger(__name__)


def confine(
    tagger: ProcessTagger,
    cpus: Sequence[int],
    given: Mapping[str, str],
    freezers: Freezers | None = None,
) -> Confinement:
    """Return what limits the processes of environments; ``given``: the node's settings. Blocks."""
    shared = SharedCores.choose(tuple(cpus), given)
    cores: CoreSets | None = None
    with contextlib.suppress(OSError):  # then affinity alone
        cores = open_core_sets(f"{tagger.name}-cores", shared.parking)
    return Confinement(tagger, shared.parking, not shared.shared, cores, freezers)


class DriverEnvironments:
    """The environments of one driver."""

    def __init__(self, tools: StoreTools, warm: Mapping[str, int]) -> None:
        """``warm``: prepared environments by the node's setting, image → number."""
        self._tools = tools
        self._cores, self._freezers = tools.confinement.cores, tools.confinement.freezers
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False
        self.kept = KeptEnvironments(tools)
        #: None: environments have no trees here.
        self.prepared: PreparedEnvironments | None = None
        if tools.trees.way:
            tools.workspaces.prepared = self.prepared = PreparedEnvironments(
                warm, tools.trees, tools.workspaces, self.kept.starter, self.kept.receive
            )

    async def adopt(self, living: dict[str, InitRecord]) -> None:
        """Take over the environments of a predecessor, and remove the groups of all others."""
        await self.kept.adopt(living)
        names = {each.name for each in self.kept.all()}
        for groups in (self._cores, self._freezers):
            if groups is not None:
                await asyncio.to_thread(groups.clear, names)

    def begin(self) -> None:
        """Prepare environments from now on."""
        if self.prepared is not None:
            self.prepared.begin()

    def start_soon(
        self, trajectories: Iterable[TrajectoryKey], spec: EnvironmentSpec, removals: Removals
    ) -> None:
        """Start the environments of new folders in the background, one after another.

        Their first commands find an init that runs; one that arrives earlier starts its environment itself.
        """
        task = asyncio.create_task(self._start_all(list(trajectories), spec, removals))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_all(
        self, trajectories: Sequence[TrajectoryKey], spec: EnvironmentSpec, removals: Removals
    ) -> None:
        for trajectory in trajectories:
            if self._closed:
                return
            async with removals.using(trajectory):
                if not self._tools.workspaces.of(trajectory).exists():
                    continue  # it was removed meanwhile
                try:
                    await self.kept.open(trajectory, spec)
                except (OSError, TangramError, subprocess.SubprocessError) as error:
                    # Its first command tries again, and reports why it fails.
                    _log.warning("the environment of %s was not started: %s", trajectory, error)

    async def close(self, *, keep: bool) -> None:
        """End all environments, or leave those of trajectories to the next worker."""
        self._closed = True
        if self._starting:
            # They are not cancelled: a sandbox that is being spawned would be left behind.
            await asyncio.wait(self._starting)
        if self.prepared is not None:
            await self.prepared.close()
        await self.kept.close(keep=keep)
        if self._cores is not None:
            await asyncio.to_thread(self._cores.close)
