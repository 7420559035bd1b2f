"""Store of the kept environments of one driver: opened at first use, adopted after a crash, ended or left.

    store = KeptEnvironments(tools)
    await store.adopt(living)                   after a start: records of `managers.cpu.environment.adoption`
    environment = await store.open(trajectory, spec)
    await store.remove(name)                    finish, TTL, lack of disk
    await store.close()                         the worker ends: environments are ended, or left to the next one

Starts and ends of one environment are in turn, by a lock for each name. A sweep drops records of background
processes that have ended, and ends those that are older than the TTL of their environment.

A new folder may bring a prepared environment, which runs already (`receive`). Opening the trajectory's environment takes
it; a command that runs in no kept environment ends it before (`decline`), as two mounts of its files must not be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.errors import NotFound, Unavailable
from domain.ids import TrajectoryKey
from domain.ports.processes import EndSignal, ProgramFacts
from managers.cpu.environment.adoption import InitRecord
from managers.cpu.environment.background import seconds_since_boot
from managers.cpu.environment.init import InitClient
from managers.cpu.environment.kept import EnvironmentGroups, KeptEnvironment
from managers.cpu.environment.kernel import start_time
from managers.cpu.environment.protocol import (
    EnvironmentLost,
    EnvironmentProcess,
    NoEnvironment,
    RewardRuns,
)
from managers.cpu.environment.sealing import EnvironmentSealing
from managers.cpu.environment.starting import EnvironmentStarter, StoreTools
from managers.cpu.tree.trees import OpenTree, Trees, TreeUsers
from managers.cpu.workspaces import safe_name

_ADOPTING_SECONDS: Final = 2.0
_SWEEP_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.002
_PAUSES: Final = 5000
_log = logging.getLogger(__name__)


class KeptEnvironments:
    """The kept environments of one driver (`Environments`)."""

    def __init__(self, tools: StoreTools) -> None:
        self._tools = tools
        self._living: dict[str, KeptEnvironment] = {}
        #: Locks of names that are in use; one that a start or an end waits for is not made again.
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.starter = EnvironmentStarter(tools)
        #: Prepared environments in folders of trajectories that have not been opened.
        self._received: dict[str, KeptEnvironment] = {}
        self._sharing = threading.Lock()
        #: Name of an environment → reward commands that run beside it.
        self._judged: Counter[str] = Counter()
        #: Seals them while reward commands run.
        self.sealing = EnvironmentSealing(tools.switcher, self._mount_shared)
        self._sweeping = asyncio.create_task(self._sweep())

    async def open(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> KeptEnvironment:
        """Return a trajectory's environment, started when it does not run."""
        name = safe_name(trajectory)
        known = self._living.get(name)
        if known is not None and not known.ended:
            return known
        async with self._turn(name):
            known = self._living.get(name)
            if known is not None:
                if not known.ended:
                    return known
                await known.end()
            self.check_not_judged(name)
            environment = await self._start(trajectory, spec)
            self._living[name] = environment
            return environment

    def of(self, trajectory: TrajectoryKey) -> KeptEnvironment:
        """Return the running environment of a trajectory. Raises NoEnvironment."""
        known = self._living.get(safe_name(trajectory))
        if known is None or known.ended:
            raise NoEnvironment(trajectory)
        return known

    def list_processes(self, trajectory: TrajectoryKey) -> list[ProgramFacts]:
        """Return the programs of a trajectory's environment. Raises NoEnvironment."""
        return [facts_of(each) for each in self.of(trajectory).processes()]

    def end_process(
        self, trajectory: TrajectoryKey, pid: int, by: EndSignal = "SIGKILL"
    ) -> ProgramFacts:
        """Send a signal to a program. Raises NoEnvironment, NotFound."""
        environment = self.of(trajectory)
        for each in environment.processes():
            if each.inner_pid == pid:
                environment.kill(each.pid, signal.Signals[by])
                return facts_of(each)
        raise NotFound(f"no program {pid} runs in the environment")

    def named(self, name: str) -> KeptEnvironment | None:
        """Return the running environment of a folder's name; None where it does not run."""
        known = self._living.get(name)
        return None if known is None or known.ended else known

    def shared_tree(self, environment: KeptEnvironment) -> OpenTree | None:
        """Return the tree of a running environment for another sandbox; it is closed with the environment. Blocks.

        None for an environment that shows its workspace alone. Raises OSError, InvalidRequest.
        """
        trees = self._tools.trees
        with self._sharing:
            record = trees.known(environment.name)
            # Otherwise a fork has given it another stack, or an earlier worker has mounted it.
            if environment.tree is None or environment.tree_record != record:
                tree = trees.of_running(environment.directory, environment.pid)
                environment.replace_tree(tree, trees.known(environment.name))
            return environment.tree

    @contextlib.asynccontextmanager
    async def judging(self, name: str) -> AsyncIterator[KeptEnvironment | None]:
        """Let a reward command run beside an environment: stop its programs, and start none meanwhile.

        Yields it, None where it does not run or had to end; seal it before the command starts.
        """
        async with self._turn(name):
            self._judged[name] += 1
        living = self.named(name)
        try:
            if living is not None and self._tools.trees.is_exclusive:
                await living.end("a command in a sandbox of its own needs its files")
                living = None
            if living is None:
                yield None
                return
            async with self.sealing.stopped(living):
                yield living
        finally:
            self._judged -= Counter({name: 1})

    def check_not_judged(self, name: str) -> None:
        """Raise RewardRuns while a reward command runs beside the environment of a folder's name."""
        if self._judged[name]:
            raise RewardRuns

    def _mount_shared(self, environment: KeptEnvironment) -> None:
        if self._tools.trees.is_shared:
            self.shared_tree(environment)

    def all(self) -> list[KeptEnvironment]:
        """Return the environments that run."""
        return [each for each in self._living.values() if not each.ended]

    async def adopt(self, living: dict[str, InitRecord]) -> list[str]:
        """Take over the environments of a predecessor; return the names of those that could not be."""
        names = list(living)
        taken = await asyncio.gather(*(self._adopt(name, living[name]) for name in names))
        return [name for name, is_taken in zip(names, taken, strict=True) if not is_taken]

    def receive(self, name: str, prepared: KeptEnvironment) -> None:
        """Have a prepared environment for the first use of the folder ``name``. May be called in any thread."""
        self._received[name] = prepared

    async def decline(self, name: str) -> None:
        """End the prepared environment of a folder, if it has one that was not opened."""
        prepared = self._received.pop(name, None)
        if prepared is not None:
            await prepared.end("its trajectory does not use it")

    async def remove(self, name: str, reason: str) -> None:
        """End an environment, if it runs."""
        async with self._turn(name):
            known = self._living.pop(name, None) or self._received.pop(name, None)
            if known is not None:
                await known.end(reason)

    async def close(self, *, keep: bool) -> None:
        """End all environments, or leave them to the next worker."""
        self._sweeping.cancel()
        for name in list(self._received):
            await self.decline(name)
        if keep:
            for each in self._living.values():
                each.leave()
        else:
            names = list(self._living)
            await asyncio.gather(*(self.remove(each, "the node has ended") for each in names))
        self._living.clear()

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def _start(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> KeptEnvironment:
        """Start an environment, or take the prepared one that its new folder brought with it."""
        tools = self._tools
        disk_bytes = tools.disk_bytes(spec.disk_bytes)
        folder = await asyncio.to_thread(
            tools.workspaces.ensure, trajectory, disk_bytes, spec.image or ""
        )
        prepared = self._received.pop(folder.name, None)
        if prepared is not None:
            if not prepared.ended and self.starter.fits(spec):
                try:
                    await self.starter.give(prepared, folder, trajectory, spec)
                except OSError as error:
                    _log.warning("a prepared environment could not be used: %s", error)
                else:
                    return prepared
            await prepared.end("it did not fit its trajectory")
        return await self.starter.start(folder, trajectory, spec)

    async def _adopt(self, name: str, record: InitRecord) -> bool:
        tools = self._tools
        trajectory = TrajectoryKey(record.trajectory)
        folder = tools.workspaces.of(trajectory)
        try:
            client = InitClient(folder / "control")
        except OSError as error:
            _log.warning("environment %s is ended, it has no control folder: %s", name, error)
            await end_unadopted(record)
            return False
        client.trusts_kernel = record.trusts_kernel
        environment = KeptEnvironment(
            name, trajectory, record.spec, folder, record.uid,
            tools.confinement.tagger.environment_tag(record.started_as or name), client,
            EnvironmentGroups(), tools.confinement,
            on_end=self.starter.forget,
        )  # fmt: skip
        try:
            environment.watch(record.first_pid, record.pid)
            environment.limits = self.starter.limit(name, record.spec)
            if (
                environment.limits.freezer is not None
            ):  # a predecessor may have ended while a reward ran
                environment.limits.freezer.freeze(False)
            await client.ping(_ADOPTING_SECONDS)
            await asyncio.to_thread(self.sealing.recover, environment)
        except (OSError, EnvironmentLost, Unavailable) as error:
            _log.warning("environment %s is ended, it could not be adopted: %s", name, error)
            await environment.end("it could not be adopted")
            return False
        environment.home, environment.variables = record.home, record.variables
        if tools.starts is not None:
            tools.starts.hold(environment.tag, record.variables)
        environment.started_as = record.started_as
        for tag, left in record.background.items():
            environment.background.left[tag] = left
            environment.background.drain(tag, environment.control, left.pipes)
        environment.adopt_programs()
        environment.thaw_now()
        self._living[name] = environment
        return True

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """End background processes above their TTL, and drop the records of those that have ended."""
        for environment in self.all():
            if environment.background.left:
                self._sweep_one(environment)

    def _sweep_one(self, environment: KeptEnvironment) -> None:
        environment.processes()
        old = environment.background.expired(seconds_since_boot(), environment.spec.ttl_seconds)
        if not environment.background.left:
            self._tools.on_quiet(environment.directory)
        if old:
            environment.signal_all(signal.SIGKILL, lambda tag: tag in old)


@contextlib.asynccontextmanager
async def opened_tree(
    trees: Trees,
    environments: KeptEnvironments | None,
    folder: Path,
    spec: EnvironmentSpec,
    users: TreeUsers | None,
) -> AsyncIterator[OpenTree | None]:
    """Give the tree of an environment to one sandbox; None where it has none. Raises ImageMissing, OSError.

    One mount for a running environment and this sandbox: what two overlays with one upper layer show is not defined.
    """
    living = None if environments is None else environments.named(folder.name)
    if environments is not None and living is not None and trees.is_shared:
        yield await asyncio.to_thread(environments.shared_tree, living)
        return
    tree = await asyncio.to_thread(trees.declared, folder, spec, users)
    try:
        yield tree
    finally:
        if tree is not None:
            tree.close()


def facts_of(process: EnvironmentProcess) -> ProgramFacts:
    """Return a program as it is listed."""
    return ProgramFacts(
        process.inner_pid, process.command, process.started, process.cpu_seconds,
        process.memory_bytes, process.owner, process.background,
    )  # fmt: skip


async def end_unadopted(record: InitRecord) -> None:
    """End an environment that is not taken over; its record was compared with the process before."""
    for _ in range(_PAUSES):
        if start_time(record.first_pid) is None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.first_pid, signal.SIGKILL)
        await asyncio.sleep(_PAUSE_SECONDS)  # it ends after all processes below it
