"""Every ledger obeys the rules of its port."""

from __future__ import annotations

from hypothesis import strategies as st

from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.ports import Ledger
from domain.resources import MILLI
from managers.cpu.ledger import CpuLedger
from managers.quota.ledger import CounterLedger
from tests.conformance.ledger import LedgerConformance

CPU_AMOUNTS = st.one_of(
    st.integers(1, MILLI - 1), st.integers(1, 9).map(lambda count: count * MILLI)
)


class TestCounterLedger(LedgerConformance):
    def make(self, inventory: ResourceInventory) -> Ledger:
        return CounterLedger(ResourceId("api:search"), inventory)


class TestCpuLedgerOfOneGroup(LedgerConformance):
    amounts = CPU_AMOUNTS

    def make(self, inventory: ResourceInventory) -> Ledger:
        return CpuLedger(ResourceId("cpu:n1"), inventory)


class TestCpuLedgerOfUnequalGroups(TestCpuLedgerOfOneGroup):
    """Cores in groups of 3, 1 and the rest, with scattered ids."""

    def inventory(self, units: int) -> ResourceInventory:
        cores = [7, 2, 9, 4, *range(20, 40)][:units]
        groups = (tuple(cores[:3]), tuple(cores[3:4]), tuple(cores[4:]))
        return ResourceInventory(units * MILLI, tuple(filter(None, groups)))
