"""Environments and their programs as a node lists and ends them, without a granted core."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import msgspec

from domain.ids import TrajectoryKey

EndSignal = Literal["SIGKILL", "SIGTERM"]


class ProgramFacts(msgspec.Struct, frozen=True, omit_defaults=False):
    """One program that runs in an environment."""

    #: Id inside the environment, as its programs see it.
    pid: int
    command: str
    #: Unix time of its start, in seconds.
    started: float
    cpu_seconds: float
    memory_bytes: int
    #: Id of the action that started it, or ``session:`` and the name of a session; empty: not known.
    owner: str = ""
    #: An action that has ended left it behind: it runs on the shared cores.
    background: bool = False


class EnvironmentFacts(msgspec.Struct, frozen=True, omit_defaults=False):
    """The environment of a trajectory as it is now on its node."""

    #: ``running``, ``parked``, or ``none``: no program runs in it, and its files stay.
    state: str
    #: Disk that its files used when they were last measured; None: not known.
    disk_bytes: int | None = None


@runtime_checkable
class EnvironmentInspecting(Protocol):
    """A driver that reports the state of environments."""

    def inspect_environment(self, trajectory: TrajectoryKey) -> EnvironmentFacts:
        """Return the environment of a trajectory, which may have none here."""


@runtime_checkable
class ProcessServing(Protocol):
    """A driver's living environments, as far as their programs are listed and ended."""

    def list_processes(self, trajectory: TrajectoryKey) -> list[ProgramFacts]:
        """Return the programs of a trajectory's environment. Raises NoEnvironment."""

    def end_process(
        self, trajectory: TrajectoryKey, pid: int, by: EndSignal = "SIGKILL"
    ) -> ProgramFacts:
        """Send a signal to the program ``pid``; return what it was. Raises NoEnvironment, NotFound."""
