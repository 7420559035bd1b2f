"""A node that does not return is forgotten; a later node of its name is new."""

from __future__ import annotations

import pytest

from domain.action import Outcome
from domain.allocation import Home
from domain.decisions import Forget, Refuse, RemoveEnvironment, Requeue, Wake
from domain.events import ServicePrepared
from domain.ids import ResourceId
from scheduler.core.state import snapshot
from tests.builders import (
    GIB,
    a_config,
    a_lease,
    a_node,
    an_action,
    finished,
    granted,
    make_ledger,
    only,
)

DEAD = 600.0


def refusal(decisions: list) -> tuple[str, str]:
    (refuse,) = only(Refuse, decisions)
    assert only(Forget, decisions) == []
    return refuse.code, refuse.detail


def lose_and_forget(scenario, node: str = "n1") -> list:
    scenario.lose(node)
    scenario.advance(DEAD)
    return scenario.forget(node)


def test_a_node_that_shows_no_life_is_forgotten_with_all_its_books(core):
    scenario = core(a_node("n1"), a_node("n2"))

    (forgotten,) = only(Forget, lose_and_forget(scenario))

    assert (forgotten.node, forgotten.identity) == ("n1", a_node("n1").identity)
    state = scenario.machine.state
    assert set(state.supply.nodes) == {"n2"}
    assert not [resource for resource in state.supply.ledgers if resource.endswith(":n1")]


def test_the_answer_names_who_asked(core):
    scenario = core(a_node("n1"))
    (refused,) = only(Refuse, scenario.forget("n1"))
    scenario.lose("n1")
    (done,) = only(Forget, scenario.forget("n1"))

    for answer in (refused, done):
        assert (answer.request_id, answer.reply_to) == ("r1", "web-1")


def test_a_node_that_lives_is_not_forgotten(core):
    scenario = core(a_node("n1"))

    assert refusal(scenario.forget("n1")) == (
        "conflict",
        "node n1 lives: drain it, and stop its worker first",
    )
    scenario.submit(an_action("a"))
    assert scenario.the_grant("a").node == "n1"


def test_an_unknown_node_is_not_found(core):
    assert refusal(core().forget("n9")) == ("not_found", "there is no node 'n9'")


