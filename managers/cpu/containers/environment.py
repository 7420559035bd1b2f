"""Environment: a container, its directories, its record on disk, and its present cores."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from managers.cpu.containers.cgroups import ControlGroup
from managers.cpu.containers.shell import ContainerShell

#: Names in the control directory, for standard output and standard error.
PIPES: Final = ("out", "err")
_ALL_USERS: Final = 0o666
_MARK_BYTES: Final = 256


@dataclass(frozen=True)
class CpuShare:
    """Cores that a container may use, and thousandths of a core in all (None: no limit)."""

    cpus: frozenset[int]
    milli: int | None = None
    #: It has the lowest weight on these cores, which were not granted to it.
    yields: bool = False


def together(shares: Collection[CpuShare]) -> CpuShare:
    """Return the share of a container for what acts in it: the sum of all that were granted."""
    granted = [share for share in shares if not share.yields] or list(shares)
    limits = [share.milli for share in granted]
    return CpuShare(
        frozenset().union(*(share.cpus for share in granted)),
        None if None in limits else sum(filter(None, limits)),
        yields=all(share.yields for share in granted),
    )


@dataclass
class Environment:
    """One container, from the intent to create it until it was removed."""

    name: str
    #: Empty for an action without a trajectory, and in the warm pool.
    trajectory: str
    spec: EnvironmentSpec
    #: Holds the record, the control directory and the mark of the running attempt.
    directory: Path
    workspace: Path
    #: Wall clock, in seconds.
    expires_at: float
    container: str = ""
    #: Mount point of the disk that holds the workspace and all else that it can write to; None: it has none.
    disk: Path | None = None
    #: Image of the engine that it was forked into; empty: the declared one.
    base: str = ""
    #: Its first process, as this machine numbers it.
    pid: int = 0
    #: Both exist with the direct backend only.
    group: ControlGroup | None = None
    #: Where the engine keeps what commands write outside the workspace; empty: not on this machine.
    layers: tuple[Path, ...] = ()
    shell: ContainerShell | None = None
    #: One action at a time (design §5.7).
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Held while its processes are moved into the group that is frozen, or out of it.
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Cores that it should have now; the sweep restores them.
    share: CpuShare | None = None
    #: Shares of the actions that run in it, by their marks.
    shares: dict[str, CpuShare] = field(default_factory=dict)
    #: Says which of its processes outlive actions; None: only the first.
    keeps: Callable[[int], bool] | None = None
    #: What the shell does in the child that becomes the next action.
    prefix: str = ""
    used_at: float = field(default_factory=time.monotonic)
    #: Why it cannot be used any more; empty while it can.
    lost: str = ""
    #: Number of foreign changes of its cores that were repaired.
    repairs: int = 0

    @property
    def control(self) -> Path:
        """The directory that the container sees at ``/.tangram``, read-only."""
        return self.directory / "control"

    @property
    def ready(self) -> bool:
        """Whether its shell has answered and takes commands."""
        return self.shell is not None and self.shell.answered and not self.shell.lost

    @property
    def written(self) -> tuple[Path, ...]:
        """The folders of this machine that its commands write to."""
        return (self.workspace, *self.layers) if self.disk is None else (self.disk,)

    @property
    def folder(self) -> Path:
        """The folder of its trajectory, or of its one action."""
        return self.disk or self.workspace

    def processes(self) -> list[int]:
        """Return its processes; none where they are not on this machine. Raises OSError at its end."""
        return [] if self.group is None else self.group.processes()

    async def release_held(self) -> None:
        """Continue what is frozen of it; nothing for one without a group. Idempotent."""
        if self.group is not None:
            async with self.moving:
                await to_its_end(self.group.held.release)

    def others(self) -> list[int]:
        """Return its processes but the first. Raises OSError when the container has ended."""
        assert self.group is not None
        return [pid for pid in self.group.processes() if pid != self.pid]

    def ending(self) -> list[int]:
        """Return the processes that end with an action. Raises OSError when the container has ended."""
        keeps = self.keeps
        return [pid for pid in self.others() if keeps is None or not keeps(pid)]

    def wanted(self, rest: CpuShare) -> CpuShare:
        """Return the share that it should have: of what acts in it, else ``rest``."""
        return together(self.shares.values()) if self.shares else rest

    def save(self) -> None:
        """Write the record atomically."""
        facts = {
            "trajectory": self.trajectory,
            "container": self.container,
            "workspace": str(self.workspace),
            "expires_at": self.expires_at,
            "image": self.spec.image,
            "memory_bytes": self.spec.memory_bytes,
            "network": self.spec.network,
            "disk_bytes": self.spec.disk_bytes,
            "disk": "" if self.disk is None else str(self.disk),
            "lost": self.lost,
            "base": self.base,
        }
        self.control.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = self.directory / "record.new"
        with draft.open("w") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.directory / "record.json")

    @classmethod
    def load(cls, directory: Path) -> Environment | None:
        """Read a record; None when the directory has none."""
        try:
            facts = json.loads((directory / "record.json").read_text())
        except (OSError, ValueError):
            return None
        spec = EnvironmentSpec(
            facts["image"], facts["memory_bytes"], facts["network"],
            disk_bytes=facts.get("disk_bytes", 0),
        )  # fmt: skip
        disk = facts.get("disk")  # records of earlier versions have none
        return cls(
            directory.name, facts["trajectory"], spec, directory, Path(facts["workspace"]),
            facts["expires_at"], facts["container"], Path(disk) if disk else None, facts.get("base", ""),
            lost=facts["lost"],
        )  # fmt: skip

    def make_pipes(self, names: Collection[str] = PIPES) -> None:
        """Make named pipes for output; those of `PIPES` are reused by all actions."""
        for name in names:
            pipe = self.control / name
            if not pipe.exists():
                os.mkfifo(pipe)
                pipe.chmod(_ALL_USERS)  # independent of the worker's umask

    def note_running(self, mark: str) -> None:
        """Store the running attempt for a successor that finds its processes."""
        # Overwritten in place: truncating and rewriting a file takes a millisecond.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        handle = os.open(self.directory / "running", flags, 0o600)
        try:
            os.write(handle, mark.encode().ljust(_MARK_BYTES))
        finally:
            os.close(handle)

    def was_running(self) -> str:
        """Return the last attempt that ran here."""
        try:
            return (self.directory / "running").read_text().strip()
        except OSError:
            return ""


async def to_its_end(work: Callable[[], None]) -> None:
    """Do ``work`` in a thread, which a cancellation of the caller does not leave behind.

    A hostile container has many processes, and each is moved by a write of its own.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(doing)
    finally:
        if not doing.done():
            await asyncio.wait({doing})
