"""Trajectories that end last are served first under policy `makespan`, within bounds."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from domain.ids import TrajectoryKey
from domain.inventory import PoolConfig, ProjectConfig
from domain.limits import Share
from scheduler.core.cycle.precedence import MOST_LEAD, TURNS
from scheduler.core.policies.makespan import Makespan
from scheduler.core.state import snapshot
from scheduler.core.state.critical_paths import (
    CriticalPaths,
    Mean,
    TaskPace,
    further_actions,
    seconds_of,
)
from scheduler.core.state.live import LiveTrajectory
from tests.builders import a_config, a_node, an_action, granted, make_ledger
from tests.scenario import Scenario

POOL = a_config(pools=[PoolConfig("default", "makespan")])


def step(trajectory: str, number: int, remaining: int | None = None, **fields: Any) -> Any:
    """Return an action of one core and one second; ``remaining`` actions follow it."""
    name = f"{trajectory}.{number}"
    return an_action(
        name, trajectory=trajectory, duration_seconds=1.0, remaining_actions=remaining, **fields
    )


def a_crowd(config: Any = POOL, *, paid: bool = True) -> Scenario:
    """Return one core that an action of a trajectory of 46 holds."""
    scenario = Scenario(a_node("n1", cpus=1), config=config)
    scenario.submit(step("holder", 0, 45))
    if paid:  # past actions: their ACT bounds the delays
        scenario.machine.state.critical_paths.account("default").act_seconds = 1e6
    return scenario


def order_of_grants(scenario: Scenario) -> list[str]:
    """End one running action after the other; return the order in which the others start."""
    starts: list[str] = []
    while running := [live.id for live in scenario.machine.state.actions.values() if live.node]:
        scenario.now += 1.0
        starts += granted(scenario.finish(running[0]))
    return starts


def test_an_action_of_the_longest_trajectory_overtakes_those_that_wait():
    scenario = a_crowd()
    scenario.submit(step("short", 0, 2), step("middle", 0, 10), step("long", 0, 40))

    assert order_of_grants(scenario) == ["long.0", "short.0", "middle.0"]


def test_trajectories_that_are_not_critical_keep_their_order():
    scenario = a_crowd()
    scenario.submit(step("long", 0, 99), *(step(f"t{n}", 0, n) for n in (3, 1, 50, 2)))

    assert order_of_grants(scenario) == ["long.0", "t3.0", "t1.0", "t50.0", "t2.0"]


def test_priority_comes_before_the_critical_path():
    scenario = a_crowd()
    scenario.submit(step("long", 0, 99), step("urgent", 0, 1, priority=1))

    assert order_of_grants(scenario) == ["urgent.0", "long.0"]


def test_without_finished_actions_no_delay_is_affordable():
    scenario = a_crowd(paid=False)
    scenario.submit(step("short", 0, 2), step("long", 0, 40))

    assert order_of_grants(scenario) == ["short.0", "long.0"]


def test_an_action_without_a_trajectory_is_served_in_its_turn():
    scenario = a_crowd()
    scenario.submit(an_action("alone", duration_seconds=1e6), step("long", 0, 99))

    assert order_of_grants(scenario) == ["long.0", "alone"]
    assert "alone" not in scenario.machine.state.critical_paths.paces


def test_other_policies_predict_nothing():
    scenario = a_crowd(a_config(pools=[PoolConfig("default", "malleable")]), paid=False)
    scenario.submit(step("short", 0, 2), step("long", 0, 40))

    assert order_of_grants(scenario) == ["short.0", "long.0"]
    assert scenario.machine.state.critical_paths == CriticalPaths()


def test_a_waiting_action_is_overtaken_by_a_bounded_number_of_later_ones():
    """Critical actions arrive without end, and cost nothing: still the first one is served."""
    scenario = a_crowd()
    scenario.machine.state.pools.policies["default"] = Makespan(loss_percent=10**9)
    scenario.submit(step("patient", 0, 0))
    live = 5  # with the holder, and the one that arrives
    scenario.submit(*(step(f"c{n}", 0, 1000) for n in range(live - 3)))
    for number in range(live * TURNS + live):
        scenario.submit(step(f"d{number}", 0, 1000))
        running = next(one.id for one in scenario.machine.state.actions.values() if one.node)
        scenario.now += 1.0
        if "patient.0" in granted(scenario.finish(running)):
            break
    else:
        pytest.fail("it is still waiting")


@given(st.integers(0, 10**6), st.floats(0.0, 1.0))
def test_a_lead_is_at_most_the_longest_one(arrivals, lead):
    scenario = Scenario(a_node("n1", cpus=1), config=POOL)
    state = scenario.machine.state
    state.arrivals = arrivals
    state.critical_paths.account("default").act_seconds = 1.0
    scenario.submit(step("a", 0, 5), step("b", 0, round(5 * lead)))

    for live in state.actions.values():
        turn, arrival = live.order[1], live.order[-1]
        assert arrival - min(MOST_LEAD, TURNS * 2) <= turn <= arrival


def test_a_restored_machine_goes_on_with_the_same_predictions():
    scenario = a_crowd()
    scenario.submit(step("short", 0, 2), step("long", 0, 40))
    scenario.now += 1.0
    scenario.finish("holder.0")
    scenario.now += 5.0
    scenario.submit(step("holder", 1))
    restored = snapshot.load(data := snapshot.dump(scenario.machine), make_ledger)

    # 1 s of execution and 5 s of thinking.
    assert restored.state.critical_paths.paces["default/task"].cycle.seconds == 6.0
    assert snapshot.dump(restored) == data
    assert restored.state.critical_paths.accounts == scenario.machine.state.critical_paths.accounts


def test_remaining_actions_are_learned_from_longer_trajectories():
    pace = TaskPace(lengths=(4, 10, 20))

    assert further_actions(pace, 3) == (1 + 7 + 17) / 3
    assert further_actions(pace, 10) == 10.0
    assert further_actions(pace, 40) == 10.0  # a quarter of its own length
    assert further_actions(TaskPace(), 8) == 2.0


def test_the_rest_is_cycles_and_the_last_action():
    pace = TaskPace(cycle=Mean(1.0, 8.0), last=Mean(1.0, 30.0))

    assert seconds_of(pace, 0) == 0.0
    assert seconds_of(pace, 1) == 30.0
    assert seconds_of(pace, 4) == 3 * 8.0 + 30.0


def test_a_mean_follows_its_observations():
    assert Mean().with_one(6.0).seconds == 6.0
    assert 6.0 < Mean().with_one(6.0).with_one(9.0).seconds < 7.6


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(1.0, 100.0)), min_size=1), st.randoms())
def test_the_latest_end_does_not_depend_on_the_order_of_trajectories(changes, shuffler):
    paths = CriticalPaths()
    trajectories: dict[TrajectoryKey, LiveTrajectory] = {}
    for number, end in changes:
        key = TrajectoryKey(f"default/t{number}")
        each = trajectories.setdefault(
            key, LiveTrajectory(key, "default", "task", f"t{number}", "default", 0.0, 1e9)
        )
        each.predicted_end = end
        found = paths.latest_end("default", trajectories, each)
        others = list(trajectories.items())
        shuffler.shuffle(others)

        assert found == max(one.predicted_end for one in trajectories.values())
        assert CriticalPaths().latest_end("default", dict(others), each) == found


def test_of_two_projects_the_heavier_one_is_served_first():
    shares = {"cpu": {"light": Share(1000), "heavy": Share(4000)}}
    config = a_config(
        pools=[PoolConfig("default", "weighted", shares=shares)],
        projects={name: ProjectConfig(name) for name in ("light", "heavy")},
    )
    scenario = Scenario(a_node("n1", cpus=1), config=config)
    scenario.submit(an_action("holder", project="light"))
    scenario.submit(an_action("first", project="light"), an_action("second", project="heavy"))

    assert order_of_grants(scenario) == ["second", "first"]
