"""Failed restores: a chunk is avoided by the service that failed on it, until a cure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain import events
from domain.action import Action, Outcome
from domain.allocation import Home
from domain.decisions import Grant
from domain.events import ChunkReport
from domain.ids import ActionId
from domain.resources import MILLI
from scheduler.core.state import snapshot
from scheduler.runtime.rendering import reason_of
from tests.builders import a_machine, finished, make_ledger, only
from tests.unit.core.test_services_on_chunks import Play, a_call, a_gpu_node, services


def fail(play: Play, name: str) -> dict[str, Grant]:
    """Let a node report that it could not bring the service of an action to its chunk."""
    live = play.machine.state.actions[ActionId(name)]
    hosting = live.allocations[0].hosting
    assert hosting is not None
    home = Home(hosting.service, live.allocations[0].units)
    play.at += 1
    event = events.ActionFinished(
        action_id=live.id, node="n1", outcome=Outcome.INFRA_FAILED, attempt=live.attempt,
        at=play.at, never_started=True, chunk=ChunkReport(gone=(home,), failed=(home,)),
    )  # fmt: skip
    return {grant.action_id: grant for grant in only(Grant, play.machine.handle(event))}


def units(play: Play, name: str) -> tuple[int, ...]:
    return play.machine.state.actions[ActionId(name)].allocations[0].units


def failed(gpus: int = 2, *names: str) -> Play:
    """``a1`` failed on GPU 0 and was granted another one, if there is one."""
    play = Play("a", *names, gpus=gpus)
    play.submit(a_call("a1", "a"))
    assert units(play, "a1") == (0,)
    fail(play, "a1")
    return play


def test_a_call_whose_service_failed_on_a_chunk_is_granted_another_one() -> None:
    play = failed()

    assert units(play, "a1") == (1,)
    play.end("a1")
    play.submit(a_call("a2", "a"))
    assert units(play, "a2") == (1,)


def test_it_goes_into_a_larger_block_before_it_goes_where_it_failed() -> None:
    play = failed(4, "b")
    play.submit(a_call("b1", "b"))
    assert (units(play, "a1"), units(play, "b1")) == ((1,), (0,))
    play.end("b1")
    play.end("a1", ChunkReport(gone=(Home("a", (1,)),)))
    play.submit(a_call("b2", "b"), a_call("b3", "b"))
    play.submit(a_call("a2", "a"))

    assert units(play, "a2")[0] >= 1


def test_a_service_that_failed_on_all_chunks_is_tried_again_and_its_call_ends() -> None:
    """Three grants, as after any failed restore; no call waits for ever."""
    play = failed(1)
    assert list(fail(play, "a1")) == ["a1"]
    live = play.machine.state.actions[ActionId("a1")]
    home = Home("a", live.allocations[0].units)
    event = events.ActionFinished(
        action_id=live.id, node="n1", outcome=Outcome.INFRA_FAILED, attempt=live.attempt,
        at=play.at + 1, never_started=True, chunk=ChunkReport(gone=(home,), failed=(home,)),
    )  # fmt: skip
    assert finished(play.machine.handle(event)) == {"a1": Outcome.INFRA_FAILED}


def test_it_waits_for_a_chunk_on_which_it_did_not_fail_and_blocks_no_other() -> None:
    play = failed(2, "b")
    play.submit(a_call("b0", "b"))
    assert (units(play, "a1"), units(play, "b0")) == ((1,), (0,))
    play.end("a1", ChunkReport(gone=(Home("a", (1,)),)))
    own = play.submit(an_own_program("own"))
    assert [held.units for held in own["own"].allocations] == [(1,)]
    play.end("b0")

    assert play.submit(a_call("a2", "a")) == {}
    status = play.machine.explain(ActionId("a2"))
    assert status is not None
    assert status.waiting is not None
    assert status.waiting.code == "kept_away"
    assert "service a failed on the chunks that are free" in reason_of(status.waiting)
    assert list(play.submit(a_call("b1", "b"))) == ["b1"]
    assert list(play.end("own")) == ["a2"]
    assert units(play, "a2") == (1,)


def an_own_program(name: str) -> Action:
    return replace(a_call(name, "a"), call=None)


@pytest.mark.parametrize("again", ["declared", "joined"])
def test_a_new_declaration_or_a_new_join_cures_it(again: str) -> None:
    play = failed()
    play.end("a1", ChunkReport(gone=(Home("a", (1,)),)))
    play.at += 1
    if again == "declared":
        other = replace(services("a").services["a"], restore_timeout_seconds=7.0)
        config = replace(services("a"), services={"a": other}, revision=1)
        play.machine.handle(events.ConfigApplied(config=config, at=play.at))
    else:
        joined = replace(a_gpu_node(2), incarnation=2)
        play.machine.handle(events.NodeJoined(node=joined, at=play.at))

    play.submit(a_call("a2", "a"))
    assert units(play, "a2") == (0,)


@pytest.mark.parametrize("works", [True, False])
def test_it_is_cured_where_it_works(works: bool) -> None:
    play = failed(1)
    play.end("a1", ChunkReport(), Outcome.COMPLETED if works else Outcome.TIMEOUT)

    assert play.ledger.accepts("a", MILLI, now=True) is works


def test_another_service_is_not_concerned() -> None:
    play = failed(2, "b")
    play.submit(a_call("b1", "b"))

    assert units(play, "b1") == (0,)


def test_a_call_goes_to_another_node_where_its_service_did_not_fail() -> None:
    nodes = [replace(a_gpu_node(), name=name, identity=name) for name in ("n1", "n2")]
    play = Play("a")
    play.machine = a_machine(nodes, services("a"))
    first = play.submit(a_call("a1", "a"))["a1"]
    home = Home("a", (0,))
    play.at += 1
    event = events.ActionFinished(
        action_id=first.action_id, node=first.node or "", outcome=Outcome.INFRA_FAILED,
        at=play.at, never_started=True, chunk=ChunkReport(gone=(home,), failed=(home,)),
    )  # fmt: skip
    (again,) = only(Grant, play.machine.handle(event))

    assert {first.node, again.node} == {"n1", "n2"}


def test_failed_restores_are_part_of_a_snapshot() -> None:
    play = failed()
    before = snapshot.dump(play.machine)
    restored = snapshot.load(before, make_ledger)

    assert snapshot.dump(restored) == before
    (ledger,) = restored.state.supply.resident.values()
    assert not ledger.accepts("a", MILLI, now=True), "a1 has the other chunk"
