"""Every fast path decides as its plain twin, and as trying everything does."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from domain.operators import UnitsOperator
from domain.resources import MILLI
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.dp_arrange import Arranger, Extras, Marginal, Table, seconds_of
from scheduler.core.policies.eviction import Estimator, evict
from scheduler.core.policies.group import Group
from tests.oracles import literal
from tests.oracles.brute import best_allocation
from tests.tiers import by_tier
from tests.unit.policies.groups import actions, by_hand, choices, convex_actions, groups, plain

TRIED = settings(
    max_examples=by_tier(15, 100, 10_000),
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
DEPTHS = st.integers(1, 4)
CONVEX = groups(convex_actions)
ANY = groups() | CONVEX


def decides_as_the_twin(group: Group, depth: int) -> None:
    """Compare Algorithm 1 with its transcription: who goes, with what, and the objective."""
    twin = by_hand(group, depth)

    arrangement = evict(group, depth)

    assert arrangement.objective_seconds == pytest.approx(twin.objective, rel=1e-9, abs=1e-9)
    assert [units // MILLI for units in arrangement.units] == twin.units


def keeps_the_constraints(group: Group, depth: int) -> None:
    """Rules 2 and 3 of the package."""
    arrangement = evict(group, depth)

    assert 1 <= len(arrangement.units) <= len(group.candidates)
    assert sum(arrangement.units) <= (group.operator.total or 0)
    going = list(zip(group.candidates, arrangement.units, strict=False))
    assert all(units in each.units for each, units in going)
    expected = [each.seconds[each.units.index(units)] for each, units in going]
    assert list(arrangement.ends) == expected
    tried = [trial.objective_seconds for trial in arrangement.trials]
    falls = [each for each in tried if each is not None]
    assert falls == sorted(falls, reverse=True)
    assert arrangement.objective_seconds == falls[-1]


def arranges_as_trying_everything(candidates: list[Choices], free: int) -> None:
    """Compare every arranger, on every prefix, with every allocation there is."""
    operator = UnitsOperator(free * MILLI)
    arrangers: list[Arranger] = [Table(candidates, operator)]
    arrangers += [Extras(candidates, free * MILLI, evictions) for evictions in (0, 12)]
    steps = {each.step for each in candidates if len(each) > 1}
    if len(steps) <= 1 and all(each.convex for each in candidates):
        arrangers.append(Marginal(candidates, free * MILLI, steps.pop() if steps else 1))
    for prefix in range(len(candidates), 0, -1):
        first = candidates[:prefix]
        seconds, units = best_allocation([plain(each) for each in first], free)
        for arranged in arrangers:
            chosen = arranged.chosen(prefix)
            assert arranged.best(prefix) == pytest.approx(seconds, rel=1e-9, abs=1e-9)
            assert sum(seconds_of(first, chosen)) == pytest.approx(seconds, rel=1e-9, abs=1e-9)
            assert [
                each.units[k] // MILLI for each, k in zip(first, chosen, strict=True)
            ] == units, type(arranged)


FEW = st.lists(actions(4) | convex_actions(4), min_size=1, max_size=4).map(
    lambda some: [choices(each) for each in some]
)
FEW_CONVEX = st.lists(convex_actions(5), min_size=1, max_size=4).map(
    lambda some: [choices(each) for each in some]
)


@TRIED
@given(ANY, DEPTHS)
def test_eviction_decides_as_its_transcription(group, depth):
    decides_as_the_twin(group, depth)


@TRIED
@given(ANY, st.lists(st.integers(0, 12), min_size=6, max_size=6), DEPTHS)
def test_eviction_decides_as_its_transcription_where_shares_cut_the_counts(group, most, depth):
    whole = [plain(each) for each in group.candidates]
    group.candidates = [
        each.capped(units * MILLI) for each, units in zip(group.candidates, most, strict=False)
    ]

    decides_as_the_twin(group, depth)
    keeps_the_constraints(group, depth)
    for each, units, before in zip(group.candidates, most, whole, strict=False):
        kept = [count for count in before.units if count <= units] or before.units[:1]
        assert plain(each) == literal.Action(kept, before.seconds[: len(kept)])


@TRIED
@given(FEW | FEW_CONVEX, st.lists(st.integers(0, 6), min_size=4, max_size=4), st.integers(0, 12))
def test_every_arranger_finds_what_trying_everything_finds_of_what_shares_leave(
    candidates, most, more
):
    cut = [each.capped(n * MILLI) for each, n in zip(candidates, most, strict=False)]
    arranges_as_trying_everything(cut, sum(each.smallest for each in cut) // MILLI + more)


@TRIED
@given(ANY, DEPTHS)
def test_an_arrangement_keeps_the_constraints(group, depth):
    keeps_the_constraints(group, depth)


@TRIED
@given(FEW | FEW_CONVEX, st.integers(0, 12))
def test_every_arranger_finds_what_trying_everything_finds(candidates, more):
    least = sum(each.smallest for each in candidates) // MILLI
    arranges_as_trying_everything(candidates, least + more)


@TRIED
@given(
    st.lists(actions(), min_size=1, max_size=12), st.lists(st.floats(0.0, 50.0), min_size=1), DEPTHS
)
def test_an_estimate_is_what_its_transcription_gives_or_is_given_up_above_its_bound(
    queue, ends, depth
):
    fast = Estimator([choices(each) for each in queue], depth)
    grained = [plain(choices(each)) for each in queue]
    for first in range(len(queue)):
        whole = literal.estimate(ends, grained[first:], depth)
        assert fast.estimate(ends, first) == pytest.approx(whole, rel=1e-9, abs=1e-9)
        assert fast.estimate(ends, first, whole * 1.001) == pytest.approx(whole, rel=1e-9)
        assert fast.estimate(ends, first, whole * 0.999) == float("inf")
