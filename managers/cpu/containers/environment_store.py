"""Environment store: the environments of one driver, from creation to removal.

A trajectory has at most one, created at its first action. Requests during the creation wait for it; a
removal waits too, so that nothing is left behind (I6).
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest, TangramError
from domain.ids import ActionId, TrajectoryKey
from managers.cpu.containers import layer_disks
from managers.cpu.containers.cgroup_backend import apply
from managers.cpu.containers.cgroups import CgroupMounts
from managers.cpu.containers.container_config import OWNER, ContainerConfig
from managers.cpu.containers.docker_engine import (
    DockerEngine,
    DockerNotFound,
    DockerRefused,
    DockerUnavailable,
)
from managers.cpu.containers.environment import CpuShare, Environment
from managers.cpu.containers.fork_records import ForkRecords
from managers.cpu.containers.layer_disks import LayerDisks
from managers.cpu.containers.settings import ContainerSettings
from managers.cpu.containers.shell import ContainerShell, ShellLost
from managers.cpu.containers.warm_pool import WarmPool
from managers.cpu.disk_watch import DiskWatch
from managers.cpu.workspaces import Workspaces

#: The scheduler ends trajectories at their expiry; containers expire later, if it does not.
_EXPIRY_SLACK_SECONDS: Final = 120.0
#: Time after which a shell without an answer is looked at: the engine ends no stream of a container that had ended before.
_SILENT_SECONDS: Final = 1.0
_ALL_USERS: Final = 0o777

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """The engine, settings and directories of one driver."""

    engine: DockerEngine
    settings: ContainerSettings
    owner: str
    boot: str
    directory: Path
    workspaces: Workspaces
    #: Cores of idle containers.
    parked: CpuShare
    #: The disk that environments use, and their quotas.
    disk: DiskWatch
    #: Control groups, and our parent in them; None: the direct backend is not possible.
    trees: CgroupMounts | None
    parent: str
    clock: Callable[[], float] = time.time  # noqa: TID251 - containers expire in wall-clock time
    #: How the layers of containers are bounded.
    layers: LayerDisks = field(default_factory=lambda: LayerDisks(None))

    def folder_of(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> Path:
        """Return the folder of a trajectory, made when missing, with its disk. Blocks."""
        quota = self.disk.quotas.of_environment(spec.disk_bytes)
        return self.workspaces.ensure(trajectory, quota)

    def folder_alone(self, action_id: ActionId, spec: EnvironmentSpec) -> Path:
        """Make a folder for one action without a trajectory, with its disk. Blocks."""
        quota = self.disk.quotas.of_environment(spec.disk_bytes)
        return self.workspaces.alone(action_id, quota)

    def quota_of(self, environment: Environment) -> int:
        """Return the bytes above which an environment is stopped; 0: those of the node's default."""
        # A disk of its own ends its growth before the watch does.
        return self.workspaces.disk_bytes(environment.folder) or environment.spec.disk_bytes


