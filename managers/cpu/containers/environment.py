"""One environment: a container, its directories, and what it should have at this moment."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from managers.cpu.containers.cgroups import ControlGroup
from managers.cpu.containers.shell import Shell

#: Names in the control directory, for standard output and standard error.
PIPES: Final = ("out", "err")
_EVERYBODY: Final = 0o666
_MARK_BYTES: Final = 256


@dataclass(frozen=True)
class Share:
    """The cores a container may use: which, and how much of them (None: all)."""

    cpus: frozenset[int]
    milli: int | None = None
    #: Whether it gives way to everybody else there: nobody granted it these cores.
    yields: bool = False


@dataclass
class Environment:
    """A container of ours, from the intent to create it until it was removed."""

    name: str
    #: Empty for an action that stands alone, and while it is kept warm.
    trajectory: str
    spec: EnvironmentSpec
    #: Holds the record, the control directory and the name of what runs.
    directory: Path
    workspace: Path
    #: Wall clock, in seconds.
    expires_at: float
    container: str = ""
    #: Its first process, as this machine numbers it.
    pid: int = 0
    #: Both are there on the direct way only.
    group: ControlGroup | None = None
    shell: Shell | None = None
    #: One action at a time (design §5.7).
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: What it should have now; the sweep compares.
    share: Share | None = None
    used_at: float = field(default_factory=time.monotonic)
    #: Why it is of no use any more; empty while it is.
    lost: str = ""
    #: How often its cores were found changed by somebody else.
    repairs: int = 0

    @property
    def control(self) -> Path:
        """The directory that the container sees at ``/.tangram``, read-only."""
        return self.directory / "control"

    @property
    def ready(self) -> bool:
        """Whether its shell has answered and takes commands."""
        return self.shell is not None and self.shell.answered and not self.shell.lost

    def others(self) -> list[int]:
        """Return its processes but the first. Raises OSError when the container is gone."""
        assert self.group is not None
        return [pid for pid in self.group.processes() if pid != self.pid]

    def save(self) -> None:
        """Write the record, whole."""
        facts = {
            "trajectory": self.trajectory,
            "container": self.container,
            "workspace": str(self.workspace),
            "expires_at": self.expires_at,
            "image": self.spec.image,
            "memory_bytes": self.spec.memory_bytes,
            "network": self.spec.network,
            "lost": self.lost,
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
        spec = EnvironmentSpec(facts["image"], facts["memory_bytes"], facts["network"])
        return cls(
            directory.name, facts["trajectory"], spec, directory, Path(facts["workspace"]),
            facts["expires_at"], facts["container"], lost=facts["lost"],
        )  # fmt: skip

    def make_pipes(self) -> None:
        """Make the named pipes that output goes through. They stay; what is in them does not."""
        for name in PIPES:
            pipe = self.control / name
            if not pipe.exists():
                os.mkfifo(pipe)
                pipe.chmod(_EVERYBODY)  # whatever the worker's mask is

    def note_running(self, mark: str) -> None:
        """Leave word for a successor of whose processes it finds here."""
        # Overwritten in place: to cut a file off and write it anew takes a millisecond.
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
