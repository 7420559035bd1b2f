"""Which environments there are, from the intent to create one until nothing of it is left.

A trajectory has at most one, made when it is first needed. Whoever asks while it is being made waits
for the same making; a removal waits for it too, so that nothing is left behind (I6).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.errors import InvalidRequest, TangramError
from domain.ids import ActionId, TrajectoryKey
from managers.cpu.containers.cgroup_backend import apply
from managers.cpu.containers.creation import OWNER, Blueprint
from managers.cpu.containers.engine import Engine, EngineRefused, Gone
from managers.cpu.containers.environment import Environment, Share
from managers.cpu.containers.placing import place_shell
from managers.cpu.containers.settings import Settings
from managers.cpu.containers.shell import Shell, ShellLost
from managers.cpu.containers.trees import Trees
from managers.cpu.containers.warm import WarmPool
from managers.cpu.process.workspace import Workspaces

#: The scheduler ends trajectories at their expiry; a container outlives it only when nobody does.
_EXPIRY_SLACK_SECONDS: Final = 120.0
_EVERYBODY: Final = 0o777

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Site:
    """Where containers are made, and by whom."""

    engine: Engine
    settings: Settings
    owner: str
    boot: str
    directory: Path
    workspaces: Workspaces
    #: What idle containers have.
    parked: Share
    #: Control groups and the parent of ours in them; None: the direct way is not possible.
    trees: Trees | None
    parent: str
    clock: Callable[[], float] = time.time  # noqa: TID251 - containers expire in wall-clock time


class Environments:
    """All environments of one driver."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._made: dict[str, Environment] = {}
        self._by_trajectory: dict[TrajectoryKey, asyncio.Task[Environment]] = {}
        self._making: set[asyncio.Task[Environment]] = set()
        self._discarding: set[asyncio.Task[None]] = set()
        self._warm = WarmPool(
            site.engine, site.settings, site.clock, self._make_ready, self.discard
        )

    def open(self) -> None:
        """Begin to keep containers ready."""
        self._warm.open()

    def all(self) -> list[Environment]:
        """Return those that are there or being made."""
        return list(self._made.values())

    def adopt(self, environment: Environment) -> None:
        """Enter one that a predecessor made."""
        self._made[environment.name] = environment
        if environment.trajectory:
            done: asyncio.Task[Environment] = asyncio.ensure_future(_itself(environment))
            self._by_trajectory[TrajectoryKey(environment.trajectory)] = done

    async def of(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> Environment:
        """Return a trajectory's environment, made when it has none. Raises TangramError."""
        task = self._by_trajectory.get(trajectory)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._provide(trajectory, spec))
            task.add_done_callback(lambda made: made.cancelled() or made.exception())
            self._by_trajectory[trajectory] = task
        return await asyncio.shield(task)

    def alone(self, action_id: ActionId, spec: EnvironmentSpec) -> asyncio.Task[Environment]:
        """Make an environment for one action; the task fails with TangramError."""
        task = asyncio.create_task(self._provide_alone(action_id, spec))
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        # Whoever wanted it may have gone.
        task.add_done_callback(lambda made: made.cancelled() or made.exception())
        return task

    async def remove(self, trajectory: TrajectoryKey) -> None:
        """Delete a trajectory's environment and its files; an unknown one is fine."""
        task = self._by_trajectory.pop(trajectory, None)
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                try:
                    await self.delete(task.result())
                except BaseException:
                    self._by_trajectory.setdefault(trajectory, task)  # to be found once more
                    raise
        workspaces = self._site.workspaces
        await asyncio.to_thread(workspaces.remove, workspaces.of(trajectory))

    def discard(self, environment: Environment) -> None:
        """Delete an environment, soon."""
        task = asyncio.create_task(self._delete_quietly(environment))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def delete(self, environment: Environment) -> None:
        """Delete a container, its directories, and the record of it last. Raises EngineAway."""
        if environment.shell is not None:
            environment.shell.close()
        if environment.container:
            await self._site.engine.remove(environment.container)
        else:
            await self._remove_by_name(environment.name)
        self._made.pop(environment.name, None)
        if not environment.trajectory:
            await asyncio.to_thread(self._site.workspaces.remove, environment.workspace)
        await asyncio.to_thread(shutil.rmtree, environment.directory, ignore_errors=True)

    async def close(self) -> None:
        """Finish what is being made or deleted; containers of trajectories stay for a successor."""
        await self._warm.close()
        making = {task for task in self._by_trajectory.values() if not task.done()} | self._making
        if making:
            await asyncio.wait(making)
            await asyncio.sleep(0)  # whoever waited for them gives them back now
        for environment in self.all():
            if not environment.trajectory:
                self.discard(environment)
            elif environment.shell is not None:
                environment.shell.close()
        if self._discarding:
            await asyncio.wait(set(self._discarding))

    async def _provide(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> Environment:
        workspaces = self._site.workspaces
        ready = await self._warm.take(spec)
        if ready is None:
            return await self._make(trajectory, spec, workspaces.ensure(trajectory))
        await asyncio.to_thread(_become_workspace, ready.workspace, workspaces.of(trajectory))
        ready.trajectory, ready.workspace, ready.spec = trajectory, workspaces.of(trajectory), spec
        ready.expires_at = self._site.clock() + spec.ttl_seconds + _EXPIRY_SLACK_SECONDS
        ready.save()
        return ready

    async def _provide_alone(self, action_id: ActionId, spec: EnvironmentSpec) -> Environment:
        ready = await self._warm.take(spec)
        if ready is not None:
            ready.spec = spec
            return ready
        return await self._make("", spec, self._site.workspaces.alone(action_id))

    async def _make_ready(self, spec: EnvironmentSpec) -> Environment:
        return await self._make("", spec, self._site.workspaces.alone(ActionId("warm")))

    async def _delete_quietly(self, environment: Environment) -> None:
        try:
            await self.delete(environment)
        except (TangramError, OSError) as error:
            # Its record stays, so the next comparison with the engine tries again.
            _log.warning("environment %s could not be deleted: %s", environment.name, error)

    async def _make(self, trajectory: str, spec: EnvironmentSpec, workspace: Path) -> Environment:
        name = f"tangram-{secrets.token_hex(8)}"
        site = self._site
        expires_at = site.clock() + spec.ttl_seconds + _EXPIRY_SLACK_SECONDS
        directory = site.directory / name
        environment = Environment(name, trajectory, spec, directory, workspace, expires_at)
        self._made[name] = environment
        try:
            # The image's user may be anybody; through the directory above nobody else passes.
            os.chmod(workspace, _EVERYBODY)
            environment.save()
            await self._create(environment)
            environment.save()
        except BaseException:
            await self._delete_quietly(environment)
            raise
        return environment

    async def _create(self, environment: Environment) -> None:
        site = self._site
        blueprint = Blueprint(
            environment.name, site.owner, environment.trajectory, site.boot,
            environment.expires_at, environment.spec.image or site.settings.image,
            environment.spec, environment.workspace, environment.control,
            site.parent if site.trees is not None else "",
        )  # fmt: skip
        if not blueprint.image:
            raise InvalidRequest("the environment names no image, and the node has no default")
        try:
            environment.container = await site.engine.create(
                environment.name, blueprint.config(), blueprint.host_config(site.settings)
            )
        except Gone as error:
            raise EngineRefused(
                f"image {blueprint.image!r} is not on this node: {error}; pull or import it there"
            ) from error
        if blueprint.is_direct:
            environment.make_pipes()
            await place_shell(site.engine, environment, blueprint.image)
        await site.engine.start(environment.container)
        await self.find(environment)
        await self.connect(environment)

    async def find(self, environment: Environment) -> None:
        """Find a running container and its control group. Raises EngineRefused, EngineAway."""
        site = self._site
        state = (await site.engine.inspect(environment.container))["State"]
        if not state["Running"]:
            raise EngineRefused(f"its container has ended: {state.get('Error') or state['Status']}")
        environment.pid = int(state["Pid"])
        if site.trees is not None:
            try:
                environment.group = site.trees.group_of(environment.pid, site.parent)
            except OSError as error:
                raise EngineRefused(f"its control group is not ours: {error}") from error

    async def connect(self, environment: Environment) -> None:
        """Get hold of the shell in a container that was found, and park it.

        Raises EngineRefused when it does not answer, and EngineAway.
        """
        site = self._site
        if environment.group is None:
            return
        environment.shell = Shell(await site.engine.attach(environment.container))
        try:
            async with asyncio.timeout(site.settings.patience_seconds):
                await environment.shell.ask(":")
            apply(environment, site.parked)
        except (OSError, ShellLost, TimeoutError) as error:
            environment.shell.close()
            raise EngineRefused(
                f"its shell does not answer: {type(error).__name__} {error}"
            ) from error

    async def _remove_by_name(self, name: str) -> None:
        """Remove a container whose creation was interrupted, if it is ours."""
        try:
            facts = await self._site.engine.inspect(name)
        except Gone:
            return
        if facts["Config"]["Labels"].get(OWNER) == self._site.owner:
            await self._site.engine.remove(facts["Id"])


def _become_workspace(directory: Path, place: Path) -> None:
    """Put a workspace that a container has mounted where its trajectory's belongs.

    A mount follows its directory. What was put there before moves along.
    """
    if place.exists():
        for entry in place.iterdir():
            entry.rename(directory / entry.name)
        place.rmdir()
    directory.rename(place)


async def _itself(environment: Environment) -> Environment:
    return environment


__all__ = ["Environments", "Site"]
