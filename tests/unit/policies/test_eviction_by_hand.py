"""Small groups, worked out on paper."""

from __future__ import annotations

import pytest

from domain.elasticity import parse_elasticity
from domain.operators import UnitsOperator
from scheduler.core.policies.balanced import Balanced
from scheduler.core.policies.choices import elastic
from scheduler.core.policies.dp_arrange import Table
from scheduler.core.policies.eviction import evict
from scheduler.core.policies.paper import Paper
from tests.oracles.literal import Action
from tests.unit.policies.groups import a_group, choices

#: Twice as fast on two cores.
PERFECT = Action([1, 2], [10.0, 5.0])


def test_an_action_alone_gets_what_it_is_fastest_with():
    """10 s on one core; 10 / (0.8 · 4) = 3.125 s on four."""
    profile = parse_elasticity({"1": 1.0, "2": 0.95, "4": 0.8})
    group = a_group([PERFECT], running=[2.0, 5.0])
    group.candidates = [elastic((1000, 2000, 4000), 10.0, profile)]

    arrangement = evict(group, 2)

    assert (arrangement.units, arrangement.objective_seconds) == ([4000], 3.125)


def test_the_last_one_is_evicted_when_waiting_is_shorter_than_sharing():
    """Two cores. Shared: 10 + 10 s. One after the other on both: 5 + 10 s, which depth 2 sees."""
    arrangement = evict(a_group([PERFECT, PERFECT], free=2), depth=2)

    assert arrangement.units == [2000]
    assert [trial.objective_seconds for trial in arrangement.trials] == [20.0, 15.0]


def test_an_equal_objective_evicts_no_action():
    """At depth 1 the one behind takes 10 s after the first one's 5: 20 s, as when they share."""
    arrangement = evict(a_group([PERFECT, PERFECT], free=2), depth=1)

    assert arrangement.units == [1000, 1000]
    assert [trial.objective_seconds for trial in arrangement.trials] == [20.0, None]


def test_the_first_candidate_goes_however_soon_others_end():
    group = a_group([Action([1], [100.0])], [Action([1], [1.0])], running=[0.001], free=1)

    assert evict(group, 2).units == [1000]


def test_actions_that_wait_behind_are_counted():
    """Free: 1 core; it ends at 4 s, the running one at 1 s. Behind: 1 + 2 = 3, then 3 + 2 = 5."""
    one, two = Action([1], [4.0]), Action([1], [2.0])

    arrangement = evict(a_group([one], [two, two], running=[1.0], free=1), 2)

    assert arrangement.objective_seconds == 4.0 + 3.0 + 5.0


def test_units_that_save_nothing_stay_free():
    flat = Action([1, 2, 3], [5.0, 4.0, 4.0])

    assert evict(a_group([flat], free=8), 2).units == [2000]


def test_of_equal_savings_the_earlier_arrival_has_the_unit():
    assert evict(a_group([PERFECT, PERFECT], running=[900.0], free=3), 1).units == [2000, 1000]


@pytest.mark.parametrize("order", [1, -1], ids=["cheap last", "cheap first"])
def test_of_equally_good_allocations_the_one_with_fewest_units_is_taken(order):
    """Either saves 2 s; one needs a unit more for it, the other two."""
    candidates = [Action([1, 3], [4.0, 2.0]), Action([1, 2], [4.0, 2.0])][::order]
    tables = [choices(each) for each in candidates]

    for chosen in (
        evict(a_group(candidates, running=[900.0], free=4), 1).units,
        [
            t.units[k]
            for t, k in zip(tables, Table(tables, UnitsOperator(4000)).chosen(2), strict=True)
        ],
    ):
        assert sum(chosen) == 3000


def test_paper_takes_a_group_without_known_elasticity_whole():
    group = a_group([Action([2], [50.0]), Action([1], [1.0])], running=[0.1], free=3)

    arrangement = Paper().arrange(group)

    assert (arrangement.units, arrangement.objective_seconds) == ([2000, 1000], None)


def test_balanced_grants_no_action_more_than_the_fair_share():
    wide = Action([1, 2, 4, 8], [8.0, 4.0, 2.0, 1.0])
    group = a_group([wide], free=8)
    group.fair_share = 3000

    assert Balanced().arrange(group).units == [2000]
    assert Paper().arrange(group).units == [8000]


def test_balanced_still_grants_the_smallest_count_above_the_fair_share():
    group = a_group([Action([4, 8], [2.0, 1.0])], free=8)
    group.fair_share = 1000

    assert Balanced().arrange(group).units == [4000]
