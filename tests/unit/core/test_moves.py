"""An idle environment leaves a node that lets its trajectories finish, and is somewhere at every instant."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.action import Outcome
from domain.decisions import (
    EndMove,
    ForkEnvironment,
    MoveEnvironment,
    ReceiveEnvironment,
    Refuse,
    RemoveEnvironment,
    TransferFile,
)
from domain.inventory import PoolConfig
from domain.moves import PROCESS, drain_text
from scheduler.core.state import snapshot
from scheduler.core.state.moves import (
    BUSY_SECONDS,
    FAILED_SECONDS,
    LOOK_SECONDS,
    MOST_AT_ONCE,
    MOVE_SECONDS,
)
from tests.builders import GIB, a_config, a_node, an_action, granted, make_ledger, only


def draining(*nodes: str, revision: int = 1, **fields):
    """Return a configuration in which nodes let their trajectories finish."""
    pool = PoolConfig("default", move_environments=fields.pop("moves", True), move_to_smaller=True)
    names = frozenset(nodes)
    return a_config(
        pools=[pool], drained_nodes=names, finishing_nodes=names, revision=revision, **fields
    )


def a_mover(name, **fields):
    return a_node(name, moves=True, **fields)


def placed(core, trajectories=("t1",), *, memory_bytes=GIB, others=("n2",), **fields):
    """Return a scenario whose trajectories have run one action each on node n1."""
    scenario = core(a_mover("n1"), **fields)
    for name in trajectories:
        scenario.submit(an_action(f"{name}-a", trajectory=name, memory_bytes=memory_bytes))
        scenario.finish(f"{name}-a")
    scenario.join(*(a_mover(each) for each in others))
    return scenario


def the(kind, decisions):
    (found,) = only(kind, decisions)
    return found


def ends(decisions):
    """Return where each informed node lets which trajectory live on."""
    return [(each.node, each.lives_on) for each in only(EndMove, decisions)]


def test_an_idle_environment_moves_and_the_next_action_runs_on_the_other_node(core):
    scenario = placed(core)

    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    assert (order.node, order.target, order.number) == ("n1", "n2", 1)
    assert scenario.free("memory:n2") == 15 * GIB
    fetched = the(ReceiveEnvironment, scenario.packed(order))
    assert (fetched.node, fetched.source) == ("n2", "n1")
    assert scenario.node_of("t1") == "n1"

    assert ends(scenario.received(fetched)) == [("n1", "n2")]
    assert scenario.node_of("t1") == "n2"
    assert granted(scenario.submit(an_action("b", trajectory="t1"))) == ["b"]
    assert scenario.the_grant("b").node == "n2"
    assert scenario.free("memory:n1") == 15 * GIB, "its node has not removed it yet"
    scenario.remove_environment("t1", "n1")
    assert scenario.free("memory:n1") == 16 * GIB
    assert scenario.node_of("t1") == "n2"


def test_an_action_that_arrives_during_a_move_waits_says_why_and_runs_there(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))

    assert granted(scenario.submit(an_action("b", trajectory="t1"))) == []

    why = scenario.why("b")
    assert (why.code, why.subject) == ("trajectory_moved", "n2")
    assert "moved to node n2" in why.reason
    fetched = the(ReceiveEnvironment, scenario.packed(order))
    assert granted(scenario.received(fetched)) == ["b"]
    assert scenario.the_grant("b").node == "n2"


def test_a_trajectory_moves_when_its_running_action_has_ended_and_none_waits(core):
    scenario = placed(core)
    scenario.submit(an_action("b", trajectory="t1"), an_action("c", trajectory="t1"))

    assert only(MoveEnvironment, scenario.configure(draining("n1"))) == []
    assert only(MoveEnvironment, scenario.finish("b")) == []

    assert the(MoveEnvironment, scenario.finish("c")).trajectory == scenario.key("t1")


@pytest.mark.parametrize("step", ["packing", "receiving"])
def test_what_fails_leaves_the_trajectory_where_it_was_and_is_tried_again(core, step):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    scenario.submit(an_action("b", trajectory="t1"))

    if step == "packing":
        decisions = scenario.packed(order, failed="the disk is full")
        assert ends(decisions) == [("n1", "n1")]
    else:
        decisions = scenario.received(
            the(ReceiveEnvironment, scenario.packed(order)), failed="no image"
        )
        assert ends(decisions) == [("n1", "n1"), ("n2", "n1")]
        assert scenario.free("memory:n2") == 15 * GIB, "it may have a part of it"
        scenario.remove_environment("t1", "n2")

    assert granted(decisions) == ["b"]
    assert scenario.the_grant("b").node == "n1"
    assert scenario.free("memory:n2") == 16 * GIB
    scenario.finish("b")
    again = the(MoveEnvironment, scenario.advance(FAILED_SECONDS[0] + LOOK_SECONDS))
    assert again.number == 2


def test_a_trajectory_that_holds_a_process_is_asked_again_after_its_next_action(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))

    scenario.packed(order, failed="2 programs run in it", stays=PROCESS)
    assert only(MoveEnvironment, scenario.advance(LOOK_SECONDS)) == []
    scenario.advance(BUSY_SECONDS[0])

    assert len(only(MoveEnvironment, scenario.decisions)) == 2


def test_no_room_means_no_move_until_there_is_some(core):
    scenario = placed(core, memory_bytes=10 * GIB, others=())
    scenario.join(a_mover("n2"))
    scenario.submit(an_action("x", trajectory="other", memory_bytes=10 * GIB))
    scenario.finish("x")
    assert scenario.node_of("other") == "n2"

    assert only(MoveEnvironment, scenario.configure(draining("n1"))) == []
    scenario.join(a_mover("n3"))

    assert the(MoveEnvironment, scenario.decisions).target == "n3"


@pytest.mark.parametrize(
    "other",
    [a_node("n2"), a_mover("n2", cpus=4), replace(a_mover("n2"), isolation="apptainer")],
    ids=["moves nothing", "is smaller", "isolates in another way"],
)
def test_a_node_that_differs_is_no_target(core, other):
    scenario = placed(core, others=())
    scenario.join(other)

    assert only(MoveEnvironment, scenario.configure(draining("n1"))) == []


def outgrowing(core, *others, first=1, **fields):
    """Return a scenario of a pool whose environments go to smaller nodes; the trajectory has run one action on n1."""
    scenario = core(a_mover("n1", **fields), config=draining())
    cost = first if isinstance(first, dict) else {"cpu": first}
    scenario.submit(an_action("a", trajectory="t1", memory_bytes=GIB, cost=cost))
    scenario.finish("a")
    scenario.join(*others)
    return scenario


@pytest.mark.parametrize(
    ("first", "other", "moves"),
    [
        (4, a_mover("n2", cpus=4), True),
        ((2, 4, 8), a_mover("n2", cpus=2), True),
        (4, a_mover("n2", cpus=3), False),
        ({"cpu": 1}, a_mover("n2", cpus=8), True),
        ({"cpu": 1, "gpu": 1}, a_mover("n2", cpus=8), False),
        ({"cpu": 1, "gpu": 1}, a_mover("n2", cpus=1, gpu=1), True),
        (1, a_mover("n2", cpus=1, memory_bytes=GIB // 2), False),
        (1, replace(a_mover("n2", cpus=1), isolation="apptainer"), False),
    ],
)
def test_a_smaller_node_is_a_target_if_it_has_what_the_trajectory_needed_so_far(
    core, first, other, moves
):
    scenario = outgrowing(core, other, first=first, gpu=2)

    orders = only(MoveEnvironment, scenario.configure(draining("n1", revision=2)))

    assert [each.target for each in orders] == (["n2"] if moves else [])


def test_a_node_as_large_is_preferred_to_a_smaller_one(core):
    scenario = outgrowing(core, a_mover("n2", cpus=1), a_mover("n3", memory_bytes=8 * GIB))
    scenario.submit(an_action("x", trajectory="other", memory_bytes=6 * GIB, cost={"cpu": 4}))
    scenario.finish("x")

    orders = only(MoveEnvironment, scenario.configure(draining("n1", revision=2)))
    assert "n3" in {each.target for each in orders}
    assert {each.target for each in orders if each.trajectory == scenario.key("t1")} == {"n3"}


@pytest.mark.parametrize("step", ["packing", "receiving"])
def test_an_action_that_needs_more_than_the_smaller_node_has_ends_the_move(core, step):
    scenario = outgrowing(core, a_mover("n2", cpus=2))
    order = the(MoveEnvironment, scenario.configure(draining("n1", revision=2)))

    if step == "packing":
        scenario.submit(an_action("b", trajectory="t1", cost={"cpu": 4}))
        decisions = scenario.packed(order)
    else:
        fetched = the(ReceiveEnvironment, scenario.packed(order))
        scenario.submit(an_action("b", trajectory="t1", cost={"cpu": 4}))
        decisions = scenario.received(fetched)
        scenario.remove_environment("t1", "n2")

    assert granted(decisions) == ["b"]
    assert scenario.the_grant("b").node == "n1"
    scenario.finish("b")
    assert only(MoveEnvironment, scenario.advance(600)) == [], "n2 is too small now"


def test_a_fork_needs_what_its_source_has_needed(core):
    scenario = outgrowing(core, a_mover("n2", cpus=3), first=4)
    scenario.forked(the(ForkEnvironment, scenario.fork("t1", "c1")))

    assert only(MoveEnvironment, scenario.configure(draining("n1", revision=2))) == []


def test_a_trajectory_of_an_earlier_version_goes_to_a_node_as_large_alone(core):
    scenario = placed(core, others=())
    scenario.join(a_mover("n2", cpus=4))

    assert only(MoveEnvironment, scenario.configure(draining("n1"))) == []
    scenario.join(a_mover("n3"))
    assert the(MoveEnvironment, scenario.decisions).target == "n3"


def test_a_little_less_memory_is_no_difference(core):
    scenario = placed(core, others=())
    scenario.join(a_mover("n2", memory_bytes=15 * GIB))

    assert the(MoveEnvironment, scenario.configure(draining("n1"))).target == "n2"


@pytest.mark.parametrize("why", ["the pool moves none", "the drain stops trajectories"])
def test_nothing_moves_unless_the_pool_and_the_drain_say_so(core, why):
    scenario = placed(core)
    config = draining("n1", moves=why != "the pool moves none")
    if why == "the drain stops trajectories":
        config = replace(config, finishing_nodes=frozenset())

    assert only(MoveEnvironment, scenario.configure(config)) == []


def test_a_move_that_takes_too_long_ends_where_the_trajectory_was(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    fetched = the(ReceiveEnvironment, scenario.packed(order))

    assert ends(scenario.advance(MOVE_SECONDS)) == [("n1", "n1"), ("n2", "n1")]
    assert scenario.received(fetched) == [], "a late report changes nothing"
    assert scenario.node_of("t1") == "n1"


def test_a_node_that_packs_for_too_long_is_waited_for_since_it_may_seal_files(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    scenario.submit(an_action("b", trajectory="t1"))

    assert ends(scenario.advance(MOVE_SECONDS)) == []
    assert scenario.why("b").code == "trajectory_moved"

    assert granted(scenario.packed(order)) == ["b"]
    assert only(ReceiveEnvironment, scenario.decisions) == []


@pytest.mark.parametrize("step", ["packing", "receiving"])
def test_a_trajectory_that_ends_in_the_middle_leaves_nothing_behind(core, step):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    if step == "receiving":
        scenario.packed(order)

    decisions = scenario.finish_trajectory("t1")

    assert the(RemoveEnvironment, decisions).node == "n1"
    assert ends(decisions) == ([("n2", "")] if step == "receiving" else [])
    scenario.remove_environment("t1", "n1")
    if step == "receiving":
        assert scenario.has_trajectory("t1"), "its name is not free before its copy is gone"
        scenario.remove_environment("t1", "n2")
    assert not scenario.has_trajectory("t1")
    assert (scenario.free("memory:n1"), scenario.free("memory:n2")) == (16 * GIB, 16 * GIB)


def test_a_source_that_is_silent_for_a_while_loses_nothing(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    fetched = the(ReceiveEnvironment, scenario.packed(order))
    scenario.lose("n1")

    assert ends(scenario.received(fetched)) == [("n1", "n2")]
    assert granted(scenario.submit(an_action("b", trajectory="t1"))) == ["b"]


def test_a_source_that_is_dead_ends_its_trajectory_and_the_target_removes_its_copy(core):
    scenario = placed(core, config=a_config(node_dead_seconds=60.0))
    order = the(MoveEnvironment, scenario.configure(draining("n1", node_dead_seconds=60.0)))
    scenario.packed(order)
    scenario.lose("n1")

    decisions = scenario.advance(60.0)

    assert ends(decisions) == [("n2", "")]
    assert the(RemoveEnvironment, decisions).node == "n1"


@pytest.mark.parametrize("step", ["packing", "receiving", "removing"])
def test_a_target_that_lost_its_state_has_no_copy(core, step):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    if step != "packing":
        fetched = the(ReceiveEnvironment, scenario.packed(order))
    if step == "removing":
        scenario.received(fetched, failed="the disk is full")

    decisions = scenario.join(a_mover("n2", identity="another disk", incarnation=2))

    assert scenario.free("memory:n2") == 16 * GIB
    assert scenario.node_of("t1") == "n1"
    if step == "packing":
        assert ends(decisions) == [], "the source packs"
        assert ends(scenario.packed(order)) == [("n1", "n1")]
    else:
        assert ends(scenario.decisions)[0] == ("n1", "n1")


def test_few_move_at_once_and_the_next_one_follows(core):
    names = [f"t{number}" for number in range(MOST_AT_ONCE + 1)]
    scenario = placed(core, names)
    orders = only(MoveEnvironment, scenario.configure(draining("n1")))
    assert len(orders) == MOST_AT_ONCE

    scenario.received(the(ReceiveEnvironment, scenario.packed(orders[0])))

    assert len(only(MoveEnvironment, scenario.advance(LOOK_SECONDS))) == 1


def test_a_fork_waits_for_the_move_and_is_made_where_the_environment_is(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))

    assert scenario.fork("t1", "c1") == []

    decisions = scenario.received(the(ReceiveEnvironment, scenario.packed(order)))
    assert the(ForkEnvironment, decisions).node == "n2"


@pytest.mark.parametrize("ends", [False, True])
def test_an_upload_during_a_move_goes_where_the_environment_is_then(core, ends):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    fetched = the(ReceiveEnvironment, scenario.packed(order))

    assert scenario.request_file("t1", verb="open") == []

    if ends:
        assert the(Refuse, scenario.finish_trajectory("t1")).code == "conflict"
    else:
        assert the(TransferFile, scenario.received(fetched)).node == "n2"


def test_a_restored_machine_goes_on_with_a_move(core):
    scenario = placed(core)
    order = the(MoveEnvironment, scenario.configure(draining("n1")))
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    fetched = the(ReceiveEnvironment, scenario.packed(order))
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    assert ends(scenario.received(fetched)) == [("n1", "n2")]


def test_a_node_that_is_gone_after_a_move_holds_nothing_of_its_trajectory(core):
    scenario = placed(core, config=a_config(node_dead_seconds=60.0))
    order = the(MoveEnvironment, scenario.configure(draining("n1", node_dead_seconds=60.0)))
    scenario.received(the(ReceiveEnvironment, scenario.packed(order)))
    scenario.lose("n1")
    scenario.forget("n1")

    scenario.finish_trajectory("t1")
    scenario.remove_environment("t1", "n2")

    assert not scenario.has_trajectory("t1")
    assert scenario.outcomes == {"t1-a": Outcome.COMPLETED}


@pytest.mark.parametrize(
    ("moved", "moving", "stays", "text"),
    [
        (0, 0, {}, ""),
        (3, 0, {}, "3 of 3 trajectories were moved"),
        (
            3, 1, {"process": 2, "session": 1, "no_room": 0},
            "3 of 7 trajectories were moved, 1 is being moved, 2 hold a process, 1 holds a session",
        ),
        (1, 0, {"later": 2}, "1 of 3 trajectories was moved, 2 stay (later)"),
    ],
)  # fmt: skip
def test_a_drain_says_in_one_sentence_what_it_waits_for(moved, moving, stays, text):
    assert drain_text(moved, moving, stays) == text
