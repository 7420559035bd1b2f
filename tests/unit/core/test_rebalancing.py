"""An action that waits for its node moves with its environment to a node with room, after a wait as long as a move takes."""

from __future__ import annotations

import pytest

from domain.decisions import MoveEnvironment, ReceiveEnvironment
from domain.events import TimeAdvanced
from domain.inventory import PoolConfig
from domain.moves import PROCESS, TOO_LARGE
from scheduler.core.state import snapshot
from scheduler.core.state.model import FIRST_SECONDS, REBALANCE_SECONDS
from scheduler.core.state.moves import FAILED_SECONDS, MOST_AT_ONCE
from scheduler.core.state.rebalancing import LEAST_PATIENCE, MOST_BYTES, patience
from tests.builders import GIB, a_config, a_node, an_action, granted, make_ledger, only

POOL = PoolConfig("default", move_environments=True, rebalance_environments=True)


def a_mover(name, **fields):
    return a_node(name, **{"cpus": 2, "moves": True, **fields})


def waiting(core, *, pool=POOL, free=("n2",), waits=("b1",), memory_bytes=0, **fields):
    """Return a scenario in which long actions fill node n1, and actions wait there whose environments are idle."""
    scenario = core(a_mover("n1"), config=a_config(pools=[pool]), **fields)
    for name in waits:
        scenario.submit(an_action(f"{name}-first", trajectory=name, memory_bytes=memory_bytes))
        scenario.finish(f"{name}-first")
    scenario.submit(*(an_action(f"long{n}", trajectory=f"l{n}") for n in (1, 2)))
    scenario.submit(*(an_action(name, trajectory=name) for name in waits))
    scenario.join(*(a_mover(each) for each in free))
    return scenario


def orders(decisions):
    return only(MoveEnvironment, decisions)


def complete(scenario, order):
    """Let a move succeed; return the decisions of its end."""
    (fetched,) = only(ReceiveEnvironment, scenario.packed(order))
    return scenario.received(fetched)


def test_an_action_moves_once_it_has_waited_as_long_as_a_move_takes(core):
    scenario = waiting(core)

    assert orders(scenario.advance(FIRST_SECONDS - 0.1)) == []
    (order,) = orders(scenario.advance(0.1))
    assert (order.node, order.target, order.most_bytes) == ("n1", "n2", MOST_BYTES)
    why = scenario.why("b1")
    assert (why.code, why.subject) == ("trajectory_moved", "n2")
    assert "to node n2, which has room for it" in why.reason

    assert granted(complete(scenario, order)) == ["b1"]
    assert scenario.the_grant("b1").node == "n2"


def test_an_action_whose_node_has_room_in_time_stays(core):
    scenario = waiting(core)

    assert granted(scenario.finish("long1")) == ["b1"]

    assert orders(scenario.advance(60.0)) == []


def test_room_that_comes_with_the_look_is_taken_at_home(core):
    scenario = waiting(core)
    scenario.advance(FIRST_SECONDS - 0.5)

    scenario.now += 0.5
    decisions = scenario.finish("long1")

    assert (granted(decisions), orders(decisions)) == (["b1"], [])


@pytest.mark.parametrize(
    "pool",
    [
        PoolConfig("default", move_environments=True),
        PoolConfig("default", rebalance_environments=True),
        PoolConfig("default", paused=True, move_environments=True, rebalance_environments=True),
    ],
    ids=["not_rebalanced", "not_moved", "paused"],
)
def test_nothing_moves_where_the_pool_says_so(core, pool):
    scenario = waiting(core, pool=pool)

    assert orders(scenario.advance(60.0)) == []


def test_what_waits_for_an_api_does_not_move(core):
    config = a_config(pools=[POOL], apis={"search": 1})
    scenario = core(a_mover("n1"), a_mover("n2"), config=config)
    scenario.submit(an_action("a", trajectory="t"))
    scenario.finish("a")
    scenario.submit(an_action("holder", trajectory="h", cost={"api:search": 1}))
    scenario.submit(an_action("b", trajectory="t", cost={"cpu": 1, "api:search": 1}))

    assert orders(scenario.advance(60.0)) == []


def test_no_more_move_to_a_node_than_find_room_there(core):
    scenario = waiting(core, waits=("b1", "b2", "b3"))

    # One of a queue goes at a look.
    first = orders(scenario.advance(FIRST_SECONDS))
    second = orders(scenario.advance(FIRST_SECONDS))
    third = orders(scenario.advance(FIRST_SECONDS))

    assert [each.trajectory for each in (*first, *second)] == [
        scenario.key("b1"),
        scenario.key("b2"),
    ]
    assert third == []


