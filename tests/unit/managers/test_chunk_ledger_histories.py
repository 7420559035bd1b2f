"""The ledger of chunks against a model of sets, over random histories."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.gpu.ledger import ChunkLedger
from tests.oracles.chunks import Model
from tests.tiers import by_tier

#: Service → how many it takes at once.
SEATS = {"a": 1, "b": 3}
SERVICES = st.sampled_from(sorted(SEATS))
#: Mostly sizes that meet again, so that services find their chunks.
GPUS = st.sampled_from([1, 2, 2, 2, 3, 4, 8])
NODES = ([[7, 2, 9, 4, 0, 1, 3, 5], [20, 21, 22], list(range(30, 42))], [list(range(8))], [[0, 1]])
MEMORY = 10


class Chunks(RuleBasedStateMachine):
    """The same steps on the ledger and on the model."""

    @initialize(nodes=st.sampled_from(NODES))
    def start(self, nodes):
        self.model = Model(nodes, MEMORY)
        self.ledger = self.fresh()
        self.number = 0
        #: Holder → the service that works for it, of those who came by `host` or `join`.
        self.guests = {}
        #: Holders on whose chunk a GPU failed.
        self.failed = set()

    def inventory(self):
        gpus = sum(map(len, self.model.nodes))
        groups = tuple(map(tuple, self.model.nodes))
        unhealthy = tuple(sorted(self.model.unhealthy))
        return ResourceInventory(gpus * MILLI, groups, unhealthy=unhealthy, memory_bytes=MEMORY)

    def fresh(self):
        return ChunkLedger(ResourceId("gpu:n1"), self.inventory())

    @rule(gpus=GPUS, service=SERVICES, memory=st.integers(1, MEMORY), load=st.booleans())
    def allocate(self, gpus, service, memory, load):
        self.number += 1
        holder = f"h{self.number}"
        best = self.model.best(gpus, service, memory)
        if best is not None and len(best) * MILLI > self.ledger.free:
            best = None  # GPUs failed under their holders: the sum says no until they are back
        assert self.ledger.fits((gpus * MILLI,)) == (best is not None)
        if best is None:
            return
        before = self.seen()
        allocation = self.ledger.allocate(holder, gpus * MILLI, service, memory)
        assert (allocation.units, allocation.amount) == (best, len(best) * MILLI)
        if not load:
            self.ledger.release(holder)
            assert self.seen() == before
            return
        self.model.held[holder] = best
        occupied = self.ledger.occupy(holder, service, memory)
        evicted = [each.service for each in occupied.evicted]
        assert (occupied.cached, evicted) == self.model.occupy(holder, service, memory)

    @rule(gpus=GPUS, service=SERVICES, memory=st.integers(1, MEMORY))
    def host(self, gpus, service, memory):
        if not self.ledger.fits((gpus * MILLI,)):
            return
        self.number += 1
        holder, seats = f"h{self.number}", SEATS[service]
        working = {unit for have in self.ledger.holders().values() for unit in have.units}
        given = self.ledger.host(holder, gpus * MILLI, service, memory, seats=seats)
        assert given.shared == (seats > 1)
        assert not working.intersection(given.units)
        self.model.held[holder] = given.units
        assert self.model.occupy(holder, service, memory)[0] == given.hosting.cached
        self.guests[holder] = service

    @rule(service=SERVICES)
    def join(self, service):
        self.number += 1
        holder, free, counts = f"h{self.number}", self.ledger.free, self.ledger.counts
        homes = self.ledger.seats(service, SEATS[service])
        if not homes:
            return
        given = self.ledger.join(holder, homes[0], SEATS[service])
        assert given.hosting.cached
        assert (self.ledger.free, self.ledger.counts) == (free, counts)
        self.model.held[holder] = given.units
        self.model.join(holder, service)
        self.guests[holder] = service

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def release(self, data):
        holder = data.draw(st.sampled_from(sorted(self.model.held)))
        assert self.ledger.release(holder).units == self.model.held[holder]
        self.model.release(holder)
        self.guests.pop(holder, None)

    @rule(data=st.data())
    def a_gpu_fails(self, data):
        unit = data.draw(st.sampled_from([each for node in self.model.nodes for each in node]))
        self.model.fail(unit)
        self.failed |= {holder for holder in self.guests if unit in self.model.held[holder]}
        self.ledger.resize_capacity(self.inventory())

    @rule()
    def all_gpus_are_healthy_again(self):
        self.model.unhealthy.clear()
        self.ledger.resize_capacity(self.inventory())

    @rule()
    def the_ledger_is_rebuilt(self):
        memory, holders, before = self.ledger.remember(), self.ledger.holders(), self.seen()
        self.ledger = self.fresh()
        for holder, allocation in reversed(holders.items()):
            self.ledger.adopt(holder, allocation)
        self.ledger.recall(memory)
        assert self.ledger.remember() == memory
        assert self.seen() == before

    def seen(self):
        residents = [(each.service, each.units, each.used) for each in self.ledger.residents()]
        return self.ledger.counts, self.ledger.free, self.ledger.holders(), residents

    @invariant()
    def both_agree(self):
        assert self.ledger.counts == self.model.counts()
        assert {holder: have.units for holder, have in self.ledger.holders().items()} == (
            self.model.held
        )
        assert [(each.service, each.units) for each in self.ledger.residents()] == [
            (each.service, each.units)
            for each in sorted(self.model.cached, key=lambda each: each.used)
        ]

    @invariant()
    def nothing_overlaps_leaks_or_is_overfull(self):
        alone = {holder: have for holder, have in self.ledger.holders().items() if not have.shared}
        held = [unit for have in alone.values() for unit in have.units]
        together = {have.units for h, have in self.ledger.holders().items() if h not in alone}
        held += [unit for units in together for unit in units]
        assert len(held) == len(set(held))
        free = sum(n * size for n, size in zip(self.ledger.counts, (1, 2, 4, 8), strict=True))
        gone = self.model.unhealthy | set(held)
        assert free + len(gone) == sum(map(len, self.model.nodes))
        assert all(self.model.room(unit) >= 0 for node in self.model.nodes for unit in node)

    @invariant()
    def no_service_is_evicted_under_a_call_and_no_chunk_exceeds_its_memory(self):
        where = {holder: self.model.held[holder] for holder in self.guests}
        there = {(each.service, each.units) for each in self.ledger.residents()}
        for holder, service in self.guests.items():
            assert (service, where[holder]) in there or holder in self.failed
        seated = Counter((service, where[holder]) for holder, service in self.guests.items())
        assert all(count <= SEATS[service] for (service, _), count in seated.items())


TestChunks = Chunks.TestCase
TestChunks.settings = settings(
    max_examples=by_tier(10, 50, 1000), stateful_step_count=30, deadline=None
)
