"""Pools of backends as the scheduler has them now: seats, health, weights versions, and what happens at them.

Rules, as of the API (`scheduler.runtime.gateway.endpoints.backends`)
1. Pools belong to all projects; one named ``NAME@PROJECT`` to that project, and readers of others do not see it.
2. Addresses of a pool of all projects are shown to readers of all projects alone.
3. Pools of all projects are changed by operators of every project, those of one project also by its operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contract.responses import QueueDetails, QueuesResponse
from contract.rollout_status import BackendStatus, RolloutsStatus, without_address
from domain.backends import LLM, owner_of
from tangram_web.live.access import Sight

#: Owner of a pool, empty for all projects → whether the reader may change it.
Operates = Callable[[str], bool]


@dataclass(frozen=True)
class ShownBackendPool:
    """The backends behind one ``llm:POOL``."""

    name: str
    #: Version of the weights that backends added next get.
    weights_version: int
    backends: list[BackendStatus]
    #: Leases that wait for a seat.
    waiting: list[QueueDetails]
    #: The reader may know the addresses, and may change the pool.
    addresses: bool = False
    changeable: bool = False

    @property
    def owner(self) -> str:
        """Project that it belongs to; empty: all."""
        return owner_of(self.name)

    @property
    def seats(self) -> int:
        """Seats of the backends that take new rollouts."""
        return sum(each.seats for each in self.backends if is_usable(each))

    @property
    def taken(self) -> int:
        """Seats that are taken, on all backends."""
        return sum(each.taken for each in self.backends)

    @property
    def all_seats(self) -> int:
        """Seats of all backends."""
        return sum(each.seats for each in self.backends)

    @property
    def usable(self) -> int:
        """Backends that take new rollouts."""
        return sum(map(is_usable, self.backends))

    @property
    def versions(self) -> list[int]:
        """Weights versions that are served."""
        return sorted({each.weights_version for each in self.backends})

    @property
    def waits(self) -> int:
        """Number of leases that wait for a seat."""
        return sum(line.waiting for line in self.waiting)


def is_usable(backend: BackendStatus) -> bool:
    """Say whether a backend takes new rollouts."""
    return not backend.drained and not backend.unhealthy


def pools_seen_by(
    sight: Sight, status: RolloutsStatus, queues: QueuesResponse | None, operates: Operates
) -> list[ShownBackendPool]:
    """Return the pools that may be seen, by name."""
    lines = [] if queues is None else queues.items
    return [
        ShownBackendPool(
            name,
            version,
            [visible(each, sight) for each in status.backends if each.pool == name],
            [line for line in lines if f"{LLM}{name}" in line.needs],
            addresses=knows_addresses(sight, name),
            changeable=operates(owner_of(name)),
        )
        for name, version in sorted(status.pools.items())
        if not owner_of(name) or sight.sees(owner_of(name))
    ]


def knows_addresses(sight: Sight, pool: str) -> bool:
    """Say whether a reader may know the addresses of a pool, and names of backends that are made of them."""
    owner = owner_of(pool)
    return sight.everything or (bool(owner) and sight.sees(owner))


def visible(backend: BackendStatus, sight: Sight) -> BackendStatus:
    """Return what a reader may know of a backend: a name that is made of its address is its number."""
    if knows_addresses(sight, backend.pool):
        return backend
    return without_address(backend)