def test_nothing_moves_to_a_node_where_actions_wait(core):
    scenario = waiting(core)
    scenario.submit(*(an_action(f"full{n}", trajectory=f"f{n}") for n in (1, 2)))
    assert scenario.the_grant("full1").node == "n2"

    assert orders(scenario.advance(60.0)) == []


def test_what_stays_runs_at_home_and_is_tried_again_later(core):
    scenario = waiting(core)
    (order,) = orders(scenario.advance(FIRST_SECONDS))

    decisions = scenario.packed(order, failed="it has 99 bytes", stays=TOO_LARGE)

    assert granted(decisions) == []
    assert scenario.why("b1").code == "short_of"
    assert orders(scenario.advance(FAILED_SECONDS[0] - 1.0)) == []
    assert len(orders(scenario.advance(3.0))) == 1


def test_a_move_that_takes_too_long_ends_and_later_ones_begin_later(core):
    scenario = waiting(core)
    (order,) = orders(scenario.advance(FIRST_SECONDS))
    (fetched,) = only(ReceiveEnvironment, scenario.packed(order))

    scenario.advance(REBALANCE_SECONDS)

    assert scenario.why("b1").code == "short_of"
    assert only(ReceiveEnvironment, scenario.received(fetched)) == []
    assert patience(scenario.machine.state) > FIRST_SECONDS


def test_the_wait_before_a_move_follows_the_time_of_moves(core):
    waits = tuple(f"b{n}" for n in range(30))
    scenario = waiting(core, waits=waits, free=tuple(f"n{n}" for n in range(2, 40)))

    for _ in range(60):
        for order in orders(scenario.advance(0.25)):
            complete(scenario, order)

    assert patience(scenario.machine.state) == LEAST_PATIENCE


def test_a_node_has_few_moves_at_once(core):
    waits = tuple(f"b{n}" for n in range(8))
    scenario = waiting(core, waits=waits, free=tuple(f"n{n}" for n in range(2, 12)))

    found = [order for _ in waits for order in orders(scenario.advance(FIRST_SECONDS))]

    assert len(found) == MOST_AT_ONCE


def test_the_memory_of_an_environment_goes_with_it(core):
    scenario = waiting(core, memory_bytes=GIB)

    (order,) = orders(scenario.advance(FIRST_SECONDS))

    assert scenario.free("memory:n2") == 15 * GIB
    complete(scenario, order)
    scenario.remove_environment("b1", "n1")
    assert scenario.free("memory:n1") == 16 * GIB


def test_a_cancel_during_the_move_ends_the_action_alone(core):
    scenario = waiting(core)
    (order,) = orders(scenario.advance(FIRST_SECONDS))

    scenario.cancel("b1")
    complete(scenario, order)

    assert scenario.node_of("b1") == "n2"
    assert granted(scenario.submit(an_action("next", trajectory="b1"))) == ["next"]
    assert scenario.the_grant("next").node == "n2"


def test_a_successor_looks_at_the_same_time_and_waits_as_long(core):
    scenario = waiting(core)
    scenario.advance(FIRST_SECONDS / 2)

    other = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    assert other.state.rebalancing == scenario.machine.state.rebalancing
    expected = orders(scenario.advance(FIRST_SECONDS / 2))
    assert expected
    assert orders(other.handle(TimeAdvanced(at=scenario.now))) == expected


def test_what_arrives_later_does_not_take_the_place_on_the_target(core):
    scenario = waiting(core)
    scenario.submit(an_action("also", trajectory="n2-1"))
    (order,) = orders(scenario.advance(FIRST_SECONDS))

    later = scenario.submit(*(an_action(f"later{n}", trajectory=f"n2-{n}x") for n in (1, 2)))

    assert granted(later) == []
    assert granted(complete(scenario, order)) == ["b1"]
    assert granted(scenario.finish("b1")) == ["later1"]


def test_a_cancel_during_the_move_leaves_its_place_to_others(core):
    scenario = waiting(core)
    scenario.submit(an_action("also", trajectory="n2-1"))
    scenario.advance(FIRST_SECONDS)
    scenario.submit(an_action("later", trajectory="n2-2"))

    assert granted(scenario.cancel("b1")) == ["later"]


