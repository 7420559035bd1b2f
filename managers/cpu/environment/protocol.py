"""Living environment: the namespace of a trajectory that outlives its actions, and the programs in it.

    environments = …                             a driver's `Environments`
    environment = await environments.open(trajectory, spec)
    process = await environment.start(InitCommand(("make",), {"PATH": "/usr/bin:/bin"}))
    status = await process.wait()                exit code, or 128 + number of the signal
    environment.processes()                      all programs in it, with the action that started each

Its first process (the *init*) starts programs on request and lives as long as the environment. It holds no
granted core: between actions everything in the environment runs on the shared cores of the node.

Rules
1. An environment is started at its first use, under the declared memory, process and disk limits, which hold
   for all its programs together and for its whole life. It ends with `finish`, its TTL, or its node.
2. A program that an action started may outlive the action: it becomes a *background process*. It keeps the
   action's tag, moves to the background cpuset, is listed, and ends with the environment or by its own TTL. When
   an action times out or is cancelled, all processes with its tag end and the environment stays.
3. One `exec` runs at a time; programs of sessions run beside it. `start` may be called at any time.
4. An environment outlives the node worker. The next worker adopts it by its record (folder, pid, start time), and
   what cannot be adopted is ended before anything is granted.
5. Nothing that the environment says is trusted: a program inside may end or imitate the init where both have one
   uid. An exit status is read from the kernel where the worker may read it. Rewards never depend on it: a
   reward command runs in a namespace of its own.
6. Host paths below `LivingEnvironment.root` are opened with RESOLVE_IN_ROOT, never by joining strings.

The control folder is seen inside at `CONTROL`, read-only. It holds the named pipes of commands. `SHARED` below it
is the one place there that programs may write; the worker follows no link in it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from domain.action import EnvironmentSpec
from domain.errors import Conflict, InvalidRequest
from domain.ids import TrajectoryKey

#: The control folder as programs see it, and the part of it that they may write.
CONTROL: Final = "/.tangram"
SHARED_NAME: Final = "shared"
SHARED: Final = f"{CONTROL}/{SHARED_NAME}"
#: Exit status of a program that a signal ended: this plus the number of the signal, as in a shell.
SIGNAL_BASE: Final = 128
#: Start of `InitCommand.owner` for a program of a session.
SESSION_OWNER: Final = "session:"


class NoEnvironment(InvalidRequest):
    """The trajectory has no environment on this node; the code is ``not_here``."""

    def __init__(self, trajectory: str) -> None:
        super().__init__(f"{trajectory} has no environment on this node", code="not_here")


class RewardRuns(Conflict):
    """A reward command runs beside the environment; the code is ``reward_runs``."""

    def __init__(self) -> None:
        super().__init__(
            "a reward command runs in the environment, so nothing else starts in it and its files cannot be changed:"
            " try again when that action has finished",
            code="reward_runs",
        )


class EnvironmentLost(Exception):
    """The init has ended or answers no more; the environment is ended, and its files stay."""


@dataclass(frozen=True)
class InitCommand:
    """A program to start in an environment. Paths are paths inside it, and absolute."""

    argv: tuple[str, ...]
    #: All its variables; none of the worker is inherited.
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/workspace"
    #: Files or named pipes. Outputs are opened for reading too: a pipe then has always a reader, so that a
    #: background process is not ended by SIGPIPE.
    stdin: str = "/dev/null"
    stdout: str = "/dev/null"
    stderr: str = "/dev/null"
    #: Tag that all its processes inherit (`managers.cpu.process.process_tag`); 0: that of the environment.
    tag: int = 0
    #: CPUs that it runs on; None: the shared cores, in the background.
    cpus: frozenset[int] | None = None
    #: Id of the action that starts it, or `SESSION_OWNER` and the name of a session; empty: Tangram.
    owner: str = ""


@dataclass(frozen=True)
class EnvironmentProcess:
    """A program that runs in an environment."""

    #: Id on the host, and inside.
    pid: int
    inner_pid: int
    command: str
    #: Unix time of its start, in seconds.
    started: float
    cpu_seconds: float
    memory_bytes: int
    #: As `InitCommand.owner`.
    owner: str
    #: It was left behind by an action that has ended.
    background: bool


class InitProcess(Protocol):
    """A program that the init has started."""

    @property
    def pid(self) -> int:
        """Id on the host."""

    @property
    def inner_pid(self) -> int:
        """Id inside the environment."""

    @property
    def pidfd(self) -> int:
        """Descriptor that is readable when it has ended; closed by the process object."""

    async def wait(self) -> int:
        """Return its exit code, or `SIGNAL_BASE` plus a signal. Raises EnvironmentLost when none is known."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it; a program that has ended is ignored."""


@runtime_checkable
class LivingEnvironment(Protocol):
    """One living environment."""

    @property
    def name(self) -> str:
        """Name of its folder."""

    @property
    def trajectory(self) -> TrajectoryKey:
        """The trajectory that it belongs to."""

    @property
    def spec(self) -> EnvironmentSpec:
        """What was declared for it."""

    @property
    def directory(self) -> Path:
        """Its folder on the host: ``control/``, records, and its layers."""

    @property
    def control(self) -> Path:
        """Host side of `CONTROL`."""

    @property
    def pid(self) -> int:
        """Host id of the init."""

    @property
    def pidfd(self) -> int:
        """Descriptor of the init."""

    @property
    def root(self) -> Path:
        """``/proc/<pid>/root``: the tree as programs see it now."""

    @property
    def uid(self) -> int | None:
        """Host uid of its root user; None: the worker's."""

    async def start(
        self, command: InitCommand, prepare: Callable[[int], None] | None = None
    ) -> InitProcess:
        """Start a program. ``prepare`` is called with its host id before it becomes the program.

        Raises EnvironmentLost, and OSError when it cannot be limited as declared.
        """

    def processes(self) -> list[EnvironmentProcess]:
        """Return its programs, without init and sandbox; takes some 0.1 ms each."""

    async def freeze(self) -> None:
        """Stop all its programs from running; `thaw` continues them. Idempotent."""

    async def thaw(self) -> None:
        """Continue a frozen environment. Idempotent."""

    async def end(self) -> None:
        """End all its programs. Its files stay, and its next use starts it again. Idempotent."""


@runtime_checkable
class Environments(Protocol):
    """The living environments of one driver."""

    async def open(self, trajectory: TrajectoryKey, spec: EnvironmentSpec) -> LivingEnvironment:
        """Return a trajectory's environment, started when it does not run.

        Raises Unavailable where the node cannot keep environments, LostWorkspaceError, OSError.
        """

    def of(self, trajectory: TrajectoryKey) -> LivingEnvironment:
        """Return the running environment of a trajectory. Raises NoEnvironment."""

    def all(self) -> list[LivingEnvironment]:
        """Return the environments that run."""
