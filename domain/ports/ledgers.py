"""Ledgers: the pure halves of managers, which account for units.

Rules
1. `fits`, `free` and `capacity` have no side effects. A call that raises changes nothing.
2. `allocate` succeeds if `fits((amount,))` is true immediately before.
3. `release` restores exactly what was taken, and is idempotent.
4. `allocate` never lets the held sum exceed the capacity; after `resize_capacity` it may, and then
   `free` is negative and nothing fits.
5. `adopt` restores an allocation that the ledger made before a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard, TypeVar, cast, runtime_checkable

from domain.allocation import Allocation
from domain.apis import Feedback
from domain.chunks import Counts
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Degradation, QuotaUse

if TYPE_CHECKING:
    # It loads numpy, which takes 15 MB and a twentieth of a second of every process; only the loop computes.
    from domain.operators import Operator


class Ledger(Protocol):
    """Accounting of one resource."""

    resource: ResourceId

    @property
    def capacity(self) -> int:
        """Total amount, in milli-units (bytes for memory)."""

    @property
    def free(self) -> int:
        """Amount not held. Negative after the capacity shrank below what is held."""

    def feasible(self, amount: int) -> bool:
        """Return whether ``amount`` would fit if nothing were held."""

    def fits(self, amounts: Sequence[int]) -> bool:
        """Return whether all ``amounts`` could be allocated now to different holders."""

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Allocate units. Raises CapacityError when they do not fit or the holder has some."""

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Restore an allocation made earlier, without checks."""

    def release(self, holder: str) -> Allocation | None:
        """Release and return the allocation of ``holder``; None: it has none."""

    def holders(self) -> dict[str, Allocation]:
        """Return the allocations by holder."""

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Apply a changed inventory; holders keep their allocations."""


def unobserved() -> None:
    """Do nothing: no order depends on the ledger (`ObservedLedger`)."""


@runtime_checkable
class ObservedLedger(Ledger, Protocol):
    """A ledger that calls back after a change, so that nodes are kept in the order of their load."""

    #: Called after each change of `free` or `capacity`.
    changed: Callable[[], None]


@runtime_checkable
class ResizableLedger(Ledger, Protocol):
    """A ledger that can change the amount of a holder."""

    def resize(self, holder: str, amount: int, prefer: Sequence[int] = ()) -> Allocation:
        """Change the amount of ``holder``; return its new allocation.

        Units that it holds are kept as far as possible; ``prefer`` names units to add first. Raises
        CapacityError without a change if that is impossible.
        """


@runtime_checkable
class LocalLedger(Ledger, Protocol):
    """A ledger of units with locality (NUMA)."""

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Allocate units, if possible close to ``near``, the former units of the holder's trajectory.

        ``near`` changes the choice of units, never whether they fit.
        """

    @property
    def groups(self) -> int:
        """Number of localities; below 2 ``near`` has no effect."""


@runtime_checkable
class SeatLedger(Ledger, Protocol):
    """A ledger of seats on units that many holders share: backends of a language model.

    An allocation has one unit, which it shares. With the same calls, the same units are chosen.
    """

    @property
    def names_units(self) -> bool:
        """Whether allocations name a unit; else only the sum counts."""

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Allocate seats on one unit, on one of ``near`` if they fit there, else on the least loaded one.

        ``near`` changes the choice of the unit, never whether they fit.
        """

    def remember(self) -> bytes:
        """Return the state that allocations do not determine, for a snapshot."""

    def recall(self, memory: bytes) -> None:
        """Restore the state of `remember`; called after all `adopt` calls."""


@runtime_checkable
class SharingLedger(Ledger, Protocol):
    """A ledger with room for light actions beside its capacity."""

    @property
    def has_room_beside(self) -> bool:
        """Whether there is such room, used or not."""

    def fits_beside(self, amounts: Sequence[int]) -> bool:
        """Return whether all ``amounts`` fit now beside the capacity: they take nothing from others."""


@runtime_checkable
class PacedLedger(Ledger, Protocol):
    """A ledger with limits over time. It has no clock: callers pass the time.

    `release` restores units only until `spend`: a spent grant counts for as long as its quotas define.
    """

    def advance(self, now: float) -> None:
        """Advance to ``now`` (journal time), which never runs backward."""

    def spend(self, holder: str) -> None:
        """Count the allocation of ``holder`` against the quotas, from now on."""

    def ready_at(self, amount: int) -> float | None:
        """Return the time at which ``amount`` fits without any release; None: it needs a release."""

    def uses(self, now: float) -> list[QuotaUse]:
        """Return the usage of each quota at ``now``, which is not before the last `advance`."""

    def apply_feedback(self, feedback: Feedback, granted_at: float, now: float) -> None:
        """Apply the report of an attempt that was granted at ``granted_at``."""

    def take_retry(self, attempts: int) -> str:
        """Take one retry from the budget after ``attempts``; return the reason of a refusal, else ''."""

    def degradations(self) -> list[Degradation]:
        """Return the degradations since the last call."""

    def hindrance(self, now: float) -> str:
        """Return what blocks calls now, apart from quotas, in words; empty: nothing."""

    @property
    def ceiling(self) -> int:
        """Present limit of adaptive concurrency; at most the capacity."""

    def remember(self) -> bytes:
        """Return the state that allocations do not determine, for a snapshot."""

    def recall(self, memory: bytes) -> None:
        """Restore the state of `remember`; called after all `adopt` calls."""


@runtime_checkable
class ShapedLedger(Protocol):
    """A ledger whose free units are more than a sum: chunks."""

    def operator(self, claims: Sequence[int]) -> Operator:
        """Return the operator over what is free beside ``claims``, which fit."""


@runtime_checkable
class ChunkedLedger(Protocol):
    """A ledger of GPUs, which says how its free ones lie together."""

    @property
    def counts(self) -> Counts:
        """Free chunks of 1, 2, 4 and 8 GPUs, each as large as it can be."""


LedgerFactory = Callable[[ResourceId, ResourceInventory], Ledger]


_Part = TypeVar("_Part")
_provided: Final[dict[tuple[type, type], bool]] = {}


def provides(ledger: Ledger, part: Callable[..., _Part]) -> TypeGuard[_Part]:
    """Return whether ``ledger`` has all that ``part``, one of the protocols above, asks for.

    Ledgers of one type are asked once: a check of a protocol costs as much as a grant.
    """
    kind = type(ledger), cast("type", part)
    if (known := _provided.get(kind)) is None:
        known = _provided[kind] = isinstance(ledger, kind[1])
    return known
