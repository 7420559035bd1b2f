"""The backend that a lease gets, and what a ledger of seats remembers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.backends import BackendPool, Balance, LlmBackend
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.llm.ledger import LlmLedger


def inventory(
    *seats: int, balance: Balance = Balance.IN_FLIGHT, **change: object
) -> ResourceInventory:
    """Return backends 1, 2, … with so many seats."""
    backends = [
        LlmBackend(name=f"b{n}", address="http://b", seats=count, number=n)
        for n, count in enumerate(seats, 1)
    ]
    if change:
        backends[0] = replace(backends[0], **change)
    return ResourceInventory(1000 * MILLI, backends=BackendPool(tuple(backends), balance))


def a_ledger(*seats: int, **fields: Balance) -> LlmLedger:
    return LlmLedger(ResourceId("llm:policy"), inventory(*seats, **fields))


def take(ledger: LlmLedger, *holders: str) -> list[int]:
    """Take a seat for each holder; return the numbers of their backends."""
    return [ledger.allocate(holder, MILLI).units[0] for holder in holders]


def test_the_backend_with_fewest_seats_taken_is_chosen_the_first_one_of_equals():
    ledger = a_ledger(4, 4, 4)

    assert take(ledger, "a", "b", "c", "d") == [1, 2, 3, 1]
    ledger.release("b")
    assert take(ledger, "e") == [2]


def test_a_wide_holder_has_all_its_seats_on_one_backend():
    ledger = a_ledger(2, 2)
    take(ledger, "a", "b")

    assert ledger.free == 2 * MILLI
    assert not ledger.fits((2 * MILLI,))
    with pytest.raises(CapacityError, match="no backend"):
        ledger.allocate("wide", 2 * MILLI)


def test_former_units_are_preferred_and_never_decide_whether_seats_fit():
    ledger = a_ledger(1, 9)

    assert ledger.allocate("a", MILLI, near=(1,)).units == (1,)
    assert ledger.allocate("b", MILLI, near=(1,)).units == (2,)
    assert ledger.allocate("c", MILLI, near=(7,)).units == (2,)


def test_a_drained_backend_counts_what_it_holds_until_that_is_released():
    ledger = a_ledger(3, 3)
    take(ledger, "a", "b")
    ledger.resize_capacity(inventory(3, 3, drained=True))

    assert (ledger.capacity, ledger.free) == (4 * MILLI, 2 * MILLI)
    ledger.release("a")
    assert (ledger.capacity, ledger.free) == (3 * MILLI, 2 * MILLI)


def test_a_backend_that_works_again_starts_at_the_least_load_of_the_others():
    ledger = a_ledger(20, 20)
    ledger.resize_capacity(inventory(20, 20, unhealthy="gone"))
    take(ledger, *(f"a{n}" for n in range(8)))
    ledger.resize_capacity(inventory(20, 20))

    assert sorted(take(ledger, "x", "y")) == [1, 2]


def test_a_head_start_survives_a_restart():
    ledger = a_ledger(20)
    take(ledger, *(f"a{n}" for n in range(8)))
    ledger.resize_capacity(inventory(20, 20))
    restored = LlmLedger(ResourceId("llm:policy"), inventory(20, 20))
    for holder, allocation in ledger.holders().items():
        restored.adopt(holder, allocation)
    restored.recall(ledger.remember())

    names = [f"b{n}" for n in range(6)]
    assert take(restored, *names) == take(ledger, *names)


def test_the_counts_of_the_paper_survive_a_restart():
    ledger = a_ledger(9, 9, balance=Balance.PAPER)
    for name in ("a", "b", "c"):
        take(ledger, name)
        ledger.release(name)
    restored = a_ledger(9, 9, balance=Balance.PAPER)
    restored.recall(ledger.remember())

    assert take(restored, "d") == take(ledger, "d") == [2]


def test_a_backend_added_under_the_balance_of_the_paper_does_not_take_all_new_leases():
    ledger = a_ledger(99, 99, balance=Balance.PAPER)
    take(ledger, *(f"a{n}" for n in range(20)))
    ledger.resize_capacity(inventory(99, 99, 99, balance=Balance.PAPER))

    got = take(ledger, *(f"b{n}" for n in range(9)))

    assert [got.count(number) for number in (1, 2, 3)] == [3, 3, 3]