class EnvironmentStore:
    """All environments of one driver."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[str, Environment] = {}
        self._by_trajectory: dict[TrajectoryKey, asyncio.Task[Environment]] = {}
        self._making: set[asyncio.Task[Environment]] = set()
        self._discarding: set[asyncio.Task[None]] = set()
        #: What forked trajectories begin from.
        self.forks = ForkRecords(
            site.directory.parent / "forks", lambda key: site.workspaces.of(key).name
        )
        #: Containers that wait for a trajectory.
        self.warm = WarmPool(site.engine, site.settings, site.clock, self._make_ready, self.discard)

    def open(self) -> None:
        """Start the warm pool."""
        self.warm.open()

    def all(self) -> list[Environment]:
        """Return all environments, those in creation included."""
        return list(self._made.values())

    def known(self, trajectory: TrajectoryKey) -> Environment | None:
        """Return the environment of a trajectory; None where it has none yet."""
        return next((each for each in self.all() if each.trajectory == trajectory), None)

    def adopt(self, environment: Environment) -> None:
        """Enter an environment of a predecessor."""
        self._made[environment.name] = environment
        if environment.trajectory:
            done: asyncio.Task[Environment] = asyncio.ensure_future(_itself(environment))
            self._by_trajectory[TrajectoryKey(environment.trajectory)] = done

    async def of(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> Environment:
        """Return a trajectory's environment, created if missing. Raises TangramError."""
        task = self._by_trajectory.get(trajectory)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._provide(trajectory, spec))
            task.add_done_callback(lambda made: made.cancelled() or made.exception())
            self._by_trajectory[trajectory] = task
        return await asyncio.shield(task)

    def alone(self, action_id: ActionId, spec: EnvironmentSpec) -> asyncio.Task[Environment]:
        """Create an environment for one action; the task fails with TangramError."""
        task = asyncio.create_task(self._provide_alone(action_id, spec))
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        # Retrieved here: the run may have ended when it fails.
        task.add_done_callback(lambda made: made.cancelled() or made.exception())
        return task

    async def remove(self, trajectory: TrajectoryKey) -> None:
        """Delete a trajectory's environment and its files, if any."""
        task = self._by_trajectory.pop(trajectory, None)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                try:
                    await self.delete(task.result())
                except BaseException:
                    self._by_trajectory.setdefault(trajectory, task)  # for the next attempt
                    raise
        workspaces = self._site.workspaces
        await asyncio.to_thread(workspaces.remove, workspaces.of(trajectory))

    def discard(self, environment: Environment) -> None:
        """Delete an environment, soon."""
        task = asyncio.create_task(self._delete_quietly(environment))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def delete(self, environment: Environment) -> None:
        """Delete a container, its directories, and the record of it last. Raises DockerUnavailable."""
        if environment.shell is not None:
            environment.shell.close()
        if environment.container:
            await self._site.engine.remove(environment.container)
        else:
            await self._remove_by_name(environment.name)
        self._made.pop(environment.name, None)
        self._site.disk.drop(environment.name)
        if not environment.trajectory:
            await asyncio.to_thread(self._site.workspaces.remove, environment.folder)
        await asyncio.to_thread(shutil.rmtree, environment.directory, ignore_errors=True)

    async def close(self) -> None:
        """Finish creations and deletions; containers of trajectories stay for a successor."""
        await self.warm.close()
        making = {task for task in self._by_trajectory.values() if not task.done()} | self._making
        if making:
            await asyncio.wait(making)
            await asyncio.sleep(0)  # runs that waited for them discard them now
        for environment in self.all():
            if not environment.trajectory:
                self.discard(environment)
            elif environment.shell is not None:
                environment.shell.close()
        if self._discarding:
            await asyncio.wait(set(self._discarding))

    async def _provide(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> Environment:
        refuse_snapshot(spec)
        workspaces = self._site.workspaces
        base = self.forks.image_of(trajectory)
        # A fork may have more in its folder than a workspace, which a container that waited would not get.
        ready = None if self.forks.is_fork(trajectory) else await self.warm.take(spec)
        if ready is None:
            folder = await asyncio.to_thread(self._site.folder_of, trajectory, spec)
            return await self._make(trajectory, spec, folder, base)
        place = workspaces.of(trajectory)
        await asyncio.to_thread(workspaces.become, ready.folder, place)
        ready.workspace = workspaces.files(place)
        ready.disk = None if ready.disk is None else place
        ready.trajectory, ready.spec = trajectory, spec
        ready.expires_at = self._site.clock() + spec.ttl_seconds + _EXPIRY_SLACK_SECONDS
        ready.save()
        return ready

    async def _provide_alone(self, action_id: ActionId, spec: EnvironmentSpec) -> Environment:
        ready = await self.warm.take(spec)
        if ready is not None:
            ready.spec = spec
            return ready
        folder = await asyncio.to_thread(self._site.folder_alone, action_id, spec)
        return await self._make("", spec, folder)

    async def _make_ready(self, spec: EnvironmentSpec) -> Environment:
        folder = await asyncio.to_thread(self._site.folder_alone, ActionId("warm"), spec)
        return await self._make("", spec, folder)

    async def _delete_quietly(self, environment: Environment) -> None:
        try:
            await self.delete(environment)
        except (TangramError, OSError) as error:
            # Its record stays, so the next comparison with the engine tries again.
            _log.warning("environment %s could not be deleted: %s", environment.name, error)

    async def _make(
        self, trajectory: str, spec: EnvironmentSpec, folder: Path, base: str = ""
    ) -> Environment:
        name = f"tangram-{secrets.token_hex(8)}"
        site = self._site
        expires_at = site.clock() + spec.ttl_seconds + _EXPIRY_SLACK_SECONDS
        directory = site.directory / name
        workspace = site.workspaces.files(folder)
        environment = Environment(name, trajectory, spec, directory, workspace, expires_at)
        environment.disk, environment.base = None if workspace == folder else folder, base
        self._made[name] = environment
        try:
            # The image's user is arbitrary; the directory above excludes all other users.
            os.chmod(workspace, _ALL_USERS)
            environment.save()
            await self._create_bounded(
                environment, await self.image_of(environment.base or environment.spec.image or "")
            )
            environment.save()
        except BaseException:
            await self._delete_quietly(environment)
            raise
        return environment

    async def image_of(self, declared: str) -> dict[str, Any]:
        """Return the engine's data on an image; empty: the node's default. Raises InvalidRequest, DockerRefused."""
        image = declared or self._site.settings.image
        if not image:
            raise InvalidRequest("the environment names no image, and the node has no default")
        try:
            return await self._site.engine.image(image)
        except DockerNotFound as error:
            raise DockerRefused(
                f"image {image!r} is not on this node: {error}; pull or import it there"
            ) from error

    async def _create_bounded(self, environment: Environment, image: dict[str, Any]) -> None:
        """Create a container on its disk; without, where the first one shows that the engine sees none."""
        layers = self._site.layers
        if environment.disk is None:
            await self._create(environment, image)
            return
        try:
            await self._create(environment, image)
        except DockerUnavailable:
            raise
        except (DockerRefused, OSError) as error:
            if layers.proven:
                raise
            folder, reason = environment.folder, str(error)
            await self._site.engine.remove(environment.container or environment.name)
            await asyncio.to_thread(self._site.workspaces.without_disk, folder)
            os.chmod(folder, _ALL_USERS)
            environment.disk, environment.workspace, environment.container = None, folder, ""
            environment.save()
            await self._create(environment, image)
            layers.give_up(reason)
            _log.warning("disk quotas of containers are watched, they have no disk: %s", reason)
        else:
            layers.proven = True

    async def _create(self, environment: Environment, image: dict[str, Any]) -> None:
        site, disk, volumes = self._site, environment.disk, layer_disks.volumes_of(image)
        blueprint = ContainerConfig(
            environment.name, site.owner, environment.trajectory, site.boot,
            environment.expires_at, environment.base or environment.spec.image or site.settings.image,
            environment.spec, environment.workspace, environment.control,
            site.parent if site.trees is not None else "",
            site.disk.quotas.of_environment(environment.spec.disk_bytes), disk, volumes,
        )  # fmt: skip
        if disk is not None:
            network = environment.spec.network
            await asyncio.to_thread(layer_disks.furnish, disk, network, len(volumes))
        environment.container = await self._create_container(blueprint)
        if disk is not None:
            created = await site.engine.inspect(environment.container)
            await asyncio.to_thread(layer_disks.link_layer, created, disk)
        if blueprint.is_direct:
            if not (environment.control / "shell").exists():
                await place_shell(site.engine, environment, image["Id"])
            environment.make_pipes()
        await site.engine.start(environment.container)
        await self.find(environment)
        if disk is not None:
            await asyncio.to_thread(layer_disks.check, environment.pid, disk, len(volumes))
            await asyncio.to_thread(layer_disks.drop_seed, disk)
        await self.connect(environment)

    async def _create_container(self, blueprint: ContainerConfig) -> str:
        """Create it, with a limit of the engine for its layer where it has no disk and the engine has limits."""
        site, layers = self._site, self._site.layers
        config, settings = blueprint.config(site.settings), site.settings
        if (
            blueprint.disk is None
            and layers.engine_limits is not False
            and not settings.layer_bytes
        ):
            limited = replace(settings, layer_bytes=blueprint.disk_bytes)
            try:
                made = await site.engine.create(
                    blueprint.name, config, blueprint.host_config(limited)
                )
            except DockerRefused as error:
                if layers.engine_limits or not layer_disks.is_refused_limit(str(error)):
                    raise
                layers.engine_limits = False
            else:
                layers.engine_limits = True
                return made
        return await site.engine.create(blueprint.name, config, blueprint.host_config(settings))

    async def find(self, environment: Environment) -> None:
        """Find a running container and its control group. Raises DockerRefused, DockerUnavailable."""
        site = self._site
        facts = await site.engine.inspect(environment.container)
        state = facts["State"]
        if not state["Running"]:
            raise DockerRefused(f"its container has ended: {state.get('Error') or state['Status']}")
        environment.pid = int(state["Pid"])
        environment.layers = layer_disks.written_of(facts) if site.engine.is_local else ()
        if site.trees is not None:
            try:
                environment.group = site.trees.group_of(environment.pid, site.parent)
            except OSError as error:
                raise DockerRefused(f"its control group is not ours: {error}") from error

    async def connect(self, environment: Environment) -> None:
        """Attach to the shell of a found container, and park the container.

        Raises DockerRefused when the shell does not answer, and DockerUnavailable.
        """
        site = self._site
        if environment.group is None:
            return
        environment.shell = ContainerShell(await site.engine.attach(environment.container))
        try:
            async with asyncio.timeout(site.settings.patience_seconds):
                await self._answered(environment, environment.shell)
            apply(environment, site.parked)
        except (OSError, ShellLost, TimeoutError) as error:
            environment.shell.close()
            raise DockerRefused(
                f"its shell does not answer: {type(error).__name__} {error}"
            ) from error
        except DockerRefused:
            environment.shell.close()
            raise

    async def _answered(self, environment: Environment, shell: ContainerShell) -> None:
        """Return once its shell answers. Raises ShellLost, and DockerRefused when its container has ended."""
        answer = asyncio.ensure_future(shell.ask(":"))
        try:
            while not (await asyncio.wait({answer}, timeout=_SILENT_SECONDS))[0]:
                await self.find(environment)
            answer.result()
        finally:
            answer.cancel()

    async def _remove_by_name(self, name: str) -> None:
        """Remove a container whose creation was interrupted, if it is ours."""
        try:
            facts = await self._site.engine.inspect(name)
        except DockerNotFound:
            return
        if facts["Config"]["Labels"].get(OWNER) == self._site.owner:
            await self._site.engine.remove(facts["Id"])


def refuse_snapshot(spec: EnvironmentSpec) -> None:
    """Raise InvalidRequest for an environment that begins with the files of a snapshot."""
    if spec.snapshot is not None:
        raise InvalidRequest(
            f"a container cannot begin from snapshot {spec.snapshot!r}: run it on a node that runs commands"
            " under bubblewrap, or make an image of the engine with these files",
            pointer="/environment/snapshot",
        )


async def _itself(environment: Environment) -> Environment:
    return environment


__all__ = ["EnvironmentStore", "Site", "refuse_snapshot", "shell_of"]


_LINKS: Final = 8
#: Without read permission its processes are not dumpable (execve(2), prctl(2) PR_SET_DUMPABLE).
_EXECUTE_ONLY: Final = 0o111


async def place_shell(engine: DockerEngine, environment: Environment, image_id: str) -> None:
    """Link an execute-only copy of the image's shell into the control directory.

    Copies are kept per image, whose content never changes. Raises DockerRefused, DockerUnavailable.
    """
    known = shell_of(environment.directory.parent, image_id)
    if not known.exists():
        content = await _read_program(engine, environment.container, "/bin/sh")
        known.parent.mkdir(mode=0o700, exist_ok=True)
        draft = known.with_name(f"{known.name}.{environment.name}")
        draft.write_bytes(content)
        draft.chmod(_EXECUTE_ONLY)
        draft.replace(known)
    (environment.control / "shell").hardlink_to(known)


def shell_of(environments: Path, image: str) -> Path:
    """Return where the copy of an image's shell is kept."""
    return environments / "shells" / image.removeprefix("sha256:")


async def _read_program(engine: DockerEngine, container: str, path: str) -> bytes:
    for _ in range(_LINKS):
        try:
            archive, facts = await engine.archive(container, path)
        except DockerNotFound as error:
            raise DockerRefused(f"the image has no {path}, which running commands takes") from error
        if not facts["linkTarget"]:
            break
        path = facts["linkTarget"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        file = members.extractfile(members.getmembers()[0])
        if file is None:
            raise DockerRefused(f"the image's {path} is no program")
        return file.read()
