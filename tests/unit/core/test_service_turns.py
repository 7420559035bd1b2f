"""Service turns: order of calls when more services are needed than chunks are free."""

from __future__ import annotations

from msgspec.structs import replace

from domain.action import Outcome
from domain.decisions import Grant
from domain.events import ActionFinished, ActionSubmitted, ChunkReport, NodeLost, TimeAdvanced
from domain.ids import ActionId
from scheduler.core.residency.service_turns import OVERDUE_ROUNDS, overdue_seconds
from scheduler.core.state import snapshot
from scheduler.core.state.invariants import check
from scheduler.runtime.rendering import wait_details
from tests.builders import START, a_machine, an_action, finished, make_ledger, only
from tests.unit.core.test_services_on_chunks import Play, a_call, a_gpu_node, hosting, services

RESTORED_IN_2 = ChunkReport(restore_seconds=2.0)


def a_play(policy: str = "minimum") -> Play:
    """One GPU, on which ``a`` works; ``b`` came first of those that wait, then two of ``a``."""
    play = Play("a", "b", policy=policy)
    play.submit(a_call("a1", "a"))
    play.submit(a_call("b1", "b"), a_call("a2", "a"), a_call("a3", "a"))
    return play


def overdue(play: Play, action: str) -> float:
    """Return after how long a queued action of the play is overdue."""
    queue = play.machine.state.actions[ActionId(action)].queue
    assert queue is not None
    return overdue_seconds(play.machine.state, queue)


def test_a_resident_service_goes_on_until_no_call_waits_for_it() -> None:
    play = a_play()

    assert list(play.end("a1", RESTORED_IN_2)) == ["a2"]
    assert list(play.end("a2")) == ["a3"]
    assert list(play.end("a3")) == ["b1"]


def test_an_overdue_call_goes_before_the_resident_service() -> None:
    play = a_play()

    assert list(play.end("a1", RESTORED_IN_2)) == ["a2"]
    play.at += overdue(play, "b1")
    assert list(play.end("a2")) == ["b1"]
    assert list(play.end("b1")) == ["a3"]


def test_the_more_services_are_waited_for_the_later_is_anybody_overdue() -> None:
    play = a_play()
    two = overdue(play, "b1")
    other = Play("a", "b", "c", "d", gpus=2)
    other.submit(a_call("a1", "a"), a_call("d1", "d"))
    other.submit(a_call("b1", "b"), a_call("c1", "c"))

    assert overdue(other, "b1") == two / 2.5, "two calls wait for two chunks, not four for one"


def test_the_more_calls_wait_the_later_is_a_call_overdue() -> None:
    """Else all are overdue in a crowd, and each call in turn needs a restore."""
    play = a_play()
    few = overdue(play, "b1")
    play.submit(*(a_call(f"b{number}", "b") for number in range(2, 22)))

    assert overdue(play, "b1") == few + OVERDUE_ROUNDS * 20


def test_an_action_with_its_own_program_is_overdue_at_last() -> None:
    play = Play("a")
    play.submit(a_call("a1", "a"))
    play.submit(an_action("own", cost={"gpu": 1}))
    served = ["a1"]
    while served[-1] != "own":
        play.submit(a_call(f"later{len(served)}", "a"))
        served += play.end(served[-1])
        assert len(served) < 30, "a call is overtaken for ever"

    assert len(served) > 2


def test_the_paper_serves_calls_in_order_of_arrival() -> None:
    play = a_play("paper")

    assert list(play.end("a1", RESTORED_IN_2)) == ["b1"]


def test_later_calls_do_not_delay_an_overdue_one() -> None:
    play = a_play()
    served = ["a1"]
    while served[-1] != "b1":
        name = f"later{len(served)}"
        play.submit(a_call(name, "a"))
        news = RESTORED_IN_2 if served[-1] == "a1" else None
        served += play.end(served[-1], news)
        assert len(served) < 30, "a call is overtaken for ever"

    assert len(served) > 2


