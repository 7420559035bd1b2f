"""Ledgers: the pure halves of managers.

Rules
1. `fits`, `free` and `capacity` change nothing. An error changes nothing.
2. `allocate` succeeds when `fits((amount,))` said yes and nothing happened in between.
3. `release` restores exactly what was taken, and is idempotent.
4. The sum of what is held never passes the capacity by `allocate`; after `resize_capacity` it may,
   then `free` is negative and nothing fits.
5. `adopt` takes an allocation that an earlier life of the ledger handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from domain.allocation import Allocation
from domain.apis import Feedback
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import QuotaUse, Turn
from domain.operators import Operator


class Ledger(Protocol):
    """Pure book-keeping of one resource."""

    resource: ResourceId

    @property
    def capacity(self) -> int:
        """Amount there is, in milli-units (bytes for memory)."""

    @property
    def free(self) -> int:
        """Amount not held. Negative after the capacity shrank below what is held."""

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once, to different holders."""

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Hand out units. Raises CapacityError when they do not fit or the holder has some."""

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked."""

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; None when it has nothing."""

    def holders(self) -> dict[str, Allocation]:
        """Return who has what."""

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have."""


@runtime_checkable
class ResizableLedger(Ledger, Protocol):
    """A ledger whose holders may be given more or less while they hold."""

    def resize(self, holder: str, amount: int, prefer: Sequence[int] = ()) -> Allocation:
        """Let ``holder`` go on with ``amount``; return what it has then.

        Units it had stay with it as far as they go; ``prefer`` names those to get first. Raises
        CapacityError, changing nothing, when that cannot be.
        """


@runtime_checkable
class LocalLedger(Ledger, Protocol):
    """A ledger whose units are nearer to some memory than others."""

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Hand out units, where it can beside ``near``, units that the holder's trajectory had.

        ``near`` changes which units, never whether there are enough.
        """

    @property
    def groups(self) -> int:
        """How many places there are to be near to; below 2 nobody needs to say."""


@runtime_checkable
class PacedLedger(Ledger, Protocol):
    """A ledger that also counts over time. It is told the time, and keeps none of its own.

    `release` restores what was taken only until `spend`: what was handed out counts on for as long
    as its quotas say.
    """

    def advance(self, now: float) -> None:
        """Let time pass (journal time); it never runs backward."""

    def spend(self, holder: str) -> None:
        """What ``holder`` was allocated is handed out for good, at this moment."""

    def ready_at(self, amount: int) -> float | None:
        """Return when time alone lets ``amount`` fit; None when it is not time that it lacks."""

    def uses(self, now: float) -> list[QuotaUse]:
        """Return how each quota stands at ``now``, which lies at or after the last `advance`."""

    def heed(self, feedback: Feedback, granted_at: float, now: float) -> None:
        """Take in what an attempt, granted at ``granted_at``, says of the resource."""

    def take_retry(self, attempts: int) -> str:
        """Allow one more attempt after so many, at once for all; else say why there is none."""

    def turns(self) -> list[Turn]:
        """Return what turned bad since this was last asked."""

    def hindrance(self, now: float) -> str:
        """Say in words what else than quotas is in the way now; empty when nothing is."""

    @property
    def ceiling(self) -> int:
        """Most that may be held at once, as far as was learned; the capacity at most."""

    def remember(self) -> bytes:
        """Return what cannot be derived from who has what."""

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; called after holders were adopted."""


@runtime_checkable
class Shaped(Protocol):
    """A ledger of which more is to be said than a sum: its units combine in their own way."""

    def operator(self, claims: Sequence[int]) -> Operator:
        """Say what could be handed out beside ``claims``, which fit."""


LedgerFactory = Callable[[ResourceId, ResourceInventory], Ledger]
