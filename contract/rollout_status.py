"""Status of live rollouts, their workers and the backends of language models, as the scheduler loop answers it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from domain.backend_addresses import is_made_name
from domain.rollouts import RolloutState, Stage


class RolloutStatus(msgspec.Struct, omit_defaults=True):
    """A rollout that is not finished. Times are UTC RFC 3339."""

    id: str
    project: str
    task: str
    state: RolloutState
    handler: str
    submitted_at: str
    instance: str = ""
    group: str | None = None
    sample: int = 0
    llm: str = ""
    priority: int = 0
    #: Worker that runs it, and the number of its assignment.
    worker: str = ""
    attempt: int = 0
    #: Time of its first assignment.
    began_at: str | None = None
    #: Stage as its worker last reported it; ``queued``: it waits for the lease of the stage.
    stage: Stage | None = None
    queued: bool = False
    turns: int = 0
    tokens: int = 0
    #: Action that it awaits.
    awaited: str = ""
    #: Why it is not assigned (I14), and how many rollouts are assigned before it.
    waiting: str = ""
    position: int | None = None
    door: str = ""


class RolloutWorkerStatus(msgspec.Struct, omit_defaults=True):
    """A rollout worker that sends heartbeats."""

    name: str
    incarnation: int
    #: Rollouts that it takes at once, and those that it has.
    slots: int
    rollouts: int
    joined_at: str
    hostname: str = ""
    version: str = ""
    #: Names of its handlers; empty: all.
    handlers: tuple[str, ...] = ()


class BackendStatus(msgspec.Struct, omit_defaults=True):
    """A backend of a language model."""

    pool: str
    name: str
    #: As ``placement.units`` of leases names it.
    number: int
    address: str
    seats: int
    #: Seats that are taken.
    taken: int = 0
    dialect: str = ""
    model: str = ""
    drained: bool = False
    #: Why it gets no new leases; empty: it is healthy.
    unhealthy: str = ""
    weights_version: int = 0


def without_address(backend: BackendStatus) -> BackendStatus:
    """Return what a reader may know of a shared backend: no address, and its number for a name that is made of it."""
    made = is_made_name(backend.name, backend.address)
    return replace(backend, address="", name=str(backend.number) if made else backend.name)


class RolloutsStatus(msgspec.Struct, omit_defaults=True):
    """Live rollouts by arrival; ``total`` counts all that the query selects."""

    rollouts: list[RolloutStatus] = []
    total: int = 0
    #: Live rollouts by state.
    states: dict[str, int] = {}
    #: Those in a stage by its name, and those that wait for its lease as ``STAGE/queued``; of a query that shows none alone.
    stages: dict[str, int] = {}
    workers: list[RolloutWorkerStatus] = []
    backends: list[BackendStatus] = []
    #: Pools of backends that are known, with the weights version of what is added next.
    pools: dict[str, int] = {}
    #: Last journal entry that the answer reflects.
    journal_id: str = ""


def no_worker_has(handler: str, known: str) -> str:
    """Return why rollouts of a handler cannot run; ``known``: names of the handlers that workers have."""
    return (
        f"no rollout worker has the handler {handler!r}; workers have {known or 'none'}:"
        " start one where the handler's package is installed, or name another handler"
    )