def test_a_higher_priority_goes_before_a_turn() -> None:
    play = Play("a", "b")
    play.submit(a_call("a1", "a"))
    urgent = a_call("b1", "b")
    urgent.priority = 1
    play.submit(a_call("a2", "a"), urgent)

    assert list(play.end("a1")) == ["b1"]


def test_the_evicted_service_is_one_without_waiting_calls() -> None:
    play = Play("a", "b", "c", gpus=2)
    play.submit(a_call("a1", "a"))
    play.submit(a_call("b1", "b"))
    play.end("a1")
    play.end("b1")  # a was used longest ago, so by itself it would leave

    grants = play.submit(a_call("c1", "c"), a_call("a2", "a"))

    cold, cached = hosting(grants["c1"]), hosting(grants["a2"])
    assert cold is not None
    assert cached is not None
    assert [home.service for home in cold.evicted] == ["b"]
    assert cached.cached


def test_a_call_gets_its_home_chunk_even_when_a_smaller_block_is_free() -> None:
    play = Play("a", "b", gpus=4)
    play.submit(a_call("b1", "b"))
    play.submit(a_call("b2", "b"))
    play.submit(
        a_call("a1", "a")
    )  # on 2, which is half of a larger block than 1 when both are free
    play.end("b2")
    play.end("a1")
    home = next(each.units for each in play.ledger.residents() if each.service == "a")

    grant = play.submit(a_call("a2", "a"))["a2"]

    assert grant.allocations[0].units == home
    check(play.machine.state)


def test_measurements_of_services_are_part_of_a_snapshot() -> None:
    play = a_play()
    play.end("a1", RESTORED_IN_2)
    before = snapshot.dump(play.machine)
    restored = snapshot.load(before, make_ledger)

    assert snapshot.dump(restored) == before
    assert restored.state.residency.memory.times["a"].restore_seconds == 2.0


def test_calls_wait_for_the_chunk_of_their_service_until_the_line_is_worth_a_restore() -> None:
    play = Play("a", "b", gpus=2)
    play.submit(a_call("b0", "b"))
    play.end("b0")
    play.submit(a_call("a1", "a"))

    assert play.submit(a_call("a2", "a"), a_call("a3", "a")) == {}
    waiting = play.machine.explain(ActionId("a2"))
    assert waiting is not None
    assert (why := wait_details(waiting)) is not None
    assert why.code == "deferred"
    assert "service 'a' works for others on gpu:n1" in why.reason
    assert list(play.submit(a_call("b1", "b"))) == ["b1"], "they block no other call"
    play.end("b1")
    assert play.submit(a_call("a4", "a"), a_call("a5", "a")) == {}
    grants = play.submit(a_call("a6", "a"))
    check(play.machine.state)

    assert list(grants) == ["a2"]
    assert (
        grants["a2"].allocations[0].units
        != play.machine.state.actions[ActionId("a1")].allocations[0].units
    )


def test_calls_wait_less_where_a_chunk_has_room_for_their_service() -> None:
    """Two calls of 1 s in line: worth one restore of 1 s, and not four."""
    for cached, goes in (("b", False), ("", True)):
        play = Play("a", "b", gpus=2)
        if cached:
            play.submit(a_call("b0", cached))
            play.end("b0")
        play.submit(a_call("a1", "a"))
        assert bool(play.submit(a_call("a2", "a"), a_call("a3", "a"))) == goes


def test_calls_wait_less_the_more_chunks_are_idle() -> None:
    """One call of 1 s in line is worth one restore of 1 s: of many idle services one is not missed."""
    for gpus, goes in ((2, False), (4, False), (8, True)):
        others = [f"s{number}" for number in range(1, gpus)]
        play = Play("a", *others, gpus=gpus)
        play.submit(a_call("a1", "a"), *(a_call(f"first-{name}", name) for name in others))
        for name in others:
            play.end(f"first-{name}")

        assert bool(play.submit(a_call("a2", "a"))) == goes


