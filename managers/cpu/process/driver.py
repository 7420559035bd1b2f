"""The driver for plain processes: what a node worker talks to.

Theory of operation. An order becomes a `Run`, a task of its own that nothing cancels: when `run` is
cancelled, the action is ended and its end is awaited. What a run starts carries a seal (`seal`) by
which all of it is found and ended, whatever it does to hide. Starting marks (`marks`) are on disk
before a command is spawned, so a restarted driver knows what may have run, and by the seals ends
what still does. A lock in the state directory keeps a second driver out of it.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.ids import ActionId, TrajectoryKey
from domain.ports import DriverContext, Leftover, RunOrder, RunReport
from managers.common.order_runs import CLOSED, SHUTTING_DOWN, Runs
from managers.common.start_log import MarkLog, leftover
from managers.common.visible_gpus import find_devices
from managers.cpu.probe import usable_cores
from managers.cpu.process.command import CommandBuilder
from managers.cpu.process.files import read_file, write_file
from managers.cpu.process.launcher import Launcher
from managers.cpu.process.limits import Limits
from managers.cpu.process.locks import take_lock
from managers.cpu.process.process_tag import Sealer
from managers.cpu.process.processes import Ending, ProcessTable, become_subreaper
from managers.cpu.process.run import Run, Tools
from managers.cpu.process.sandbox import Sandbox, find_sandbox
from managers.cpu.process.workspace import Workspaces

_ISOLATIONS: Final = ("auto", "bwrap", "process")


@dataclass(frozen=True)
class Settings:
    """What an operator may set for this driver on a node."""

    #: ``auto`` takes bwrap where it works; ``bwrap`` refuses to start without it.
    isolation: str = "auto"
    grace_seconds: float = 0.5
    patience_seconds: float = 10.0
    max_open_files: int = Limits.open_files
    max_processes: int = Limits.processes
    max_file_bytes: int = Limits.file_bytes
    #: Separated by colons: more of the system that sandboxed commands may read.
    readable_paths: str = ""

    @classmethod
    def parse(cls, given: dict[str, str]) -> Settings:
        """Read the node's settings; raise InvalidRequest naming the one that is wrong."""
        if given.get("isolation", "auto") not in _ISOLATIONS:
            raise InvalidRequest(f"isolation is one of {', '.join(_ISOLATIONS)}")
        values: dict[str, str | int | float] = {}
        for name in cls.__dataclass_fields__:
            default = getattr(cls, name)
            text = given.get(name, "")
            if not text:
                continue
            try:
                values[name] = type(default)(text)
            except ValueError:
                raise InvalidRequest(f"{name} is {text!r}: give a number") from None
            if not isinstance(default, str) and not 0 <= float(text) < float("inf"):
                raise InvalidRequest(f"{name} is {text!r}: give a number from 0 up")
        return cls(**values)  # type: ignore[arg-type]


class ProcessDriver:
    """Runs commands as processes of this machine."""

    kinds = frozenset({Kind.EXEC})

    def __init__(self, context: DriverContext) -> None:
        self._settings = Settings.parse(context.settings)
        self._given = context.settings
        self._directory = context.state_directory
        self._workspaces = Workspaces(self._directory)
        self._cpus = usable_cores()
        self._sandbox: Sandbox | None = None
        self._lock = -1
        self._tools: Tools | None = None
        self._runs: Runs[Run] = Runs(self._take_back)

    @property
    def isolation(self) -> str:
        """How commands are isolated, known once it is open: ``bwrap`` or ``process``."""
        return "process" if self._sandbox is None else "bwrap"

    async def open(self) -> list[Leftover]:
        """End what a dead predecessor left running; return what it had started. Called once."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self._directory)
        become_subreaper()
        _raise_open_files()
        sealer = Sealer.load(self._directory / "driver.key")
        table = ProcessTable(sealer)
        marks = MarkLog(self._directory / "marks.log")
        marked = await asyncio.to_thread(marks.open)
        leftovers = await self._end_predecessor(sealer, table, marked)
        await asyncio.to_thread(self._workspaces.open)
        settings = self._settings
        limits = Limits(settings.max_open_files, settings.max_processes, settings.max_file_bytes)
        self._devices = await asyncio.to_thread(find_devices, self._given)
        await asyncio.to_thread(self._choose_isolation, limits.prefix(sealer.seal("trial")))
        launcher = Launcher(marks)
        self._tools = Tools(
            sealer,
            table,
            launcher,
            self._workspaces,
            CommandBuilder(self._cpus, limits, self._sandbox, self._devices),
            settings.grace_seconds,
            settings.patience_seconds,
        )
        return leftovers

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end. An order that runs already is not run twice."""
        tools = self._tools
        if tools is None:
            return CLOSED
        return await self._runs.run(order, lambda: Run(order, started, tools))

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; its report carries ``outcome`` unless it ended by itself before."""
        self._runs.stop(action_id, outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Let a run go on with other cores; an attempt that does not run is ignored."""
        self._runs.resize(action_id, attempt, allocation)

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks go, once they have ended."""
        self._runs.forget(marks)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End what runs in it and delete it. An unknown trajectory is not an error."""
        await self._runs.end_of(trajectory, Outcome.CANCELLED, "its environment is removed")
        await asyncio.to_thread(self._workspaces.remove, self._workspaces.of(trajectory))

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file below the workspace. Raises InvalidRequest for a path that leaves it."""
        workspace = self._workspaces.ensure(trajectory)
        await asyncio.to_thread(write_file, workspace, path, content)

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file below the workspace. Raises InvalidRequest (leaves it, too large), NotFound."""
        workspace = self._workspaces.of(trajectory)
        if not workspace.exists():
            raise NotFound(f"{trajectory} has no environment on this node")
        return await asyncio.to_thread(read_file, workspace, path, limit_bytes)

    async def close(self) -> None:
        """End everything this driver runs."""
        tools, self._tools = self._tools, None
        await self._runs.end_all(SHUTTING_DOWN)
        if tools is not None:
            await asyncio.to_thread(tools.launcher.close)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_back(self, marks: Sequence[str]) -> None:
        if self._tools is not None:
            self._tools.launcher.forget(marks)

    async def _end_predecessor(
        self, sealer: Sealer, table: ProcessTable, marked: Sequence[str]
    ) -> list[Leftover]:
        running = table.find_all()
        patience = self._settings.patience_seconds
        endings = dict(
            zip(
                running,
                await asyncio.gather(*(table.end(seal, patience) for seal in running)),
                strict=True,
            )
        )
        leftovers = []
        for mark in marked:
            ending = endings.get(sealer.seal(mark), Ending())
            detail = f"could not end {', '.join(ending.remaining)}" if ending.remaining else ""
            leftovers.append(leftover(mark, ended=ending.ended > 0, detail=detail))
        return leftovers

    def _choose_isolation(self, prefix: list[str]) -> None:
        wanted = self._settings.isolation
        if wanted == "process":
            return
        readable = tuple(filter(None, self._settings.readable_paths.split(":")))
        probe = self._workspaces.alone(ActionId("trial"))
        self._sandbox = find_sandbox(probe, readable, prefix)
        probe.rmdir()
        if wanted == "bwrap" and self._sandbox is None:
            raise Unavailable("isolation is set to bwrap, which is not installed or not permitted")


def _raise_open_files() -> None:
    # Each running action takes three descriptors of ours.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