def test_an_environment_too_large_for_a_waiting_action_leaves_a_draining_node_at_once(core):
    scenario = waiting(core)
    (order,) = orders(scenario.advance(FIRST_SECONDS))
    scenario.packed(order, failed="it has 99 bytes", stays=TOO_LARGE)
    scenario.finish("long1")
    scenario.finish("b1")

    names = frozenset({"n1"})
    config = a_config(pools=[POOL], drained_nodes=names, finishing_nodes=names, revision=1)
    found = {each.trajectory: each.most_bytes for each in orders(scenario.configure(config))}

    assert found[scenario.key("b1")] == 0


def test_an_action_without_a_like_node_keeps_no_other_from_moving(core):
    config = a_config(pools=[POOL])
    scenario = core(a_mover("n1"), a_mover("n2", cpus=4), config=config)
    scenario.submit(an_action("fill", trajectory="f", cost={"cpu": 2}))
    scenario.submit(an_action("b1-first", trajectory="b1", cost={"cpu": 3}))
    assert (scenario.the_grant("fill").node, scenario.the_grant("b1-first").node) == (
        "n1",
        "n2",
    )
    scenario.finish("fill", "b1-first")
    scenario.submit(an_action("long", trajectory="l", cost={"cpu": 3}))
    scenario.submit(an_action("b1", trajectory="b1", cost={"cpu": 2}))
    scenario.submit(an_action("long2", trajectory="l2", cost={"cpu": 1}))
    scenario.submit(an_action("long3", trajectory="l3", cost={"cpu": 1}))
    scenario.submit(an_action("b2", trajectory="f", cost={"cpu": 2}))

    scenario.join(a_mover("free"))

    moved = [each.trajectory for each in orders(scenario.advance(3 * FIRST_SECONDS))]
    assert moved == [scenario.key("f")]


def test_an_action_behind_one_that_cannot_leave_moves(core):
    scenario = waiting(core, waits=("b1", "b2"))
    (order,) = orders(scenario.advance(FIRST_SECONDS))
    scenario.packed(order, failed="2 programs run in it", stays=PROCESS)

    (order,) = orders(scenario.advance(FIRST_SECONDS))

    assert order.trajectory == scenario.key("b2")


def test_an_action_behind_a_wider_one_moves_although_its_node_has_free_cores(core):
    scenario = core(a_mover("n1", cpus=4), config=a_config(pools=[POOL]))
    for name in ("wide", "b1"):
        scenario.submit(an_action(f"{name}-first", trajectory=name))
        scenario.finish(f"{name}-first")
    scenario.submit(an_action("long", trajectory="l", cost={"cpu": 2}))
    scenario.submit(an_action("wide", trajectory="wide", cost={"cpu": 4}))
    scenario.submit(an_action("b1", trajectory="b1"))
    scenario.join(a_mover("n2", cpus=4))
    scenario.submit(an_action("there", trajectory="t", cost={"cpu": 1}))

    (order,) = orders(scenario.advance(FIRST_SECONDS))

    assert order.trajectory == scenario.key("b1")


def test_a_paused_task_on_a_node_keeps_no_environment_from_it(core):
    scenario = waiting(core)
    scenario.submit(an_action("there", trajectory="t2", task="held"))
    assert scenario.the_grant("there").node == "n2"
    scenario.finish("there")
    scenario.pause("held")
    scenario.submit(an_action("stopped", trajectory="t2", task="held"))

    assert len(orders(scenario.advance(FIRST_SECONDS))) == 1


def test_what_lacks_cores_and_an_api_does_not_move(core):
    config = a_config(pools=[POOL], apis={"search": 1})
    scenario = core(a_mover("n1"), config=config)
    scenario.submit(an_action("b-first", trajectory="b"))
    scenario.finish("b-first")
    scenario.submit(an_action("long", trajectory="l", cost={"cpu": 2, "api:search": 1}))
    scenario.submit(an_action("b", trajectory="b", cost={"cpu": 1, "api:search": 1}))
    scenario.join(a_mover("n2"))

    assert orders(scenario.advance(60.0)) == []


@pytest.mark.parametrize("moves", [True, False])
def test_nothing_wakes_the_scheduler_where_no_node_has_room(core, moves):
    scenario = core(a_mover("n1", moves=moves), a_mover("n2"), config=a_config(pools=[POOL]))
    for number in range(6):
        scenario.submit(an_action(f"long{number}", trajectory=f"l{number}"))
    scenario.finish("long0")
    scenario.submit(an_action("next", trajectory="l4"), an_action("b", trajectory="l0"))
    scenario.advance(5.0)
    before = len(scenario.wakes())

    scenario.advance(600.0)

    assert len(scenario.wakes()) - before <= 1
