"""Several calls at once of a service that takes them, on the chunk where it works already."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain import events
from domain.action import Outcome
from domain.allocation import Home
from domain.errors import CapacityError
from domain.events import ChunkReport
from domain.ids import ActionId
from domain.inventory import Config, PoolConfig
from domain.limits import Share
from domain.resources import MILLI
from scheduler.core.residency.service_turns import overdue_seconds
from scheduler.core.state import snapshot
from scheduler.core.state.invariants import check
from tests.builders import a_config, a_machine, an_action, make_ledger
from tests.unit.core.test_services_on_chunks import Play, a_call, a_gpu_node, a_service, hosting


def batched(most: int = 3, policy: str = "minimum", *, paused: bool = False) -> Config:
    """Return a configuration where ``a`` takes so many at once, and ``b`` and ``c`` one."""
    services = {name: a_service() for name in "abc"}
    services["a"] = replace(services["a"], max_concurrency=most)
    return a_config(pools=[PoolConfig("default", policy, paused)], services=services)


def a_play(most: int = 3, policy: str = "minimum", gpus: int = 1) -> Play:
    play = Play(gpus=gpus)
    play.machine = a_machine([a_gpu_node(gpus)], batched(most, policy))
    return play


def calls(service: str, *names: str) -> list:
    return [a_call(name, service) for name in names]


def test_simultaneous_calls_work_on_one_chunk_up_to_the_declared_number() -> None:
    play = a_play()

    grants = play.submit(*calls("a", "1", "2", "3", "4"))
    check(play.machine.state)

    assert list(grants) == ["1", "2", "3"]
    assert {grant.allocations[0].units for grant in grants.values()} == {(0,)}
    assert [hosting(each).cached for each in grants.values()] == [False, True, True]  # type: ignore[union-attr]
    assert (play.ledger.free, play.ledger.capacity) == (0, MILLI)
    assert list(play.end("2")) == ["4"]


def test_the_chunk_is_free_when_the_last_of_them_has_gone() -> None:
    play = a_play()
    play.submit(*calls("a", "1", "2"))
    play.submit(*calls("b", "b1"))

    assert play.end("1") == {}
    assert play.ledger.free == 0
    assert list(play.end("2")) == ["b1"]


def test_the_paper_lets_one_work_at_a_time() -> None:
    play = a_play(policy="paper")

    assert list(play.submit(*calls("a", "1", "2"))) == ["1"]


def test_a_service_that_declares_nothing_works_for_one_at_a_time() -> None:
    play = a_play()

    assert list(play.submit(*calls("b", "1", "2"))) == ["1"]


def test_no_call_shares_a_chunk_while_an_overdue_one_waits_for_it() -> None:
    play = a_play()
    play.submit(*calls("a", "1"))
    play.submit(*calls("b", "b1"))
    assert list(play.submit(*calls("a", "2"))) == ["2"]
    queue = play.machine.state.actions[ActionId("b1")].queue
    assert queue is not None
    play.at += overdue_seconds(play.machine.state, queue)

    assert play.submit(*calls("a", "3")) == {}
    assert play.end("1") == {}
    assert list(play.end("2")) == ["b1"]


def test_no_call_of_lower_priority_shares_a_chunk_that_another_waits_for() -> None:
    play = a_play()
    play.submit(*calls("a", "1"))
    urgent = a_call("b1", "b")
    urgent.priority = 1
    play.submit(urgent)

    assert play.submit(*calls("a", "2")) == {}


def test_no_call_shares_a_chunk_in_a_paused_pool() -> None:
    play = a_play()
    play.submit(*calls("a", "1"))
    play.at += 1
    play.machine.handle(events.ConfigApplied(config=batched(paused=True), at=play.at))

    assert play.submit(*calls("a", "2")) == {}


def test_a_chunk_granted_for_one_alone_is_not_joined_when_more_are_declared_later() -> None:
    play = a_play(most=1)
    play.submit(*calls("a", "1"))
    play.at += 1
    play.machine.handle(events.ConfigApplied(config=batched(), at=play.at))

    assert play.submit(*calls("a", "2")) == {}
    assert list(play.end("1")) == ["2"]


def test_one_call_that_fails_leaves_the_service_to_the_others() -> None:
    play = a_play()
    play.submit(*calls("a", "1", "2"))

    play.end("1", ChunkReport(), Outcome.UNKNOWN)

    assert play.cached() == ["a"]
    assert list(play.submit(*calls("a", "3"))) == ["3"]


def test_a_node_that_is_lost_takes_all_of_them_along() -> None:
    play = a_play()
    play.submit(*calls("a", "1", "2"))
    joined = replace(a_gpu_node(), identity="another")
    play.machine.handle(events.NodeJoined(node=joined, at=play.at + 1))
    check(play.machine.state)

    assert (play.ledger.free, play.ledger.holders(), play.cached()) == (MILLI, {}, [])


def test_an_own_program_waits_until_all_have_left() -> None:
    play = a_play()
    play.submit(*calls("a", "1", "2"))
    play.submit(an_action("own", cost={"gpu": 1}))

    assert play.end("2") == {}
    assert list(play.end("1")) == ["own"]


def test_holders_of_a_shared_chunk_are_part_of_a_snapshot() -> None:
    play = a_play()
    play.submit(*calls("a", "1", "2"))
    before = snapshot.dump(play.machine)
    restored = snapshot.load(before, make_ledger)

    assert snapshot.dump(restored) == before
    event = events.ActionSubmitted(action=a_call("3", "a"), at=play.at + 1)
    assert restored.handle(event) == play.machine.handle(event)
    check(restored.state)


def test_a_full_chunk_has_no_seat() -> None:
    play = a_play(most=2)
    play.submit(*calls("a", "1", "2"))

    assert play.ledger.seats("a", 2) == []
    with pytest.raises(CapacityError, match="no seat"):
        play.ledger.join("x", Home("a", (0,)), 2)


def test_a_call_on_a_shared_chunk_counts_for_the_share_of_its_project() -> None:
    config = batched()
    shares = {"gpu": {"default": Share(2 * MILLI, borrow=0)}}
    config = replace(config, pools={"default": replace(config.pools["default"], shares=shares)})
    play = Play(gpus=2)
    play.machine = a_machine([a_gpu_node(2)], config)

    assert list(play.submit(*calls("a", "1", "2", "3"))) == ["1", "2"]
    check(play.machine.state)
    assert list(play.end("1")) == ["3"]
