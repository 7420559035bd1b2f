"""Chunks of GPUs are arranged as well as trying everything does."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings

from domain.chunks import SIZES, TOP, amount_at, beside, fit, gpus_of, level_of, without
from domain.operators import ChunksOperator
from domain.resources import MILLI
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.dp_arrange import Table, Upgrades, arranger, seconds_of
from scheduler.core.policies.eviction import evict
from scheduler.core.policies.group import Group
from tests.oracles import literal
from tests.oracles.chunks import best_chunks, pack
from tests.tiers import by_tier
from tests.unit.policies.groups import SECONDS, choices, plain

TRIED = settings(
    max_examples=by_tier(15, 100, 10_000),
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
COUNTS = st.tuples(*(st.integers(0, most) for most in (3, 2, 2, 2)))
LEVELS = st.lists(st.integers(0, TOP), max_size=6)


@st.composite
def services(draw: st.DrawFn) -> literal.Action:
    """Draw an action with some degrees of parallelism, powers of two or not."""
    units = sorted(draw(st.sets(st.sampled_from([1, 2, 2, 3, 4, 4, 5, 8]), min_size=1, max_size=4)))
    return literal.Action(units, draw(st.lists(SECONDS, min_size=len(units), max_size=len(units))))


FEW = st.lists(services(), min_size=1, max_size=5).map(
    lambda some: [choices(each) for each in some]
)


def wanted(some: list[Choices], chosen: list[int]) -> list[int]:
    return [each.units[k] for each, k in zip(some, chosen, strict=False)]


def arranges_as_trying_everything(candidates: list[Choices], free: tuple[int, int, int, int]):
    operator = ChunksOperator(free)
    table, greedy = Table(candidates, operator), Upgrades(candidates, operator)
    for prefix in range(len(candidates), 0, -1):
        first = candidates[:prefix]
        seconds = best_chunks([plain(each) for each in first], free)
        assert table.best(prefix) == pytest.approx(seconds, rel=1e-9, abs=1e-9)
        assert greedy.best(prefix) >= seconds - 1e-9
        if seconds == float("inf"):
            assert greedy.best(prefix) == seconds
            continue
        for arranged in (table, greedy):
            chosen = arranged.chosen(prefix)
            assert sum(seconds_of(first, chosen)) == pytest.approx(
                arranged.best(prefix), rel=1e-9, abs=1e-9
            )
            assert pack(free, [amount // MILLI for amount in wanted(first, chosen)])


@TRIED
@given(FEW, COUNTS)
def test_the_table_of_chunks_finds_what_trying_everything_finds(candidates, free):
    arranges_as_trying_everything(candidates, free)


@TRIED
@given(COUNTS, LEVELS)
def test_levels_fit_when_a_packing_exists(free, levels):
    packs = pack(free, [SIZES[level] for level in levels])
    amounts = [amount_at(level) for level in levels]

    assert fit(free, levels) == packs
    assert ChunksOperator(free).holds(amounts) == packs


@TRIED
@given(COUNTS, LEVELS)
def test_taking_the_smallest_sufficient_chunk_serves_any_order(free, levels):
    assume(fit(free, levels))
    left = free
    for at, level in enumerate(levels):
        left = without(left, level)
        assert left is not None
        assert fit(left, levels[at + 1 :])
    assert gpus_of(left) == gpus_of(free) - sum(SIZES[level] for level in levels)
    assert left == beside(free, [amount_at(level) for level in levels])


@TRIED
@given(COUNTS)
def test_states_are_what_can_come_about_and_the_last_one_is_all(free):
    operator = ChunksOperator(free)
    amounts = operator.amounts.tolist()
    assert amounts[-1] == gpus_of(free) * MILLI
    assert sorted(amounts) == amounts
    assert len(amounts) <= operator.states
    left = operator.previous(tuple(amount_at(level) for level in range(TOP + 1)))
    for level in range(TOP + 1):
        for state, after in enumerate(left[level].tolist()):
            if after < 0:
                continue
            assert amounts[state] - amounts[after] == amount_at(level)


@TRIED
@given(FEW, st.lists(services(), max_size=4), COUNTS)
def test_eviction_works_on_chunks_as_on_units(candidates, queue, free):
    smallest = [each.smallest // MILLI for each in candidates]
    assume(pack(free, smallest))
    group = Group(
        "gpu:g1", ChunksOperator(free), candidates, [choices(each) for each in queue], [3.0]
    )

    arrangement = evict(group, 2)

    assert 1 <= len(arrangement.units) <= len(candidates)
    assert pack(free, [amount // MILLI for amount in arrangement.units])


@pytest.mark.parametrize("amount", [0, 500, 1500, 9000, -1000], ids=str)
def test_an_amount_that_is_no_chunk_fits_no_state(amount):
    operator = ChunksOperator((1, 1, 1, 1))
    assert level_of(amount) is None
    assert not operator.holds([amount])
    assert set(operator.previous((amount,))[0].tolist()) == {-1}


def test_very_many_chunks_in_pieces_are_arranged_without_a_table():
    operator = ChunksOperator((500, 400, 300, 200))
    perfect = Choices((MILLI, 2 * MILLI, 8 * MILLI), [8.0, 4.0, 1.0])

    arranged = arranger([perfect] * 64, operator)

    assert isinstance(arranged, Upgrades)
    assert arranged.best(64) == 64.0
