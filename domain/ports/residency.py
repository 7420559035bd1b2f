"""Ports for residents: ledgers and drivers of units whose memory keeps services between actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from domain.allocation import Allocation, Home
from domain.events import ServicePrepared
from domain.ports.drivers import Driver
from domain.ports.ledgers import Ledger
from domain.ports.orders import PrepareOrder, RunOrder, RunReport


@runtime_checkable
class HostingLedger(Ledger, Protocol):
    """A ledger of units in whose memory services stay between actions."""

    #: Services for which calls wait: they are evicted last.
    wanted: frozenset[str]

    def allocate(
        self,
        holder: str,
        amount: int,
        service: str = "",
        memory_bytes: int = 0,
        *,
        at_home: bool = False,
    ) -> Allocation:
        """Reserve the best units for ``service``; no service is evicted for a reservation.

        ``at_home``: units that cache it, even if that splits a larger block than necessary.
        """

    def homes(self, service: str, amount: int) -> list[Home]:
        """Return the free chunks of ``amount`` that cache ``service``, without pending prefetches."""

    def prefetch(self, service: str, amount: int, memory_bytes: int) -> Home | None:
        """Record a prefetch of ``service`` to a free chunk of ``amount`` that has room; return the chunk.

        The chunk stays free. None: there is no such chunk.
        """

    def finish_prefetch(self, service: str, units: Sequence[int]) -> None:
        """Complete a pending prefetch of ``service`` to ``units``."""

    def host(
        self, holder: str, amount: int, service: str = "", memory_bytes: int = 0, *, seats: int = 1
    ) -> Allocation:
        """Allocate units for a grant; the allocation lists the services to evict.

        ``memory_bytes`` is what ``service`` needs of each unit; an empty name: the holder's own
        program. With several ``seats`` other holders may `join`, and the allocation is shared.
        """

    def seats(self, service: str, most: int) -> list[Home]:
        """Return the held chunks on which fewer than ``most`` holders share ``service``."""

    def join(self, holder: str, home: Home, most: int) -> Allocation:
        """Let ``holder`` share ``home`` with its holders. Raises CapacityError without a seat."""

    def evict(self, service: str) -> tuple[Home, ...]:
        """Evict ``service`` from every free chunk; return the chunks."""

    def has_room(self, amount: int, memory_bytes: int) -> bool:
        """Return whether a free chunk of ``amount`` has room without an eviction."""

    def working(self, service: str) -> int:
        """Return on how many held chunks ``service`` works or is being restored."""

    def drop(self, service: str, units: Sequence[int]) -> None:
        """Record that ``service`` is no longer in the memory of ``units``."""

    def mark_failed(self, service: str, units: Sequence[int]) -> None:
        """Record that ``service`` failed to start on ``units``: they are avoided while others are free."""

    def clear_failures(self, service: str, units: Sequence[int] = ()) -> None:
        """Clear the failures of ``service`` on ``units``; without any, on all units."""

    def has_failed(self, service: str) -> bool:
        """Return whether ``service`` has failed on any units."""

    def accepts(self, service: str, amount: int, *, now: bool) -> bool:
        """Return whether ``service`` has not failed on some chunk of ``amount`` (that is free ``now``)."""

    def reset_residents(self, homes: Sequence[Home]) -> None:
        """Reset the residents to ``homes``, reported by a node that joined, and those of present holders."""

    def remember(self) -> bytes:
        """Return the state that cannot be derived from the holders, as bytes."""

    def recall(self, memory: bytes) -> None:
        """Restore the state from `remember`; called after holders were adopted."""


@runtime_checkable
class Evicting(Protocol):
    """A driver that keeps services in memory between actions."""

    async def evict(self, home: Home) -> None:
        """Evict a service from the memory at ``home``, unless it works there again."""


@runtime_checkable
class Preparing(Protocol):
    """A driver that prepares services before they are called."""

    async def prepare(self, order: PrepareOrder) -> ServicePrepared:
        """Restore a service to a free chunk, or to host memory, before a call; return the result.

        It evicts no service, and a granted action on these GPUs has precedence.
        """


class UnitUse(NamedTuple):
    """Measured use of one unit."""

    #: Share of the last sampling period in which it was busy, 0 to 1; None: unknown.
    busy_ratio: float | None
    #: Used memory of the unit, by any process.
    used_bytes: int
    #: Memory of the unit; None: unknown.
    total_bytes: int | None = None


@runtime_checkable
class Measuring(Protocol):
    """A driver that measures the use of its units."""

    def measured(self) -> dict[int, UnitUse]:
        """Return the use by unit, without units that do not answer; called in a thread of its own."""


class MemoryUse(NamedTuple):
    """Host memory of a node that services use, and its limit; None: unknown."""

    used_bytes: int
    capacity_bytes: int | None


@runtime_checkable
class HostDriver(Driver, Protocol):
    """A driver that manages the memory of GPUs and forwards calls to the services there."""

    def residents(self) -> tuple[Home, ...]:
        """Return the services in memory; valid once the driver is open."""

    def host_memory(self) -> MemoryUse:
        """Return the host memory that services use."""

    async def clear(self, order: RunOrder) -> RunReport | None:
        """Evict services for an action that brings its own program; return a report if that fails."""