def test_a_service_is_at_home_on_a_chunk_of_any_size_that_a_call_can_take() -> None:
    """Else a call that may take two GPUs waits for the one on which its service works."""
    for counts, goes in (([1, 2], True), ([1], False)):
        play = Play("a", "b", gpus=4)
        play.submit(a_call("pair", "a", [2]), a_call("b1", "b"))
        play.end("pair")
        play.end("b1")
        assert list(play.submit(a_call("one", "a"))) == ["one"]

        assert bool(play.submit(a_call("next", "a", counts))) == goes


def test_the_paper_restores_elsewhere_at_once() -> None:
    play = Play("a", gpus=2, policy="paper")

    assert list(play.submit(a_call("a1", "a"), a_call("a2", "a"))) == ["a1", "a2"]


def test_measured_restores_decide_whether_calls_wait_or_go_elsewhere() -> None:
    """One call of 1 s in line: worth a restore of 0.1 s, and not one of 2 s."""
    for restore_seconds, goes in ((0.1, True), (2.0, False)):
        play = Play("a", gpus=2)
        play.submit(a_call("1", "a"))
        play.at += 5
        measured = ActionFinished(
            action_id=ActionId("1"),
            node="n1",
            outcome=Outcome.COMPLETED,
            at=play.at,
            execution_seconds=1.0,
            chunk=ChunkReport(restore_seconds=restore_seconds),
        )
        play.machine.handle(measured)
        play.submit(a_call("2", "a"))

        assert bool(play.submit(a_call("3", "a"))) == goes


def test_two_services_that_race_for_one_chunk_follow_each_other() -> None:
    play = Play("a", "b")

    assert list(play.submit(a_call("a1", "a"), a_call("b1", "b"))) == ["a1"]
    after = play.end("a1")["b1"]
    there = hosting(after)

    assert there is not None
    assert [home.service for home in there.evicted] == ["a"]
    assert play.cached() == ["b"]


def test_a_call_whose_node_is_lost_is_restored_elsewhere_if_it_may_be_repeated() -> None:
    nodes = [replace(a_gpu_node(), name=name, identity=name) for name in ("n1", "n2")]
    machine = a_machine(nodes, services("a", "b"))
    again, once, at = a_call("again", "a"), a_call("once", "b"), START + 1
    again.replay_safe = True
    submitted = [ActionSubmitted(action=each, at=at) for each in (again, once)]
    where = {g.action_id: g.node or "" for g in only(Grant, machine.handle(*submitted))}
    lost, other = where[ActionId("again")], where[ActionId("once")]
    machine.handle(NodeLost(node=lost, incarnation=1, at=at + 1))

    assert finished(machine.handle(TimeAdvanced(at=at + 120))) == {}
    ended = ActionFinished(
        action_id=ActionId("once"), node=other, outcome=Outcome.COMPLETED, at=at + 121
    )
    (grant,) = only(Grant, machine.handle(ended))
    check(machine.state)

    assert (grant.action_id, grant.node, grant.attempt) == ("again", other, 2)
    assert (there := hosting(grant)) is not None
    assert [home.service for home in there.evicted] == ["b"]


def test_a_call_goes_to_the_node_without_an_eviction() -> None:
    nodes = [replace(a_gpu_node(), name=name, identity=name) for name in ("n1", "n2")]
    machine, where = a_machine(nodes, services("a", "b")), {}
    for number, service in enumerate("ab"):
        at = START + 1 + 2 * number
        call = ActionSubmitted(action=a_call(service, service), at=at)
        (grant,) = only(Grant, machine.handle(call))
        where[service] = grant.node or ""
        ended = ActionFinished(
            action_id=call.action.id, node=where[service], outcome=Outcome.COMPLETED, at=at + 1
        )
        machine.handle(ended)
    check(machine.state)

    assert sorted(where.values()) == ["n1", "n2"]
