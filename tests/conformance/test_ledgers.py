"""Every ledger obeys the rules of its port."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from domain.backends import BackendPool, Balance, LlmBackend
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Limits, Quota
from domain.ports import Ledger
from domain.resources import MILLI
from managers.cpu.ledger import CpuLedger
from managers.gpu.ledger import ChunkLedger
from managers.llm.fleet_ledger import SlotLedger
from managers.llm.ledger import LlmLedger
from managers.quota.ledger import ApiLedger, CounterLedger
from tests.conformance.ledger import LedgerConformance

CPU_AMOUNTS = st.one_of(
    st.integers(1, MILLI - 1), st.integers(1, 9).map(lambda count: count * MILLI)
)


class TestCounterLedger(LedgerConformance):
    def make(self, inventory: ResourceInventory) -> Ledger:
        return CounterLedger(ResourceId("api:search"), inventory)


class TestApiLedger(LedgerConformance):
    def make(self, inventory: ResourceInventory) -> Ledger:
        return ApiLedger(ResourceId("api:search"), inventory)


class TestApiLedgerWithQuotas(TestApiLedger):
    """As long as nothing was spent, quotas leave no trace."""

    def inventory(self, units: int) -> ResourceInventory:
        quotas = Quota(units * MILLI, window_seconds=10.0), Quota(units * MILLI)
        return ResourceInventory(units * MILLI, limits=Limits(quotas))


class TestSlotLedger(LedgerConformance):
    def make(self, inventory: ResourceInventory) -> Ledger:
        return SlotLedger(ResourceId("fleet:m#3"), inventory)

    def test_an_allocation_names_its_worker(self):
        ledger = self.make(ResourceInventory(2 * MILLI))

        assert ledger.allocate("a", MILLI).units == ledger.allocate("b", MILLI).units == (3,)

    def test_a_worker_that_gets_no_further_generation_keeps_its_holders(self):
        ledger = self.make(ResourceInventory(2 * MILLI))
        ledger.allocate("a", MILLI)
        ledger.resize_capacity(ResourceInventory(0))

        assert (ledger.free, ledger.fits((MILLI,)), set(ledger.holders())) == (-MILLI, False, {"a"})


class TestSlotLedgerOfAnEarlierResource(LedgerConformance):
    def make(self, inventory: ResourceInventory) -> Ledger:
        return SlotLedger(ResourceId("fleet:name"), inventory)

    def test_it_counts_a_plain_amount_as_before(self):
        ledger = self.make(ResourceInventory(MILLI))
        plain = CounterLedger(ResourceId("fleet:name"), ResourceInventory(MILLI))

        assert ledger.allocate("a", MILLI) == plain.allocate("a", MILLI)


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


class TestCpuLedgerBesideSharedCores(TestCpuLedgerOfOneGroup):
    """Two cores, beside the capacity, hold 1,000 of light amounts."""

    def inventory(self, units: int) -> ResourceInventory:
        cores = (tuple(range(2, 2 + units)),)
        return ResourceInventory(
            units * MILLI, cores, shared_units=(0, 1), shared_capacity=self.beside
        )

    beside = MILLI


class TestCpuLedgerWithYieldingActions(TestCpuLedgerOfOneGroup):
    """All cores hold 500 of light amounts beside their holders."""

    def inventory(self, units: int) -> ResourceInventory:
        return ResourceInventory(units * MILLI, (tuple(range(units)),), yielding_capacity=500)


class TestChunkLedgerOfOneNode(LedgerConformance):
    amounts = st.integers(1, 9).map(lambda count: count * MILLI)

    def make(self, inventory: ResourceInventory) -> Ledger:
        return ChunkLedger(ResourceId("gpu:n1"), inventory)


class TestChunkLedgerOfUnequalNodes(TestChunkLedgerOfOneNode):
    """Nodes of 3, 8 and what is left, with scattered ids and a GPU that failed."""

    units = 16

    def inventory(self, units: int) -> ResourceInventory:
        gpus = [7, 2, 9, *range(20, 40)][:units]
        groups = tuple(filter(None, (tuple(gpus[:3]), tuple(gpus[3:11]), tuple(gpus[11:]))))
        return ResourceInventory(units * MILLI, groups, unhealthy=(2, 25))


class TestLlmLedgerWithoutBackends(LedgerConformance):
    def make(self, inventory: ResourceInventory) -> Ledger:
        return LlmLedger(ResourceId("llm:policy"), inventory)


class TestLlmLedgerOfUnequalBackends(TestLlmLedgerWithoutBackends):
    """Backends of 3, 4 and what is left, one that is drained and one that failed, below a limit."""

    units = 12

    def inventory(self, units: int) -> ResourceInventory:
        seats = (min(units, 3), min(max(units - 3, 0), 4), max(units - 7, 0))
        backends = [
            LlmBackend(name=f"b{n}", address="http://b", seats=count, number=n)
            for n, count in enumerate((*seats, 5, 5), 1)
        ]
        backends[3] = replace(backends[3], drained=True)
        backends[4] = replace(backends[4], unhealthy="it does not answer")
        pool = BackendPool(tuple(backends), balance=self.balance)
        return ResourceInventory(11 * MILLI, backends=pool)

    balance = Balance.IN_FLIGHT


class TestLlmLedgerOfManyEqualBackends(TestLlmLedgerWithoutBackends):
    def inventory(self, units: int) -> ResourceInventory:
        backends = tuple(
            LlmBackend(
                name=f"b{n}", address="http://b", seats=units // 4 + (n < units % 4), number=n + 1
            )
            for n in range(4)
        )
        return ResourceInventory(1000 * MILLI, backends=BackendPool(backends))
