"""Home cores: a trajectory is placed on the cores next to its memory."""

from __future__ import annotations

from msgspec.structs import replace

from domain.decisions import Grant
from domain.inventory import NodeInventory, ResourceInventory
from domain.resources import MILLI
from scheduler.core.state import snapshot
from tests.builders import a_node, an_action, make_ledger, only


def of_two_places(name: str = "n1") -> NodeInventory:
    """Return a node of two NUMA nodes: cores 0 to 3, and 4 to 6."""
    node = a_node(name)
    cores = ResourceInventory(7 * MILLI, ((0, 1, 2, 3), (4, 5, 6)))
    return replace(node, resources={**node.resources, "cpu": cores})


def cores(decisions, name: str) -> tuple[int, ...]:
    """Return the cores that ``name`` was granted."""
    (grant,) = [each for each in only(Grant, decisions) if each.action_id == name]
    return grant.allocations[0].units


def test_a_later_action_gets_cores_where_the_first_one_had_them(core):
    scenario = core(of_two_places())
    assert cores(scenario.submit(an_action("a", trajectory="t", cost={"cpu": 4})), "a") == (
        0, 1, 2, 3,
    )  # fmt: skip
    scenario.finish("a")
    assert cores(scenario.submit(an_action("b")), "b") == (4,), (
        "an action without a home node: best fit"
    )
    assert cores(scenario.submit(an_action("c", trajectory="t")), "c") == (0,)


def test_a_full_home_is_no_reason_to_wait_and_does_not_move_it(core):
    scenario = core(of_two_places())
    scenario.submit(an_action("a", trajectory="t", cost={"cpu": 4}))
    scenario.finish("a")
    scenario.submit(an_action("full", cost={"cpu": 4}))
    assert cores(scenario.submit(an_action("b", trajectory="t")), "b") == (4,)
    scenario.finish("b")
    scenario.finish("full")
    assert cores(scenario.submit(an_action("c", trajectory="t")), "c") == (0,)


def test_light_actions_settle_nowhere(core):
    scenario = core(of_two_places())
    scenario.submit(an_action("a", trajectory="t", cost={"cpu": 0.5}))
    scenario.finish("a")
    (trajectory,) = scenario.machine.state.trajectories.values()
    assert trajectory.home == ()


def test_a_home_survives_a_restart(core):
    scenario = core(of_two_places())
    scenario.submit(an_action("a", trajectory="t", cost={"cpu": 4}))
    scenario.finish("a")
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert cores(scenario.submit(an_action("b", trajectory="t")), "b") == (0,)


def test_a_home_is_gone_with_its_node(core):
    scenario = core(of_two_places())
    scenario.submit(an_action("a", trajectory="t", cost={"cpu": 4}))
    scenario.finish("a")
    scenario.join(replace(of_two_places(), identity="another disk", incarnation=1))
    assert not any(each.home for each in scenario.machine.state.trajectories.values())


def test_a_node_that_returns_with_two_sockets_has_home_cores_from_then_on(core):
    scenario = core(a_node("n1", cpus=7))
    scenario.submit(an_action("a", trajectory="t", cost={"cpu": 4}))
    scenario.finish("a")
    (trajectory,) = scenario.machine.state.trajectories.values()
    assert trajectory.home == ()
    scenario.join(replace(of_two_places(), incarnation=2))
    assert cores(scenario.submit(an_action("b", trajectory="t", cost={"cpu": 3})), "b") == (4, 5, 6)
    assert trajectory.home == (4, 5, 6)
