"""Sealing of environments: while a reward command runs, no program of its environment changes what it reads.

    async with sealing.stopped(environment): …      programs are asked to stop, and files of the reward are placed
        async with sealing.sealed(environment): …   the reward command runs, in a sandbox beside the environment

A stopped program can continue itself (`managers.cpu.environment.freezers`), so the stop alone protects nothing. The
ways to seal, the first that works:

1. **Read-only**: the mounts of the tree that the environment's programs have become read-only, for all of them at
   once. The command has another mount of the same tree, and writes into it as always. The kernel refuses this
   while a program has a file open for writing.
2. **Frozen**: the environment's control group is frozen, its init included.
3. **Watched**: on a node without control groups, for a program that keeps a file open for writing. Programs that do not
   stop are ended before; where one has run while the command did, they are ended after it, and there is no reward.

Crashes. A mark in the environment's folder says that its files may be read-only. The next worker finds it when it adopts
the environment, and makes them writable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from domain.errors import Conflict, Unavailable
from managers.cpu.cgroup_files import read_if_there
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.tree.switcher import RootSwitcher
from managers.cpu.workspaces import MOUNT

#: Says that the files of an environment may be read-only for its programs.
MARK: Final = "sealed"
#: The mounts with its files: the whole tree, or the workspace alone.
_PATHS: Final = ("/", MOUNT)
#: Longest wait for programs to stop on request.
_STOPPING_SECONDS: Final = 5.0
#: Longest wait for the kernel to freeze them: it waits for disks.
_FREEZING_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.002
_TRIES: Final = 12

_log = logging.getLogger(__name__)


class EnvironmentSealing:
    """Seals the environments of one driver."""

    def __init__(
        self, switcher: RootSwitcher, prepare: Callable[[KeptEnvironment], object]
    ) -> None:
        """``prepare`` mounts the tree of an environment for the command, while it is writable; it blocks."""
        self._switcher = switcher
        self._prepare = prepare

    @contextlib.asynccontextmanager
    async def stopped(self, environment: KeptEnvironment) -> AsyncIterator[None]:
        """Ask its programs to stop meanwhile, and start none."""
        environment.judged = environment.stops = True
        try:
            await environment.freeze(_STOPPING_SECONDS)
        except Unavailable as error:
            environment.stops = False
            _stop(environment)  # those that do stop
            _log.warning("programs of %s do not stop for a reward: %s", environment.name, error)
        try:
            yield
        finally:
            environment.judged = False
            await environment.thaw()

    @contextlib.asynccontextmanager
    async def sealed(self, environment: KeptEnvironment) -> AsyncIterator[None]:
        """Seal it meanwhile; it is `stopped`. Raises Unavailable where nothing can be done, OSError."""
        await asyncio.to_thread(self._prepare, environment)
        if why := await self._try(environment):
            async with self._held(environment, why):
                yield
            return
        try:
            yield
        finally:
            await self._release(environment)

    def recover(self, environment: KeptEnvironment) -> None:
        """Make the files of an adopted environment writable, if a predecessor has left them sealed. Blocks.

        Raises Unavailable.
        """
        if (environment.directory / MARK).exists():
            self._unseal(environment)

    async def _try(self, environment: KeptEnvironment) -> str:
        """Seal it; return why that failed. A program that goes on may be in a call that writes, so it is tried often."""
        for _ in range(_TRIES):
            try:
                await asyncio.to_thread(self._seal, environment)
            except Conflict as error:
                why = str(error)
            except (Unavailable, OSError) as error:
                return str(error)
            else:
                return ""
            _stop(environment)
            await asyncio.sleep(_PAUSE_SECONDS)
        return why

    def _seal(self, environment: KeptEnvironment) -> None:
        mark = environment.directory / MARK
        mark.touch()
        try:
            self._switcher.seal(environment.pid, _PATHS)
        except (Conflict, Unavailable, OSError):
            with contextlib.suppress(Unavailable, OSError):  # a kernel before 5.12 changes nothing
                self._switcher.unseal(environment.pid, _PATHS)
            mark.unlink()
            raise

    def _unseal(self, environment: KeptEnvironment) -> None:
        self._switcher.unseal(environment.pid, _PATHS)
        (environment.directory / MARK).unlink(missing_ok=True)

    async def _release(self, environment: KeptEnvironment) -> None:
        if environment.ended:
            (environment.directory / MARK).unlink(missing_ok=True)
            return
        try:
            await asyncio.to_thread(self._unseal, environment)
        except (OSError, Unavailable) as error:
            await environment.end(f"its files could not be made writable again: {error}")

    @contextlib.asynccontextmanager
    async def _held(self, environment: KeptEnvironment, why: str) -> AsyncIterator[None]:
        """Freeze it meanwhile, or end it."""
        freezer = environment.limits.freezer
        if freezer is None:
            if not environment.stops:
                await environment.end(f"its programs did not stop for a reward: {why}")
            before = _turns(environment)
            yield
            if any(before.get(task) != turns for task, turns in _turns(environment).items()):
                await environment.end("its programs went on while a reward command ran")
                raise Unavailable(
                    "programs of the environment went on while the reward command ran"
                )
            return
        try:
            began = time.monotonic()
            freezer.freeze(True)
            # The kernel does not notify when the last one has stopped.
            while (
                freezer.take([environment.first_pid, environment.pid, *environment.pids()])
                or not freezer.is_frozen()
            ):
                if time.monotonic() - began > _FREEZING_SECONDS:
                    raise Unavailable("the programs of the environment do not stop")
                await asyncio.sleep(_PAUSE_SECONDS)
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):  # it has ended
                freezer.freeze(False)


def _stop(environment: KeptEnvironment) -> None:
    """Ask its programs to stop, and do not wait for them."""
    environment.signal_all(signal.SIGSTOP, lambda _: True)


def _turns(environment: KeptEnvironment) -> dict[str, tuple[str, ...]]:
    """Return how long each thread of its programs has run, and how often it left its processor."""
    found = {}
    for pid in [] if environment.ended else environment.pids():
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                text = Path(f"/proc/{pid}/task/{thread}/status").read_text()
                used = read_if_there(Path(f"/proc/{pid}/task/{thread}/schedstat")).split()[:1]
                switches = (line for line in text.splitlines() if "ctxt_switches" in line)
                found[thread] = (*used, *switches)
    return found
