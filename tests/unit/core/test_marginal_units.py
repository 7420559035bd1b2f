"""Advice on the effect of one more unit of the missing resource."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.advice import ExtraUnitsEffect
from domain.inventory import PoolConfig
from scheduler.core.advice.forecast import seconds_until_free
from scheduler.runtime.rendering import wait_details
from tests.builders import GIB, a_config, a_node, an_action

MINIMUM = a_config(pools=[PoolConfig("default", "minimum")])


def one_more(scenario, name: str) -> ExtraUnitsEffect | None:
    status = scenario.machine.explain(name)
    assert status is not None
    why = wait_details(status)
    assert why is not None
    return why.one_more


def test_one_more_core_starts_the_next_one_at_once(core):
    scenario = core(a_node("n1", cpus=1), config=MINIMUM)
    scenario.submit(an_action("running", duration_seconds=30.0))
    scenario.submit(an_action("next", duration_seconds=5.0))
    scenario.advance(10.0)

    assert one_more(scenario, "next") == ExtraUnitsEffect(
        units=1, sooner_seconds=20.0, starts_in_seconds=0.0, ends_in_seconds=5.0, missing=1
    )


def test_an_earlier_action_takes_the_unit_first(core):
    """Without: first at 30, second at 35. With: first at once, second when that one ends."""
    scenario = core(a_node("n1", cpus=1), config=MINIMUM)
    scenario.submit(an_action("running", duration_seconds=30.0))
    scenario.submit(an_action("first", duration_seconds=5.0), an_action("second"))

    found = one_more(scenario, "second")

    assert found is not None
    assert (found.sooner_seconds, found.starts_in_seconds, found.missing) == (30.0, 5.0, 2)


def test_one_unit_that_is_not_enough_changes_nothing_and_says_how_many_are(core):
    scenario = core(a_node("n1", cpus=4), config=MINIMUM)
    scenario.submit(an_action("running", cost={"cpu": 4}, duration_seconds=30.0))
    scenario.submit(an_action("wide", cost={"cpu": 4}))

    found = one_more(scenario, "wide")

    assert found is not None
    assert (found.units, found.sooner_seconds, found.missing) == (1, 0.0, 4)
    assert found.starts_in_seconds == pytest.approx(30.0)


def test_there_is_no_advice_on_memory_that_trajectories_keep(core):
    scenario = core(a_node("n1", memory_bytes=GIB), config=MINIMUM)
    scenario.submit(an_action("x", trajectory="t1", memory_bytes=GIB, duration_seconds=9.0))
    scenario.submit(an_action("y", trajectory="t2", memory_bytes=GIB))

    assert scenario.why("y").resource == "memory:n1"
    assert one_more(scenario, "y") is None


def test_of_gpus_the_chunk_that_it_needs_is_asked_about(core):
    """Two are free already, one in each half: no chunk of two."""
    scenario = core(a_node("n1", gpu=4), config=MINIMUM)
    scenario.submit(*(an_action(name, cost={"gpu": 1}) for name in "abcd"))
    scenario.finish("a")
    scenario.finish("c")
    scenario.submit(an_action("wide", cost={"gpu": 2}))

    found = one_more(scenario, "wide")

    assert found is not None
    assert (found.units, found.missing, found.starts_in_seconds) == (2, 2, 0.0)


def test_there_is_no_advice_on_an_action_that_waits_for_its_turn(core):
    scenario = core(a_node("n1", cpus=8), config=MINIMUM)
    scenario.submit(*(an_action(name, trajectory="t1") for name in "ab"))

    assert one_more(scenario, "b") is None


HOLDS = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 8)), max_size=8)


@given(st.integers(0, 8), HOLDS, HOLDS, st.integers(1, 8))
def test_more_units_never_let_a_line_of_equals_start_later(free, running, seconds, wanted):
    """Unequal ones may: a wide one that starts earlier can be in the way of a narrow one."""
    ahead = [(each, wanted) for each, _ in seconds]

    as_it_is, with_more = (
        seconds_until_free(free + extra, running, ahead, wanted) for extra in (0, 1)
    )

    if as_it_is is not None:
        assert with_more is not None
        assert with_more <= as_it_is


@given(st.integers(0, 8), HOLDS, HOLDS, st.integers(1, 8))
def test_a_wait_is_endless_only_when_all_units_together_are_too_few(free, running, ahead, wanted):
    there = free + sum(amount for _, amount in running)
    largest = max([wanted, *(amount for _, amount in ahead)])

    assert (seconds_until_free(free, running, ahead, wanted) is None) == (there < largest)
