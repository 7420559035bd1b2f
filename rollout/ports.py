"""Ports of a rollout worker: what the runtime gives it, and nothing else.

Lifetimes: the runtime makes one `RolloutPort` for a worker process. `assignments` yields each rollout that the
scheduler assigns to the worker, and each withdrawal (cancelled, or assigned to another worker).

Rules
1. Every call names the rollout and its attempt. A call of an attempt that is over raises `Superseded`, has no effect,
   and the worker drops the rollout without any further call.
2. `append` returns when the record is on disk. Only then the worker takes the next step.
3. `submit` with the same ``key`` is the same action: after a crash the successor awaits the action of its predecessor.
4. The runtime renews all leases of the worker with one heartbeat; a worker that ends loses them within their
   time to live (I5).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from domain.rollouts import Rollout, RolloutProgress, RolloutResult, Stage


class Superseded(Exception):
    """The rollout is finished, or assigned to another worker."""


class LostEnvironment(Exception):
    """The environment of a trajectory is gone with its node: nothing that ran in it is left."""


class Assigned(msgspec.Struct, frozen=True):
    """A rollout is this worker's from now on; its log may have records of earlier attempts."""

    rollout: Rollout
    attempt: int


class Withdrawn(msgspec.Struct, frozen=True):
    """A rollout is not this worker's any more, which touches nothing of it.

    When it is over, as when it was cancelled, the scheduler has ended its leases, actions and trajectories; else another
    worker continues with them.
    """

    rollout_id: str
    attempt: int
    reason: str = ""
    #: It is parked: its leases end, its environments and its pending action stay.
    parked: bool = False


class Seat(msgspec.Struct, frozen=True):
    """Seat of a language model that the lease of RUN took."""

    pool: str
    #: Name of the backend.
    backend: str
    #: Base address, without ``/v1``.
    address: str
    weights_version: int
    #: Name of its dialect (`rollout.llm.dialects`); empty: it is probed.
    dialect: str = ""
    #: Name of the model in its requests; empty: the one that it lists first.
    model: str = ""
    #: Number of the backend in its pool; 0: unknown.
    number: int = 0


class StageLease(msgspec.Struct, frozen=True):
    """A granted lease of a stage."""

    id: str
    stage: Stage
    queued_seconds: float
    seat: Seat | None = None


class ActionEnd(msgspec.Struct, frozen=True):
    """A finished action, with the members of ``GET /actions/{id}``."""

    id: str
    outcome: str
    result: dict[str, Any] | None
    reward: float | None
    detail: str
    queue_seconds: float
    execution_seconds: float
    #: The environment that it ran in is gone with its node, and what it did there.
    environment_lost: bool = False


class GenerationRequest(msgspec.Struct, frozen=True):
    """One request for tokens, in the protocol of the fleet's engine."""

    path: str
    #: JSON object, without ``model``.
    body: dict[str, Any]
    #: Limit of the time with a worker; None: no limit.
    timeout_seconds: float | None = None


class FleetAnswer(msgspec.Struct, frozen=True):
    """How one generation of a fleet ended: with the answer of a worker, or without one."""

    #: HTTP status of the answer; 0: there is none.
    status: int = 0
    content: bytes = b""
    #: Name of the worker that answered.
    worker: str = ""
    #: Of its weights when the generation was granted; 0: the worker does not say.
    weights_version: int = 0
    #: Time with the worker that answered.
    execution_seconds: float = 0.0
    #: Why there is no answer; another generation may have one.
    failed: str = ""


class Record(msgspec.Struct, frozen=True):
    """One record of a rollout's log: a small header and raw arrays."""

    #: As in `rollout.core.records`.
    kind: str
    header: dict[str, Any]
    #: Name → bytes of a little-endian array (int32 ids, float32 log-probabilities) or of a file.
    arrays: dict[str, bytes] = {}


class LogPort(Protocol):
    """The log of a rollout: append-only, fenced by the attempt, on disk beside Redis."""

    async def append(self, rollout: Rollout, attempt: int, number: int, record: Record) -> None:
        """Append record ``number``, counted from 0; one that is there already must be equal. Raises Superseded, CapacityError."""

    async def read(self, rollout: Rollout) -> Sequence[Record]:
        """Return the complete records; an incomplete last one is left out."""


