"""Licences of a commercial tool: a node has a number of seats, an action takes whole ones.

An action asks for them with ``"cost": {"cpu": 2, "license": 1}``; a node declares them with the
setting ``licenses``. There is no driver, since nothing has to be done around an action.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.allocation import Allocation
from domain.errors import CapacityError, InvalidRequest
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, Manager
from domain.resources import MILLI
from managers.quota.ledger import CounterLedger


class LicenseLedger(CounterLedger):
    """Counts seats; half a seat does not exist."""

    def feasible(self, amount: int) -> bool:
        return amount % MILLI == 0 and super().feasible(amount)

    def fits(self, amounts: Sequence[int]) -> bool:
        return all(amount % MILLI == 0 for amount in amounts) and super().fits(amounts)

    def allocate(self, holder: str, amount: int) -> Allocation:
        if amount % MILLI:
            raise CapacityError("licences are whole")
        return super().allocate(holder, amount)


def probe(context: DriverContext) -> ResourceInventory:
    """Say how many seats the operator of this node declared."""
    declared = context.settings.get("licenses", "0")
    if not declared.isdecimal():
        raise InvalidRequest(f"licenses is {declared!r}: give a whole number")
    return ResourceInventory(int(declared) * MILLI)


MANAGER = Manager("license", LicenseLedger, probe=probe, description="seats of a commercial tool")
