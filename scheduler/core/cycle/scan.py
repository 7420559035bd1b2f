"""Scan: admits actions in order, with blocked and claimed resources (design of the algorithm: §4.2).

A scan examines actions in the order in which they are served. The first action that is short of a
resource *blocks* it for all later ones, and *claims* what it needs of its other resources: later
actions may use those only beyond the claims. An action short of memory blocks memory alone and claims
nothing: environments hold memory for their whole life and end only by running. An action that waits
for time (a quota is used up) claims nothing either: a daily quota would idle what it claims.

A light amount that fits beside the capacity of a resource takes nothing that another action waits for. So
neither blocks nor claims of others hold it back: light actions never wait behind wide ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from domain.ids import ActionId, ResourceId
from domain.ports import SharingLedger
from domain.resources import MILLI
from scheduler.core.state.demand import Need
from scheduler.core.state.queues import WaitReason


class Fits(Protocol):
    """The part of a ledger that a scan uses."""

    def fits(self, amounts: Sequence[int]) -> bool:
        """Return whether all ``amounts`` could be allocated now, at once, to different holders."""


class Paces(Protocol):
    """The part of a paced ledger that a scan uses."""

    def ready_at(self, amount: int) -> float | None:
        """Return when ``amount`` fits without any release; None if it needs one."""


class Scan:
    """Resources that earlier actions of this scan have blocked and claimed."""

    __slots__ = ("beside", "blocked", "claims", "paced")

    def __init__(
        self,
        paced: Mapping[ResourceId, Paces] | None = None,
        beside: Mapping[ResourceId, SharingLedger] | None = None,
    ) -> None:
        #: Ledgers with room for light actions beside their capacity.
        self.beside: Mapping[ResourceId, SharingLedger] = beside or {}
        #: Ledgers that count over time.
        self.paced: Mapping[ResourceId, Paces] = paced or {}
        self.blocked: dict[ResourceId, ActionId] = {}
        self.claims: dict[ResourceId, list[int]] = {}

    def begin(self) -> None:
        """Begin a scan, of which no action has blocked or claimed anything yet."""
        self.blocked.clear()
        self.claims.clear()

    def admits(self, ledgers: Mapping[ResourceId, Fits], needs: Iterable[Need]) -> bool:
        """Return whether all ``needs`` fit beyond blocks and claims."""
        for resource, amount in needs:
            if amount < MILLI and self._fits_beside(resource, amount):
                continue
            if resource in self.blocked or self.short(ledgers, resource, amount):
                return False
        return True

    def _fits_beside(self, resource: ResourceId, amount: int) -> bool:
        """Return whether ``amount`` fits beside the capacity, and so takes nothing from others."""
        ledger = self.beside.get(resource)
        if ledger is None or amount >= MILLI:
            return False
        light = [each for each in self.claims.get(resource, ()) if each < MILLI]
        return ledger.fits_beside((*light, amount))

    def short(self, ledgers: Mapping[ResourceId, Fits], resource: ResourceId, amount: int) -> bool:
        """Return whether ``amount`` does not fit beyond the claims."""
        ledger = ledgers.get(resource)
        if ledger is None:
            return True
        claimed = self.claims.get(resource)
        return not ledger.fits((*claimed, amount) if claimed else (amount,))

    def claim(self, needs: Iterable[Need]) -> None:
        """Claim ``needs``, which fit, for a deferred action."""
        for resource, amount in needs:
            self.claims.setdefault(resource, []).append(amount)

    def refuse(
        self, ledgers: Mapping[ResourceId, Fits], action_id: ActionId, needs: list[Need]
    ) -> WaitReason:
        """Block the resources that an action is short of, claim the others, and return why it waits."""
        needs = [need for need in needs if not self._fits_beside(*need)]
        behind: list[ResourceId] = []
        short: list[ResourceId] = []
        for resource, amount in needs:
            if resource in self.blocked:
                behind.append(resource)
            elif self.short(ledgers, resource, amount):
                short.append(resource)
        memory = [r for r in (*behind, *short) if r.startswith("memory:")]
        if memory:
            behind = [r for r in behind if r in memory]
            short = [r for r in short if r in memory]
        for resource in short:
            self.blocked[resource] = action_id
        if not short:
            return WaitReason("behind", behind[0], self.blocked[behind[0]])
        if not memory and not self._only_time_helps(short, needs):
            for resource, amount in needs:
                if resource not in self.blocked:
                    self.claims.setdefault(resource, []).append(amount)
        return WaitReason("short_of", short[0])

    def _only_time_helps(self, short: list[ResourceId], needs: list[Need]) -> bool:
        """Return whether one of ``short`` becomes available by time alone, not by releases."""
        return any(
            resource in short
            and resource in self.paced
            and self.paced[resource].ready_at(amount) is not None
            for resource, amount in needs
        )
