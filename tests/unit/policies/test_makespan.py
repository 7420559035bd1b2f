"""Which actions policy `makespan` serves before their turn."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from domain.policies import parse_policy
from scheduler.core.policies.group import Outlook
from scheduler.core.policies.makespan import Makespan
from scheduler.core.policies.registry import policy_named

SECONDS = st.floats(0.0, 1e6)
POLICY = Makespan()


@pytest.mark.parametrize(
    ("remaining", "critical"), [(100.0, True), (70.0, True), (69.0, False), (0.0, False)]
)
def test_a_trajectory_is_critical_from_seven_tenths_of_the_longest_rest(remaining, critical):
    assert POLICY.critical(remaining, 100.0) is critical


def test_the_longest_rest_has_the_largest_lead():
    assert POLICY.lead(Outlook(100.0, 100.0, 0.0, 0.0, 1.0)) == 1.0
    assert POLICY.lead(Outlook(80.0, 100.0, 0.0, 0.0, 1.0)) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("name", "delay", "led"),
    [
        ("makespan", 1.0, True),
        ("makespan", 1.1, False),
        ("makespan(10)", 1.1, True),
        ("makespan(0)", 1.1, False),
        ("makespan(0)", 0.0, False),
    ],
)
def test_an_action_is_served_in_its_turn_where_the_delay_of_others_exceeds_the_bound(
    name, delay, led
):
    """4 s of delay so far, 100 s of ACT: at 5 % one more second is affordable."""
    assert (policy_named(name).lead(Outlook(9.0, 9.0, delay, 4.0, 100.0)) > 0) is led


@given(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), st.integers(0, 100))
def test_a_lead_is_a_part_of_the_longest_one_and_keeps_the_bound(outlook, percent):
    view = Outlook(*outlook)
    lead = policy_named(f"makespan({percent})").lead(view)

    assert 0.0 <= lead <= 1.0
    paid = view.delayed_seconds + view.delay_seconds
    assert lead == 0.0 or paid <= percent / 100 * view.act_seconds * (1 + 1e-9)


def test_the_bound_is_part_of_the_name():
    assert policy_named("makespan(8)").name == "makespan(8)"
    assert parse_policy("makespan(8)") == ("makespan(p)", 8)
