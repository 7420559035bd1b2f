"""The interface of launchers, and what passes through it. The rules are those of the package."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from domain.errors import InvalidRequest, TangramError
from domain.node_groups import NodeGroupSpec

#: Group of entry points: name of an engine → `MakeNodeLauncher`.
ENTRY_POINTS: Final = "tangram.launchers"
#: Longest call of a launcher.
CALL_SECONDS: Final = 30.0


class LaunchError(TangramError):
    """The engine refused, or did not answer. The message names the cause and the cure."""


class LaunchRefused(LaunchError):
    """The engine refused a launch: nothing was started."""


class MachinesSilent(LaunchError):
    """Some machines did not answer: what runs there is not known. Those that answered have ``found``."""

    def __init__(self, found: Sequence[Instance], silent: Mapping[str, str]) -> None:
        """``silent``: machine → why, with the cure."""
        super().__init__("; ".join(silent.values()))
        self.found, self.silent = list(found), dict(silent)


class InstanceState(StrEnum):
    """What the engine says of an instance."""

    #: It waits for a machine.
    PENDING = "pending"
    RUNNING = "running"
    #: Its machine does not answer (`MachinesSilent`).
    UNKNOWN = "unknown"
    #: It was asked to end, and some of its processes are still there.
    ENDING = "ending"
    #: The engine gave up; it holds nothing.
    FAILED = "failed"


@dataclass(frozen=True)
class Instance:
    """One node worker, as the engine lists it."""

    #: That of its node.
    name: str
    state: InstanceState
    #: Name of the instance in the engine: a job, an actor, a pod, a process. Shown to people.
    handle: str
    #: Where it runs; empty while it waits.
    machine: str = ""
    #: Wall clock, seconds since the epoch: the engine will end it then.
    ends_at: float | None = None
    #: Why it waits, failed or ends, in the words of the engine.
    reason: str = ""
    restarts: int = 0
    #: That of its order. Empty: an earlier version launched it.
    fingerprint: str = ""


@dataclass(frozen=True)
class LaunchOrder:
    """One instance to launch."""

    #: Tells the instances of several Tangrams on one engine apart.
    installation: str
    group: str
    name: str
    spec: NodeGroupSpec
    #: Command line of the node worker, and the variables that it needs.
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: `fingerprint_of` the spec.
    fingerprint: str = ""


class NodeLauncher(Protocol):
    """One engine, for the groups with the same options. It may have what `reach_of` and `launches_at_once_of` return."""

    def instances(self, installation: str, group: str) -> list[Instance]:
        """Return all instances of a group that the engine has. Raises LaunchError."""

    def launch(self, order: LaunchOrder) -> None:
        """Ask the engine for an instance. Raises LaunchError."""

    def end(self, installation: str, group: str, name: str) -> None:
        """Let the engine end an instance and all its processes. Raises LaunchError."""

    def problems(self) -> list[str]:
        """Return what keeps the engine from placing node workers, for `tangram doctor --cluster`; each names the cure."""

    def close(self) -> None:
        """Close connections to the engine; instances go on."""


#: Makes a launcher from the options of a group. Raises InvalidRequest for one that it does not know.
MakeNodeLauncher = Callable[[Mapping[str, str]], NodeLauncher]


def check_options(engine: str, options: Mapping[str, str], known: Collection[str]) -> None:
    """Raise InvalidRequest for an option that the launcher of ``engine`` does not know."""
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"engine {engine} has no option {name!r}: give {', '.join(known)}",
                pointer=f"/options/{name}",
            )


def reach_of(launcher: NodeLauncher) -> Collection[str]:
    """Return the options that say how the engine is reached, or which machines it has: they change no instance."""
    found: Collection[str] = getattr(launcher, "reach", ())
    return found


def launches_at_once_of(launcher: NodeLauncher) -> int:
    """Return how many threads may launch at once."""
    found: int = getattr(launcher, "launches_at_once", 1)
    return found


#: Members of a spec that say how many instances there are, and how they are replaced.
_OF_THE_GROUP: Final = frozenset(
    {
        "count",
        "min_count",
        "max_count",
        "drain_seconds",
        "max_surge",
        "max_unavailable",
        "cost_per_hour",
    }
)


def fingerprint_of(spec: NodeGroupSpec, reach: Collection[str] = ()) -> str:
    """Return a digest of what an instance has of its group: the same for specs that differ in members of the group, and in options of ``reach``.

    Members with their defaults have no part in it, so a version that adds one replaces no instance.
    """
    shape = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in _OF_THE_GROUP}  # fmt: skip
    options = {name: value for name, value in spec.options.items() if name not in reach}
    shape.pop("options", None)
    content = msgspec.json.encode([shape, options], order="deterministic")
    return hashlib.sha256(content).hexdigest()[:12]
