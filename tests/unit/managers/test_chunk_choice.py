"""Choice of a chunk without a restore under way: on one GPU restores happen one after the other."""

from __future__ import annotations

from domain.allocation import Home
from domain.resources import MILLI
from managers.gpu.ledger import ChunkLedger
from tests.unit.managers.test_chunk_ledger import GIB, a_ledger

SMALL = 20 * GIB


def coming(*nodes: int) -> tuple[ChunkLedger, Home]:
    """Return a ledger with one small service on its way, and where to."""
    ledger = a_ledger(*nodes, memory=80 * GIB)
    home = ledger.prefetch("a", MILLI, SMALL)
    assert home is not None
    return ledger, home


def test_another_service_goes_elsewhere_although_there_is_room() -> None:
    ledger, home = coming(2)

    assert home.units == (0,)
    assert ledger.host("x", MILLI, "b", SMALL).units == (1,)


def test_a_program_of_its_own_goes_elsewhere_too() -> None:
    ledger, _ = coming(2)

    assert ledger.host("x", MILLI).units == (1,)


def test_a_larger_block_is_split_for_a_grant_and_not_for_what_counts_decided() -> None:
    ledger = a_ledger(4, memory=80 * GIB)
    ledger.take("there", (1,))
    assert ledger.prefetch("a", MILLI, SMALL) == Home("a", (0,))

    assert ledger.allocate("x", MILLI, "b", SMALL).units == (0,)
    ledger.release("x")
    assert ledger.host("x", MILLI, "b", SMALL).units == (2,)


def test_a_chunk_that_has_such_a_gpu_is_avoided_as_a_whole() -> None:
    ledger, _ = coming(4)

    assert ledger.host("x", 2 * MILLI, "b", SMALL).units == (2, 3)


def test_the_service_itself_goes_to_where_it_is_on_its_way() -> None:
    ledger, home = coming(2)

    assert ledger.host("x", MILLI, "a", SMALL).units == home.units


def test_it_goes_there_when_all_others_are_held_or_failed() -> None:
    ledger, home = coming(2)
    ledger.mark_failed("b", (1,))
    assert ledger.host("x", MILLI, "b", SMALL).units == home.units
    assert ledger.host("y", MILLI, "b", SMALL).units == (1,)


def test_it_goes_there_once_the_other_one_has_arrived_or_is_gone() -> None:
    for ended in (ChunkLedger.finish_prefetch, ChunkLedger.drop):
        ledger, home = coming(2)
        ended(ledger, *home)
        assert ledger.host("x", MILLI, "b", SMALL).units == (0,)


def test_restores_under_way_are_part_of_the_snapshot() -> None:
    ledger, _ = coming(2)
    again = a_ledger(2, memory=80 * GIB)
    again.recall(ledger.remember())

    assert again.host("x", MILLI, "b", SMALL).units == (1,)
