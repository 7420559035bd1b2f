"""What is beside a ledger and a driver where services stay in the memory of units between actions."""

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

    #: Services that are evicted last.
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
        """Hand out the units best for ``service``. Nobody is evicted, so it leaves no trace.

        ``at_home``: where it is cached, even when that splits a larger block than need be.
        """

    def homes(self, service: str, amount: int) -> list[Home]:
        """Return the free chunks of ``amount`` that cache ``service``; it is not still on its way."""

    def bring(self, service: str, amount: int, memory_bytes: int) -> Home | None:
        """Enter ``service`` on a free chunk of ``amount`` that has room, to which it is on its way.

        The chunk stays free. None: there is no such chunk.
        """

    def arrived(self, service: str, units: Sequence[int]) -> None:
        """``service``, if it is still on its way to ``units``, is there."""

    def host(
        self, holder: str, amount: int, service: str = "", memory_bytes: int = 0, *, seats: int = 1
    ) -> Allocation:
        """Hand out units for good; the allocation says what happens in their memory.

        ``memory_bytes`` is what ``service`` needs of each; an empty name: the holder's own program.
        With several ``seats`` others may `join`, and the allocation is shared.
        """

    def seats(self, service: str, most: int) -> list[Home]:
        """Return the held chunks where ``service`` works for less than ``most`` who share it."""

    def join(self, holder: str, home: Home, most: int) -> Allocation:
        """Let ``holder`` share ``home`` with those that hold it. Raises CapacityError without a seat."""

    def evict(self, service: str) -> tuple[Home, ...]:
        """Let ``service`` leave every free chunk; return from where it left."""

    def spare(self, amount: int, memory_bytes: int) -> bool:
        """Say whether there is a free chunk of ``amount`` with room beside whoever is there."""

    def working(self, service: str) -> int:
        """Return on how many held chunks ``service`` works, or is meant to."""

    def drop(self, service: str, units: Sequence[int]) -> None:
        """``service`` is no longer in the memory of ``units``."""

    def shun(self, service: str, units: Sequence[int]) -> None:
        """``service`` could not be brought to ``units``: it goes elsewhere as long as it can."""

    def cure(self, service: str, units: Sequence[int] = ()) -> None:
        """``service`` may go to ``units`` like anywhere else; without any, to all of them."""

    def shuns(self, service: str) -> bool:
        """Say whether ``service`` is shunned anywhere."""

    def welcomes(self, service: str, amount: int, *, now: bool) -> bool:
        """Say whether ``service`` is not shunned on some chunk of ``amount`` (free ``now``)."""

    def found(self, homes: Sequence[Home]) -> None:
        """A node has begun anew with just these, besides those that work for holders."""

    def remember(self) -> bytes:
        """Return what cannot be derived from who has what."""

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; called after holders were adopted."""


@runtime_checkable
class Evicting(Protocol):
    """A driver that keeps services in memory between actions."""

    async def evict(self, home: Home) -> None:
        """Let a service leave the memory at ``home``, unless it works there again."""


@runtime_checkable
class Preparing(Protocol):
    """A driver that gets services ready before they are called."""

    async def prepare(self, order: PrepareOrder) -> ServicePrepared:
        """Bring a service to a free chunk, or into host memory, for nobody; the report says how that went.

        Nobody leaves for it, and who comes to these GPUs for another service goes first.
        """


class UnitUse(NamedTuple):
    """What a unit does at this moment, as measured."""

    #: Share of the last moments in which it worked, 0 to 1; None: nobody can say.
    busy_ratio: float | None
    #: Of its memory, whoever has it.
    used_bytes: int


@runtime_checkable
class Measuring(Protocol):
    """A driver that measures what its units do."""

    def measured(self) -> dict[int, UnitUse]:
        """Return it by unit, those that do not answer left out; called in a thread of its own."""


class MemoryUse(NamedTuple):
    """Host memory of a node that services take, and how much they may; None: nobody counts."""

    used_bytes: int
    capacity_bytes: int | None


@runtime_checkable
class HostDriver(Driver, Protocol):
    """A driver that looks after the memory of GPUs, and forwards calls to the services there."""

    def residents(self) -> tuple[Home, ...]:
        """Return which services are in memory; known once it is open."""

    def host_memory(self) -> MemoryUse:
        """Return what services take of the node's host memory."""

    async def clear(self, order: RunOrder) -> RunReport | None:
        """Make room for an action that brings its own program; a report when that fails."""
