"""Backends of language models: the servers behind ``llm:POOL``, whose seats leases take.

A backend serves one model at one address. A *seat* is one rollout at a time on it: the allocation of ``llm:POOL``
names the backend by its number in ``units``. Backends change at run time through `BackendsChanged`, not
through the configuration; the core answers with `SetBackends`, which has the whole pool.

Rules
1. Names are unique in a pool, and so are numbers. A number is never used again: a lease of a backend that was
   removed names that one, and no other.
2. A drained or unhealthy backend gets no new seats. Holders keep theirs.
3. A pool exists from its first `BackendsChanged`, or its first rollout; one that never had a backend, until its last
   rollout ends. Without a usable backend, leases wait.
4. Pools belong to all projects, but for those named ``NAME@PROJECT``: rollouts and actions of another project do not use
   them, and operators of the project change them.
5. A Resource document for ``llm:POOL`` limits the seats of all its backends together; without one the backends
   alone do.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from domain.errors import InvalidRequest
from domain.fleets import FLEET
from domain.ids import ResourceId
from domain.resources import MAX_UNITS, MILLI

#: Seats of a backend whose number is not declared.
DEFAULT_SEATS: Final = 64
#: Milli-units of ``llm:POOL`` that are not limited by a Resource document.
UNLIMITED_SEATS: Final = MAX_UNITS * MILLI
#: Pools that are known at once.
MAX_POOLS: Final = 1000
#: Pools that the rollouts of a project name, or that are its own, before it may open no other.
MAX_POOLS_OF_PROJECT: Final = 100
#: Prefix of the resources.
LLM: Final = "llm:"
#: What engines speak (`rollout.llm.dialects`).
DIALECT_NAMES: Final = ("prorl", "sglang", "vllm", "openai")


class Balance(StrEnum):
    """Which backend a lease gets, among those with a free seat."""

    IN_FLIGHT = "in_flight"  # the one with fewest seats taken
    PAPER = "paper"  # the one that got fewest leases so far (ProRL's min-heap)


class LlmBackend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server of a language model."""

    #: Unique in its pool.
    name: str
    #: Base address, without ``/v1``: ``http://10.0.0.7:8000``.
    address: str
    #: Rollouts that may use it at once.
    seats: int = DEFAULT_SEATS
    #: ``prorl``, ``vllm``, ``sglang``, ``openai``; empty: it is probed.
    dialect: str = ""
    #: Name of the model in its requests; empty: the one that it lists first.
    model: str = ""
    #: Takes no new seats, by request.
    drained: bool = False
    #: Why it takes no new seats by its own fault; empty: it is healthy.
    unhealthy: str = ""
    #: Version of its weights. 0 in a request: the present one of its pool.
    weights_version: int = 0
    #: Number that allocations name; the core sets it, requests leave it 0.
    number: int = 0

    @property
    def usable(self) -> bool:
        """Whether it takes new seats."""
        return not self.drained and not self.unhealthy


class BackendPool(msgspec.Struct, frozen=True, omit_defaults=True):
    """The backends behind one ``llm:POOL``, by number."""

    backends: tuple[LlmBackend, ...] = ()
    balance: Balance = Balance.IN_FLIGHT
    #: Version of the weights that backends without one get; each clearing makes the next one.
    weights_version: int = 1
    #: Number of the backend that is added next.
    next_number: int = 1

    def named(self, name: str) -> LlmBackend | None:
        """Return the backend ``name``."""
        return next((each for each in self.backends if each.name == name), None)

    def numbered(self, number: int) -> LlmBackend | None:
        """Return the backend with ``number``; None: it was removed."""
        return next((each for each in self.backends if each.number == number), None)


def llm_resource(pool: str) -> ResourceId:
    """Return the resource of the seats of ``pool``."""
    return ResourceId(f"{LLM}{pool}")


def own_pool(project: str, name: str) -> str:
    """Return the pool ``name`` of a project's own; ``name`` has no ``@``."""
    return f"{name}@{project}"


def owner_of(pool: str) -> str:
    """Return the project that a pool belongs to; empty: to all. Projects may have ``@`` in their names."""
    return pool.partition("@")[2]


def check_pool_name(pool: str, pointer: str) -> None:
    """Raise InvalidRequest for a pool that rollouts could not name: they would name a fleet."""
    if pool.startswith(FLEET):
        raise InvalidRequest(
            f"names of pools do not begin with {FLEET!r}: workers of a fleet are declared by a Fleet (docs/fleets.md)",
            pointer=pointer,
        )


def check_pool_of(pool: str, project: str, pointer: str) -> None:
    """Raise InvalidRequest for a pool that belongs to another project."""
    if owner_of(pool) not in ("", project):
        raise InvalidRequest(
            f"there is no pool of backends {pool!r} for project {project!r}", pointer=pointer
        )


def check_backend(backend: LlmBackend) -> None:
    """Raise InvalidRequest, naming the member, for a backend that cannot be used as declared."""
    if not backend.name or len(backend.name) > 200 or "/" in backend.name:
        raise InvalidRequest("give a name of up to 200 characters without /", pointer="/name")
    if not backend.address.startswith(("http://", "https://")):
        raise InvalidRequest("give an address with http:// or https://", pointer="/address")
    if backend.dialect and backend.dialect not in DIALECT_NAMES:
        raise InvalidRequest(
            f"dialect is one of {', '.join(DIALECT_NAMES)}, not {backend.dialect!r}",
            pointer="/dialect",
        )
    if not 1 <= backend.seats <= 100_000:
        raise InvalidRequest("give 1 to 100000 seats", pointer="/seats")
    if backend.weights_version < 0:
        raise InvalidRequest("give a version of 0 or more", pointer="/weights_version")