def test_a_node_is_not_forgotten_while_actions_hold_its_units(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a"))
    scenario.lose("n1")

    code, detail = refusal(scenario.forget("n1"))

    assert code == "conflict"
    assert detail == "1 actions hold units of node n1; it is dead after 600 s of silence"
    scenario.advance(DEAD)
    assert only(Forget, scenario.forget("n1"))


def test_a_node_is_not_forgotten_while_a_lease_holds_its_units(core):
    scenario = core(a_node("n1"))
    scenario.submit(a_lease("l", cost={"cpu": 1}, ttl_seconds=900.0))

    assert "hold units of node n1" in refusal(lose_and_forget(scenario))[1]

    scenario.release("l")
    assert only(Forget, scenario.forget("n1"))


def test_a_node_is_not_forgotten_while_open_trajectories_are_at_home_there(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", trajectory="t"))
    scenario.finish("a")
    scenario.lose("n1")

    assert refusal(scenario.forget("n1"))[1].startswith("1 trajectories have their environment")

    scenario.advance(DEAD)
    assert only(Forget, scenario.forget("n1"))
    assert not scenario.has_trajectory("t")


def test_a_trajectory_that_still_runs_elsewhere_keeps_its_dead_node(core):
    """1. Its environment is on n1, a call of it runs on n2. 2. n1 is dead: the call is being ended.

    3. Only when that is over is the environment removed, and the node free to be forgotten.
    """
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(an_action("a", trajectory="t"))
    home = scenario.node_of("t")
    scenario.submit(an_action("call", kind="call", trajectory="t", cost={"cpu": 1}))

    assert refusal(lose_and_forget(scenario, home))[0] == "conflict"

    scenario.finish("call", outcome=Outcome.CANCELLED)
    assert only(Forget, scenario.forget(home))


def test_traces_of_its_silence_are_removed_with_it(core):
    scenario = core(a_node("n1", cpus=2, memory_bytes=GIB), a_node("n2", cpus=2))
    scenario.submit(
        an_action("a", trajectory="t", memory_bytes=GIB, cost={"cpu": 2}),
        an_action("b", cost={"cpu": 2}),
    )
    home = scenario.node_of("t")

    lose_and_forget(scenario, home)

    assert set(scenario.machine.state.supply.nodes) == {"n1", "n2"} - {home}
    scenario.submit(an_action("late", trajectory="t"))
    late = scenario.the_finish("late")
    assert late.outcome is Outcome.INFRA_FAILED
    assert f"node {home} is dead" in (late.detail or "")


def test_waiting_actions_are_reconsidered(core):
    """It would fit the lost node alone; now no node is there at all, and it says so."""
    scenario = core(a_node("n1", cpus=4))
    scenario.lose("n1")
    scenario.submit(an_action("a", cost={"cpu": 4}))
    assert scenario.why("a").code == "nodes_unusable"

    scenario.advance(DEAD)
    scenario.forget("n1")
    assert scenario.why("a").code == "no_node"

    assert granted(scenario.join(a_node("n2", cpus=4))) == ["a"]


def test_a_node_that_joins_under_the_name_is_new(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("a", cost={"cpu": 2}))
    lose_and_forget(scenario)

    scenario.submit(an_action("next", cost={"cpu": 2}))
    decisions = scenario.join(a_node("n1", cpus=2, identity="second", incarnation=2))

    assert granted(decisions) == ["next"], "no unit is kept for what ran before"
    assert scenario.outcomes == {"a": Outcome.UNKNOWN}


def test_a_worker_that_joins_under_the_forgotten_identity_is_refused_again(core):
    """It read its commands before it was forgotten, and may be about to run one of them."""
    scenario = core(a_node("n1", cpus=1))
    lose_and_forget(scenario)
    scenario.submit(an_action("a"))

    decisions = scenario.join(a_node("n1", cpus=1, incarnation=2))

    assert [each.node for each in only(Forget, decisions)] == ["n1"]
    assert scenario.machine.state.supply.nodes == {}
    assert granted(scenario.join(a_node("n1", cpus=1, identity="third", incarnation=3))) == ["a"]


def test_news_of_a_forgotten_node_are_ignored(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a"))
    report = scenario.report("a", node="n1", attempt=1)
    scenario.submit(an_action("b", trajectory="t"))
    scenario.finish("b")
    lose_and_forget(scenario)

    prepared = ServicePrepared(node="n1", home=Home("s", (0,)))
    decisions = scenario.handle(report, prepared)
    decisions += scenario.remove_environment("t")
    decisions += scenario.bring_back("n1") + scenario.lose("n1")

    assert decisions == []
    assert scenario.outcomes["a"] is Outcome.UNKNOWN


def test_deadlines_of_a_forgotten_node_have_no_effect(core):
    scenario = core(a_node("n1"), config=a_config(node_grace_seconds=50.0))
    scenario.lose("n1")
    scenario.forget("n1")

    later = scenario.advance(10 * DEAD)

    # Until then it is remembered that there was such a node.
    assert only(Wake, later) == later
    assert scenario.machine.state.timers.asked_wake is None


def test_a_cluster_wide_resource_of_that_name_stays(core):
    scenario = core(a_node("search"), a_node("n2"), config=a_config(apis={"search": 2}))

    lose_and_forget(scenario, "search")

    assert scenario.free("api:search") == 2
    assert ResourceId("cpu:search") not in scenario.machine.state.supply.ledgers


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restored_machine_knows_forgotten_nodes(core, when):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(an_action("a", trajectory="t"), an_action("b"), an_action("waits"))
    scenario.lose("n1")
    scenario.advance(DEAD)
    if when == "after":
        scenario.forget("n1")
    twin = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    batch = [] if when == "after" else [scenario.asked_to_forget("n1")]
    for event in batch:
        event.at = scenario.now
    assert twin.handle(*batch) == (scenario.handle(*batch) if batch else [])

    assert snapshot.dump(twin) == snapshot.dump(scenario.machine)
    assert set(twin.state.supply.nodes) == {"n2"}


def test_i1_what_a_revoked_node_had_ends_once_and_runs_again_where_it_may(core):
    scenario = core(a_node("n1", cpus=8))
    scenario.submit(
        an_action("a", trajectory="t"), an_action("again", replay_safe=True), an_action("c"),
        a_lease("held", cost={"cpu": 1}),
    )  # fmt: skip
    scenario.start("a")
    scenario.submit(an_action("queued", trajectory="t"))

    decisions = scenario.revoke("n1")

    assert finished(decisions) == {
        "a": Outcome.UNKNOWN, "c": Outcome.UNKNOWN, "held": Outcome.UNKNOWN, "queued": Outcome.INFRA_FAILED,
    }  # fmt: skip
    assert [each.action_id for each in only(Requeue, decisions)] == ["again"]
    assert [each.node for each in only(RemoveEnvironment, decisions)] == ["n1"]
    assert [each.identity for each in only(Forget, decisions)] == [a_node("n1").identity]
    assert not scenario.machine.state.supply.nodes
    assert scenario.revoke("n1") == []
    scenario.join(a_node("n3"))
    assert scenario.the_grant("again").node == "n3"


def test_a_revoked_node_does_not_join_by_its_former_identity(core):
    """What its worker reported before arrives after, in the worst case."""
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.submit(an_action("a", replay_safe=True))
    home = scenario.the_grant("a").node
    late = scenario.report("a")
    scenario.revoke(home)
    scenario.handle(late)
    scenario.join(a_node(home))
    scenario.bring_back(home)
    assert home not in scenario.machine.state.supply.nodes
    scenario.finish("a")
    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_a_call_elsewhere_for_an_environment_on_a_revoked_node_is_ended_in_order(core):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(an_action("a", trajectory="t"))
    home = scenario.node_of("t")
    scenario.submit(an_action("call", kind="call", trajectory="t", cost={"cpu": 1}))

    assert finished(scenario.revoke(home)) == {"a": Outcome.UNKNOWN}

    scenario.finish("call", outcome=Outcome.CANCELLED)
    assert not scenario.has_trajectory("t")