#: Takes the seat that a lease has from now on.
SeatMoved = Callable[[Seat | None], None]


class LeasePort(Protocol):
    """Leases of stages."""

    async def lease(
        self,
        rollout: Rollout,
        attempt: int,
        stage: Stage,
        number: int,
        moved: SeatMoved | None = None,
    ) -> StageLease:
        """Wait for the ``number``-th lease of a stage. Raises Superseded, CapacityError.

        ``moved``: called when a lease that was lost is followed by another one with its own seat, while the stage runs.
        """

    async def release(self, lease: StageLease) -> None:
        """Release it; may be repeated."""


class EnvironmentPort(Protocol):
    """Trajectories of a rollout and what runs in them: the calls of the native API.

    A call raises LostEnvironment when the environment is gone, InvalidRequest when it can never work, CapacityError when
    it may work later.
    """

    async def open(
        self, rollout: Rollout, name: str, environment: Mapping[str, Any] | None
    ) -> None:
        """Open trajectory ``name``; one that is open already is used."""

    async def fork(self, rollout: Rollout, source: str, names: Sequence[str]) -> None:
        """Fork a trajectory; forks that are open already are used."""

    async def finish(self, rollout: Rollout, name: str) -> None:
        """End a trajectory and remove its environment; may be repeated."""

    async def submit(
        self, rollout: Rollout, attempt: int, key: str, members: Mapping[str, Any]
    ) -> str:
        """Submit an action once per ``key`` and return its id; ``members`` as in ``POST /actions``."""

    async def wait(self, rollout: Rollout, action_id: str) -> ActionEnd:
        """Return an action of the rollout's project once it is finished."""

    async def cancel(self, rollout: Rollout, action_id: str, reason: str) -> None:
        """Cancel an action of the rollout's project."""

    async def put(self, rollout: Rollout, name: str, path: str, content: bytes) -> None:
        """Write a file into a trajectory's environment."""

    async def get(self, rollout: Rollout, name: str, path: str) -> bytes:
        """Read a file of a trajectory's environment. Raises NotFound."""

    async def open_session(
        self, rollout: Rollout, name: str, session: str, members: Mapping[str, Any]
    ) -> None:
        """Open a session of a trajectory's environment; one that is open is used.

        ``members`` as in ``POST /trajectories/{id}/sessions``, without ``name``.
        """

    async def agent_token(self, rollout: Rollout, name: str) -> str:
        """Return the token with which a trajectory calls its rollout's model over HTTP, and nothing else."""

    async def connect(self, rollout: Rollout, name: str, port: int) -> Channel:
        """Connect to a server on a port of a trajectory's environment (its action server)."""


class Channel(Protocol):
    """A byte stream to a server inside an environment."""

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""

    async def receive(self) -> bytes:
        """Return the next bytes; empty at the end."""

    async def close(self) -> None:
        """Close it; may be repeated."""


#: Takes the id of a generation's action.
GenerationBegun = Callable[[str], Awaitable[None]]


class FleetPort(Protocol):
    """Fleets: language models whose every call is an action of its own, with a slot that placement chooses."""

    async def engine(self, fleet: str) -> str:
        """Return the engine of a fleet, as its declaration names it; empty: it is not declared."""

    async def generate(
        self,
        rollout: Rollout,
        attempt: int,
        name: str,
        asked: GenerationRequest,
        begun: GenerationBegun,
    ) -> FleetAnswer:
        """Make one generation of the rollout's fleet in trajectory ``name``; return how it ended. Raises Superseded.

        It waits for its worker as long as that takes. A call that is cancelled ends the generation.
        """


class RolloutPort(LogPort, LeasePort, EnvironmentPort, FleetPort, Protocol):
    """Everything that a rollout worker needs."""

    def assignments(self) -> AsyncIterator[Assigned | Withdrawn]:
        """Yield assignments and withdrawals; at first those that the worker had before a restart."""

    async def backends(self, pool: str) -> Sequence[Seat]:
        """Return the healthy, undrained backends of a pool, with their present weights versions."""

    async def report(self, rollout: Rollout, attempt: int, progress: RolloutProgress) -> None:
        """Report progress: for pages, without any guarantee."""

    async def finished(self, rollout: Rollout, attempt: int, result: RolloutResult) -> None:
        """Report the end; returns when it is accepted. Raises Superseded."""
