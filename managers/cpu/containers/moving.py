"""Moves of containers: the files of a quiet environment are packed, and the container of another engine begins with them.

What is packed is what a fork copies (`forking`): the workspace, and all else that the container has changed of its image. That is a layer on the
environment's own disk, or one that the engine stores as an image (`docker commit`): then the target's engine gets the layers above the
declared image, which it must have itself. The new container is made as that of a fork.

An environment is refused, with a code of `domain.moves`, while it has anything else: a program, a session, files in a tmpfs, a volume that is
not on its disk, or a request that uses it. An engine with the image store of containerd takes no single layers: there an
environment moves that changed its workspace alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

from domain.action import EnvironmentSpec
from domain.decisions import ForkEnvironment, MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, InvalidRequest, Unavailable
from domain.ids import TrajectoryKey
from domain.moves import (
    IN_MEMORY,
    IN_USE,
    LAYER,
    PROCESS,
    SESSION,
    TOO_LARGE,
    VOLUME,
    packed_name,
)
from managers.common.removals import Removals
from managers.cpu.containers.container_config import OWNER
from managers.cpu.containers.engine_backend import OWN_PROCESSES
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.environment_store import EnvironmentStore, Site
from managers.cpu.containers.forking import ContainerForking
from managers.cpu.containers.image_layers import (
    image_archive,
    layer_file,
    layers_of,
    pick_layers,
)
from managers.cpu.containers.layer_disks import SEED, VOLUMES, volumes_of
from managers.cpu.containers.living_store import LivingContainers
from managers.cpu.containers.packed import ArchiveReader, PackedContainer, PackedContainers
from managers.cpu.environment.in_memory import place_in_memory
from managers.cpu.environment.move_limits import check_size
from managers.cpu.sessions.serving import SessionService
from managers.cpu.tree.layers import UPPER, WORKSPACE
from managers.cpu.tree.snapshot import sync_tree
from managers.cpu.tree.tar_streams import extract_tar

#: Last part of the folder of an engine that maps users: their first uid and gid.
_MAPPED: Final = re.compile(r"\d+\.\d+")


class MovingTools(NamedTuple):
    """What moves need of an open driver."""

    site: Site
    environments: EnvironmentStore
    living: LivingContainers
    forking: ContainerForking


class ContainerMoving:
    """The moves of one container driver (`domain.ports.moves.EnvironmentMoving`)."""

    def __init__(self, state: Path, removals: Removals, sessions: SessionService) -> None:
        self._removals, self._sessions = removals, sessions
        #: What was packed here.
        self.packed = PackedContainers(state)
        self._opened: MovingTools | None = None

    def open(self, tools: MovingTools) -> None:
        """Begin to move. Blocks."""
        self.packed.open()
        self._opened = tools

    @property
    def works(self) -> bool:
        """Whether environments can be moved from and to this node, known once the driver is open."""
        return self._opened is not None and self._opened.site.engine.is_local

    async def pack(self, order: MoveEnvironment) -> None:
        """Store the files of an environment under the name of its move. Raises Conflict with a code of `domain.moves`."""
        tools = self._tools()
        trajectory, name = order.trajectory, packed_name(order.trajectory, order.number)
        if self._removals.is_used(trajectory):
            raise Conflict("a request uses the environment", code=IN_USE)
        if await asyncio.to_thread(self.packed.find, order.project, name) is not None:
            return
        fork = ForkEnvironment(
            trajectory, order.node, (), request_id="", reply_to="", environment=order.environment,
            project=order.project, snapshot=name,
        )  # fmt: skip
        spec = order.environment or EnvironmentSpec()
        folder = await asyncio.to_thread(tools.site.folder_of, trajectory, spec)
        await asyncio.to_thread(check_size, [folder], order.most_bytes)
        source = tools.environments.known(trajectory)
        try:
            with ExitStack() as kept:
                async with tools.forking.paused(source, fork) as environment:
                    if environment is not None:
                        await self._check_quiet(environment)
                        await self._check_changes(environment, order.most_bytes)
                    image = await tools.forking.stored(fork, environment)
                    if environment is not None and not image:
                        begun = await tools.site.engine.inspect(environment.container)
                        image = str(begun["Image"])
                    kept.enter_context(tools.forking.in_use(image))
                await self._store(order, name, image)
        except Conflict as error:
            code = PROCESS if error.code == "busy_environment" else error.code
            raise Conflict(str(error), code=code) from error
        finally:
            await tools.forking.collect()

    async def _check_quiet(self, environment: Environment) -> None:
        """Raise Conflict while something is in a container that would not be packed; `ContainerForking.paused` has looked at programs."""
        tools = self._tools()
        is_living = tools.living.known(environment) is not None
        if is_living and self._sessions.all(TrajectoryKey(environment.trajectory)):
            raise Conflict("the environment has a session", code=SESSION)
        if environment.group is None:
            listed = await tools.site.engine.count_processes(environment.container)
            running = listed - OWN_PROCESSES
        else:
            running = 0 if is_living else len(environment.others())
        if running > 0:
            raise Conflict(f"{running} programs run in the container", code=PROCESS)
        if environment.disk is None and volumes_of(await self._declared(environment.spec)):
            raise Conflict("the image declares volumes, which the engine keeps", code=VOLUME)
        root = Path(f"/proc/{environment.pid}/root")
        if place := await asyncio.to_thread(place_in_memory, root):
            raise Conflict(f"the environment has files in {place}, in memory", code=IN_MEMORY)

    async def _check_changes(self, environment: Environment, most_bytes: int) -> None:
        """Raise Conflict for a container that the engine would store as a layer of more bytes; 0 bytes: any do."""
        if not most_bytes or environment.disk is not None:
            return
        changed = await self._tools().site.engine.changed_bytes(environment.container)
        if changed > most_bytes:
            raise Conflict(f"the container has changed {changed} bytes", code=TOO_LARGE)

    async def _store(self, order: MoveEnvironment, name: str, image: str) -> None:
        """Store what is packed of an environment; ``image``: what the engine has of it; empty: it has no container yet."""
        site, spec = self._tools().site, order.environment or EnvironmentSpec()
        folder = await asyncio.to_thread(site.folder_of, order.trajectory, spec)
        declared = await self._declared(spec)
        stored = await site.engine.image(image) if image else declared
        below, whole = layers_of(declared), layers_of(stored)
        layers = whole[len(below) :]
        if whole[: len(below)] != below:
            raise Unavailable("its image has another content now than when the environment began")
        if layers and not site.engine.takes_single_layers:
            raise Conflict("an engine with the store of containerd sends no layers", code=LAYER)
        draft = await asyncio.to_thread(self.packed.draft, order.project, name)
        if layers:
            await site.engine.save(image, lambda pieces: pick_layers(pieces, layers, draft))
        on_disk = bool(site.workspaces.disk_bytes(folder))
        packed = PackedContainer(
            project=order.project,
            name=name,
            folder=folder.name,
            below=below,
            layers=tuple((each, layer_file(draft, each).stat().st_size) for each in layers),
            parts=_parts_of(folder) if on_disk else (".",),
            on_disk=on_disk,
            users=_mapped_users(site.engine.info),
        )
        await asyncio.to_thread(self.packed.add, packed, draft)

    async def receive(
        self, order: ReceiveEnvironment, archive: AsyncGenerator[bytes, None]
    ) -> None:
        """Begin an environment with what the source has packed, and start its container."""
        tools = self._tools()
        trajectory, spec = order.trajectory, order.environment or EnvironmentSpec()
        async with self._removals.using(trajectory), aclosing(archive) as pieces:
            if not tools.environments.forks.is_fork(trajectory):
                try:
                    await self._begin(order, spec, ArchiveReader(pieces))
                except BaseException:
                    await tools.forking.forget(trajectory)
                    raise
            environment = await tools.environments.of(trajectory, spec)
            if environment.lost:
                raise Unavailable(f"the environment is lost: {environment.lost}")

    async def _begin(
        self, order: ReceiveEnvironment, spec: EnvironmentSpec, archive: ArchiveReader
    ) -> None:
        """Make the folder and the image of an environment, and then its record."""
        tools = self._tools()
        trajectory, site = order.trajectory, tools.site
        workspaces = site.workspaces
        packed = await archive.record()
        if packed.name != packed_name(trajectory, order.number):
            raise InvalidRequest("the other node sent another environment")
        below = await self._check(packed, spec)
        # Of an order that was interrupted.
        await asyncio.to_thread(workspaces.remove, workspaces.of(trajectory))
        folder = await asyncio.to_thread(site.folder_of, trajectory, spec)
        if packed.on_disk and not workspaces.disk_bytes(folder):
            raise InvalidRequest("this node gives environments no disks, which the source has")
        with workspaces.draft() as draft:
            await archive.layers(packed.layers, draft)
            place = folder if packed.on_disk else workspaces.files(folder)
            await extract_tar(place, b"", archive.files())
            if (folder / UPPER).is_dir() and packed.on_disk:
                (folder / UPPER).rename(folder / SEED)
            await asyncio.to_thread(sync_tree, folder)
            with tools.forking.making_image():
                image = await self._load(below, packed, draft)
                forks = tools.environments.forks
                await asyncio.to_thread(forks.begin, trajectory, image, durable=True)

    async def _check(self, packed: PackedContainer, spec: EnvironmentSpec) -> dict[str, Any]:
        """Return the engine's data on the declared image. Raises InvalidRequest where this node cannot use what was packed."""
        site = self._tools().site
        below = await self._declared(spec)
        if layers_of(below) != packed.below:
            raise InvalidRequest("the image of the environment has another content on this node")
        if packed.users != _mapped_users(site.engine.info):
            raise InvalidRequest("the engine of this node maps users in another way")
        return below

    async def _load(self, below: dict[str, Any], packed: PackedContainer, draft: Path) -> str:
        """Give the layers to the engine; return the image that has them, empty without any."""
        site = self._tools().site
        if not packed.layers:
            return ""
        digests = [digest for digest, _ in packed.layers]
        image, pieces = image_archive(below, digests, draft, {OWNER: site.owner})
        await site.engine.load(pieces)
        await site.engine.image(image)
        return image

    async def _declared(self, spec: EnvironmentSpec) -> dict[str, Any]:
        """Return the engine's data on the image that an environment declares. Raises InvalidRequest, DockerRefused."""
        return await self._tools().environments.image_of(spec.image or "")

    def _tools(self) -> MovingTools:
        if self._opened is None:
            raise Unavailable("the driver is closed")
        return self._opened


def _parts_of(disk: Path) -> tuple[str, ...]:
    """Return what is packed of the disk of an environment."""
    layer = UPPER if (disk / UPPER).is_dir() else SEED
    return tuple(each for each in (WORKSPACE, VOLUMES, layer) if (disk / each).is_dir())


def _mapped_users(info: dict[str, Any]) -> str:
    """Return the first host ids of an engine's users, where it maps them; ``info``: as `docker info`."""
    last = Path(str(info.get("DockerRootDir") or "")).name
    return last if _MAPPED.fullmatch(last) else ""
