"""Forks of containers, by copies: the engine stores what a container has changed of its image as another image.

A fork has that image and a copy of the workspace; its container is made at its first action. Where the layer of the source is
on a disk (`managers.cpu.containers.layer_disks`) the fork has a copy of it on its own disk instead, and the same image. The container of the source
is frozen meanwhile, so both are of one instant. A container that has changed nothing but its workspace needs no
image of its own.

State. ``forks/NAME`` names the image of the engine that a fork begins from. It is written when the workspace of the fork
is complete, so a repeated order makes those that are missing. An image that no record and no container of this driver
names is deleted, by the label of its owner; none while a fork is made from it. Volumes of an image are forked where they are on the disk of the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.decisions import ForkEnvironment
from domain.errors import Conflict, TangramError, Unavailable
from domain.forks import COPIED, COPY, ForkReport
from domain.ids import TrajectoryKey
from managers.cpu.containers.container_config import OWNER
from managers.cpu.containers.docker_engine import DockerRefused
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.environment_store import EnvironmentStore, Site, shell_of
from managers.cpu.containers.layer_disks import SEED, VOLUMES
from managers.cpu.containers.living_store import LivingContainers
from managers.cpu.tree.copying import copy_tree, make_room
from managers.cpu.tree.layers import UPPER

_FREEZING_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.002
#: Paths that a container has whatever it does: mount points, and what the engine writes.
_NOT_ITS_OWN: Final = (
    "/workspace", "/.tangram", "/etc", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab",
    "/dev", "/proc", "/sys", "/.dockerenv",
)  # fmt: skip


class ContainerForking:
    """Makes the forks of one driver."""

    def __init__(
        self,
        site: Site,
        environments: EnvironmentStore,
        living: LivingContainers,
        idle_shells: Callable[[Environment], Collection[int]],
    ) -> None:
        """``idle_shells`` returns the host ids of shells of sessions that run no command."""
        self._site, self._environments, self._living = site, environments, living
        self._idle_shells = idle_shells
        #: Images of forks that have no record yet; those of commits that the engine has not answered are unknown.
        self._begun: Counter[str] = Counter()
        self._unnamed = 0

    async def fork(self, order: ForkEnvironment) -> ForkReport:
        """Give each child of ``order`` a copy of the files of its source.

        Raises Conflict while programs run in it, StorageFull, Unavailable, DockerUnavailable, OSError.
        """
        began = time.monotonic()
        forks = self._environments.forks
        missing = [key for key in order.children if not forks.is_fork(key)]
        if not missing:
            return ForkReport(COPIED, 0.0)
        source = self._environments.known(order.source)
        try:
            async with self.paused(source, order) as environment:
                paused = time.monotonic()
                image = await self.stored(order, environment)
                with self.in_use(image):
                    await asyncio.to_thread(self._copy, order, missing, image)
                frozen = time.monotonic() - paused if environment is not None else 0.0
        except BaseException:
            for key in missing:
                await self.forget(key)
            raise
        return ForkReport(COPIED, time.monotonic() - began, frozen)

    async def forget(self, trajectory: TrajectoryKey) -> None:
        """Delete what a trajectory has without a container, and images that are not used any more."""
        workspaces = self._site.workspaces
        await asyncio.to_thread(workspaces.remove, workspaces.of(trajectory))
        if self._environments.forks.forget(trajectory):
            await self.collect()

    async def collect(self) -> None:
        """Delete the images of forks that nothing begins from; those still in use are left for later."""
        site = self._site
        with contextlib.suppress(TangramError):
            images = await site.engine.images(f"{OWNER}={site.owner}")
            if self._unnamed:
                return
            # After the list: an image that was made meanwhile is not in it.
            used = {each.base for each in self._environments.all()} | {*self._begun}
            used |= self._environments.forks.images()
            for image in images:
                if image not in used and not self._unnamed:
                    with contextlib.suppress(DockerRefused):
                        await site.engine.remove_image(image)
                        shell_of(site.directory, image).unlink(missing_ok=True)

    @contextlib.contextmanager
    def in_use(self, image: str) -> Iterator[None]:
        """Keep an image that no record names yet."""
        self._begun[image] += 1
        try:
            yield
        finally:
            self._begun[image] -= 1
            self._begun += Counter()  # without those that are at 0

    @contextlib.asynccontextmanager
    async def paused(
        self, source: Environment | None, order: ForkEnvironment
    ) -> AsyncIterator[Environment | None]:
        """Pause the container of the source meanwhile; None: it has none yet. Raises Conflict, Unavailable."""
        if source is None or not source.container:
            yield None
            return
        if source.lost:
            raise Unavailable(f"the environment is lost: {source.lost}")
        if source.lock.locked():
            raise Conflict("a command runs in the environment")
        async with source.lock:
            self._check_quiet(source, order)
            async with self._frozen(source):
                yield source

    @contextlib.asynccontextmanager
    async def _frozen(self, source: Environment) -> AsyncIterator[None]:
        """Freeze all its processes meanwhile. Raises Unavailable, DockerUnavailable, DockerRefused."""
        group, engine = source.group, self._site.engine
        if group is None:
            await engine.pause(source.container)
            try:
                yield
            finally:
                await engine.unpause(source.container)
            return
        # The engine gives up after a moment, and a container at rest has a hundredth of a core to stop in.
        try:
            group.freeze(True)
            deadline = time.monotonic() + _FREEZING_SECONDS
            while not group.is_frozen():
                if time.monotonic() > deadline:
                    raise Unavailable("the programs of the container do not stop")
                await asyncio.sleep(_PAUSE_SECONDS)  # the kernel does not notify
            yield
        finally:
            with contextlib.suppress(OSError):  # it has ended
                group.freeze(False)

    def _check_quiet(self, source: Environment, order: ForkEnvironment) -> None:
        living = self._living.known(source)
        if living is None or order.on_busy == COPY:
            return
        idle = self._idle_shells(source)
        running = [each.command for each in living.processes() if each.pid not in idle]
        if running:
            raise Conflict(
                f"a program runs in the container ({running[0][:80]}): end it, or send on_busy=copy to fork its"
                " files as they are now",
                code="busy_environment",
            )

    async def stored(self, order: ForkEnvironment, source: Environment | None) -> str:
        """Return the image that the forks begin from; empty: that of the environment."""
        if source is None:
            return self._environments.forks.image_of(order.source)
        engine = self._site.engine
        if source.disk is not None:
            return (
                source.base
            )  # its layer is copied: the engine finds no changes behind the link to the disk
        changed = await engine.changes(source.container)
        if not changed.difference(_NOT_ITS_OWN):
            return source.base
        with self.making_image():
            return await engine.commit(source.container, {OWNER: self._site.owner})

    @contextlib.contextmanager
    def making_image(self) -> Iterator[None]:
        """Delete no image meanwhile: the engine makes one, which nothing names yet."""
        self._unnamed += 1
        try:
            yield
        finally:
            self._unnamed -= 1

    def _copy(self, order: ForkEnvironment, missing: Collection[TrajectoryKey], image: str) -> None:
        site, spec = self._site, order.environment or EnvironmentSpec()
        source = site.workspaces.of(order.source)
        for key in missing:
            site.workspaces.remove(site.workspaces.of(key))  # of an order that was interrupted
            folder = site.folder_of(key, spec)
            if source.exists():
                make_room(site.workspaces.files(source), folder)
                copy_tree(site.workspaces.files(source), site.workspaces.files(folder))
                self._copy_disk(source, folder)
            self._environments.forks.begin(key, image)

    def _copy_disk(self, source: Path, folder: Path) -> None:
        """Copy what a container has written outside of its workspace, where that is on a disk of its own."""
        if not self._site.workspaces.disk_bytes(source):
            return
        if not self._site.workspaces.disk_bytes(folder):
            raise Unavailable(
                "this node gives environments no disks any more, which the source has"
            )
        if (source / VOLUMES).is_dir():
            copy_tree(source / VOLUMES, folder / VOLUMES)
        layer = source / (UPPER if (source / UPPER).is_dir() else SEED)
        if layer.is_dir():
            make_room(layer, folder)
            copy_tree(layer, folder / SEED)
