"""The ledger of chunks: choice of the GPUs of an action, and of services to evict for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.gpu.ledger import ChunkLedger

GIB = 2**30


def a_ledger(*nodes: int, unhealthy: tuple[int, ...] = (), memory: int = 0) -> ChunkLedger:
    """Return a ledger of nodes with so many GPUs each, numbered through."""
    groups, first = [], 0
    for count in nodes or (8,):
        groups.append(tuple(range(first, first + count)))
        first += count
    inventory = ResourceInventory(
        first * MILLI, tuple(groups), unhealthy=unhealthy, memory_bytes=memory
    )
    return ChunkLedger(ResourceId("gpu:n1"), inventory)


def cache(ledger: ChunkLedger, service: str, units: tuple[int, ...], memory: int = 0) -> None:
    ledger.take("filler", units)
    ledger.occupy("filler", service, memory)
    ledger.release("filler")


def test_a_fresh_node_is_one_chunk_that_is_split_on_the_way_down() -> None:
    ledger = a_ledger(8)
    assert ledger.counts == (0, 0, 0, 1)
    assert ledger.allocate("a", MILLI).units == (0,)
    assert ledger.counts == (1, 1, 1, 0)
    ledger.release("a")
    assert ledger.counts == (0, 0, 0, 1)


def test_a_count_between_sizes_takes_and_counts_the_next_larger_chunk() -> None:
    ledger = a_ledger(8)
    allocation = ledger.allocate("a", 3 * MILLI)
    assert (allocation.amount, allocation.units) == (4 * MILLI, (0, 1, 2, 3))
    assert ledger.free == 4 * MILLI


def test_a_chunk_is_cut_from_the_smallest_sufficient_block() -> None:
    ledger = a_ledger(8, 8)
    ledger.take("there", (8, 9, 10, 11))
    ledger.take("and there", (12, 13))
    assert ledger.allocate("a", 2 * MILLI).units == (14, 15)
    assert ledger.allocate("b", 4 * MILLI).units == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("gpus", "counts"),
    [(1, (1, 0, 0, 0)), (3, (1, 1, 0, 0)), (6, (0, 1, 1, 0)), (12, (0, 0, 1, 1))],
    ids=str,
)
def test_a_node_of_any_size_is_cut_into_aligned_chunks(gpus, counts) -> None:
    assert a_ledger(gpus).counts == counts


def test_chunks_never_reach_over_two_nodes() -> None:
    ledger = a_ledger(2, 2)
    assert not ledger.feasible(4 * MILLI)
    assert ledger.free == 4 * MILLI


def test_unhealthy_gpus_are_skipped_and_count_for_nothing() -> None:
    ledger = a_ledger(8, unhealthy=(1,))
    assert ledger.capacity == 7 * MILLI
    assert ledger.counts == (1, 1, 1, 0)
    assert ledger.allocate("a", 4 * MILLI).units == (4, 5, 6, 7)
    assert ledger.allocate("b", 2 * MILLI).units == (2, 3)
    assert not ledger.fits((2 * MILLI,))


def test_a_gpu_that_fails_under_its_holder_is_not_released_with_it() -> None:
    ledger = a_ledger(4)
    ledger.allocate("a", 2 * MILLI)
    ledger.occupy("a", "reward")
    ledger.resize_capacity(ResourceInventory(4 * MILLI, ((0, 1, 2, 3),), unhealthy=(1,)))
    assert ledger.residents() == []
    ledger.release("a")
    assert ledger.counts == (1, 1, 0, 0)


def test_among_equal_places_the_one_that_caches_the_service_is_taken() -> None:
    ledger = a_ledger(8)
    cache(ledger, "reward", (4, 5))
    assert ledger.allocate("a", 2 * MILLI, "reward").units == (4, 5)
    assert ledger.occupy("a", "reward").cached


def test_a_service_of_another_size_is_another_service() -> None:
    ledger = a_ledger(8)
    cache(ledger, "reward", (4, 5))
    allocation = ledger.allocate("a", 4 * MILLI, "reward")
    assert allocation.units == (0, 1, 2, 3)
    assert not ledger.occupy("a", "reward").cached


def test_the_smallest_block_is_preferred_to_a_cached_one_in_a_larger_block() -> None:
    """As the paper has it; who would rather wait or split asks for a place by `take`."""
    ledger = a_ledger(8, 2)
    cache(ledger, "reward", (4, 5))
    assert ledger.allocate("a", 2 * MILLI, "reward").units == (8, 9)


def test_an_empty_place_is_used_before_the_least_recently_used_one() -> None:
    ledger = a_ledger(8)
    for service, units in (("a", (0, 1)), ("b", (2, 3)), ("c", (6, 7))):
        cache(ledger, service, units)
    assert ledger.allocate("x", 2 * MILLI, "d").units == (4, 5)
    ledger.occupy("x", "d")
    ledger.take("y", (6, 7))
    assert ledger.allocate("z", 2 * MILLI, "e").units == (0, 1)
    assert [each.service for each in ledger.occupy("z", "e").evicted] == ["a"]


def test_use_makes_a_service_the_last_to_go() -> None:
    ledger = a_ledger(4)
    cache(ledger, "a", (0, 1))
    cache(ledger, "b", (2, 3))
    cache(ledger, "a", (0, 1))
    assert ledger.allocate("x", 2 * MILLI, "c").units == (2, 3)


def test_the_cost_of_an_eviction_is_whatever_is_asked_for() -> None:
    inventory = ResourceInventory(4 * MILLI)
    dear = {"a": 9.0, "b": 1.0}
    ledger = ChunkLedger(ResourceId("gpu:n1"), inventory, lambda one: dear[one.service])
    cache(ledger, "b", (2, 3))
    cache(ledger, "a", (0, 1))
    assert ledger.allocate("x", 2 * MILLI, "c").units == (2, 3)


def test_services_share_a_gpu_while_their_memory_fits() -> None:
    ledger = a_ledger(1, memory=80 * GIB)
    for service, memory in (("a", 30), ("b", 30), ("c", 10)):
        cache(ledger, service, (0,), memory * GIB)
    assert [each.service for each in ledger.residents()] == ["a", "b", "c"]
    ledger.allocate("x", MILLI, "d", 35 * GIB)
    assert [each.service for each in ledger.occupy("x", "d", 35 * GIB).evicted] == ["a"]


def test_a_service_leaves_whole_even_when_one_of_its_gpus_is_needed() -> None:
    ledger = a_ledger(2)
    cache(ledger, "wide", (0, 1))
    ledger.allocate("x", MILLI)
    (gone,) = ledger.occupy("x", "narrow").evicted
    assert (gone.service, gone.units) == ("wide", (0, 1))
    assert [each.service for each in ledger.residents()] == ["narrow"]


def test_a_service_larger_than_a_gpu_is_refused_and_none_is_evicted() -> None:
    ledger = a_ledger(1, memory=80 * GIB)
    cache(ledger, "a", (0,), 80 * GIB)
    ledger.allocate("x", MILLI)
    with pytest.raises(CapacityError, match="needs 85899345921 bytes of each GPU"):
        ledger.occupy("x", "b", 80 * GIB + 1)
    assert [each.service for each in ledger.residents()] == ["a"]


def test_a_holder_with_its_own_program_finds_the_memory_empty() -> None:
    ledger = a_ledger(2, memory=80 * GIB)
    cache(ledger, "a", (0,), GIB)
    cache(ledger, "b", (1,), GIB)
    ledger.allocate("x", 2 * MILLI)
    assert [each.service for each in ledger.vacate("x")] == ["a", "b"]
    assert ledger.residents() == []


def test_an_allocation_that_is_taken_back_evicts_no_service() -> None:
    ledger = a_ledger(2)
    cache(ledger, "a", (0, 1))
    ledger.allocate("x", 2 * MILLI)
    ledger.release("x")
    assert ledger.allocate("y", 2 * MILLI, "a").units == (0, 1)
    assert ledger.occupy("y", "a").cached


def test_a_crashed_service_is_no_longer_cached() -> None:
    ledger = a_ledger(2)
    cache(ledger, "a", (0, 1))
    ledger.drop("a", (0, 1))
    ledger.drop("a", (0, 1))
    assert ledger.residents() == []


@pytest.mark.parametrize(
    "units", [(), (1, 2), (0, 2), (0, 1, 2), (9,), (1, 0), (6, 7)], ids=lambda each: str(each)
)
def test_only_a_free_chunk_can_be_asked_for_by_name(units) -> None:
    ledger = a_ledger(8)
    ledger.take("there", (6,))
    with pytest.raises(CapacityError):
        ledger.take("x", units)
    assert list(ledger.holders()) == ["there"]


def test_an_adopted_holder_of_gpus_that_are_no_chunk_keeps_them_and_cannot_load_a_service() -> None:
    donor, ledger = a_ledger(4), a_ledger(2, 2)
    ledger.adopt("old", donor.allocate("old", 4 * MILLI))
    assert ledger.free == 0
    with pytest.raises(CapacityError):
        ledger.occupy("old", "reward")
    ledger.release("old")
    assert ledger.counts == (0, 2, 0, 0)


@pytest.mark.parametrize("amount", [0, -1000, 500, 1500, 9000], ids=str)
def test_an_amount_that_is_no_chunk_never_fits(amount: int) -> None:
    ledger = a_ledger(8, 8)
    assert not ledger.feasible(amount)
    assert not ledger.fits((amount,))
    with pytest.raises(CapacityError):
        ledger.allocate("a", amount)


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 7)), max_size=10),
    st.sets(st.integers(0, 7), max_size=6),
)
def test_a_service_goes_where_it_did_not_fail_as_long_as_there_is_such_a_chunk(
    size: int, failures: list[tuple[int, int]], held: set[int]
) -> None:
    """Against all aligned chunks, looked at one by one."""
    ledger = a_ledger(8, memory=80)
    failed = {
        tuple(range(place % (8 // n) * n, (place % (8 // n) + 1) * n)) for n, place in failures
    }
    for units in failed:
        ledger.mark_failed("a", units)
    for unit in held:
        ledger.take(f"h{unit}", (unit,))
    chunks = {tuple(range(first, first + size)) for first in range(0, 8, size)}
    free = {units for units in chunks if not held & set(units)}

    assert ledger.accepts("a", size * MILLI, now=False) == bool(chunks - failed)
    assert ledger.accepts("a", size * MILLI, now=True) == bool(free - failed)
    if free:
        given_units = ledger.host("x", size * MILLI, "a", 50).units
        assert given_units in (free - failed or free)
