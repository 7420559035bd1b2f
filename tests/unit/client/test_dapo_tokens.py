"""Tokens of DAPO's rollouts are deleted where they train nothing, and stay where they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tangram_client import Client, Unreachable
from tangram_client._rollout_calls import RolloutInfo
from tangram_client._sync_rollouts import RolloutCalls
from tangram_client.testing import FakeServer
from tests.unit.client.dapo_prompts import GOOD, LOST, dapo, names, planned, prompts, states


@pytest.fixture
def server() -> FakeServer:
    server = FakeServer()
    server.rollouts.plan = planned
    return server


def kept(server: FakeServer) -> list[str]:
    """Return the instances of finished rollouts whose tokens are stored."""
    return [view["instance"] for view in server.rollouts.views.values() if view["segments"]]


def test_tokens_of_a_rollout_that_ended_beside_a_failure_are_deleted(
    server: FakeServer, client: Client
) -> None:
    """Both are in one page of completions: the first drops the group, which has no owner for the second."""
    assert dapo(client, prompts(LOST), epochs=1).batch() == []
    assert [view["outcome"] for view in server.rollouts.views.values()] == [
        "infra_failed",
        "completed",
    ]
    assert kept(server) == []


def test_tokens_of_a_rollout_that_completes_before_its_cancel_are_deleted(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RolloutCalls.cancel_many

    def late(calls: RolloutCalls, rollouts: Sequence[str], **fields: Any) -> object:
        server.clock.advance(100.0)
        return real(calls, rollouts, **fields)

    monkeypatch.setattr(RolloutCalls, "cancel_many", late)
    slow = prompts(GOOD, seconds=(1.0, 10.0))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 2))]
    run = dapo(client, slow + fast + prompts(GOOD), epochs=1, carry="terminate", at_once=6)
    assert names(run.batch()) == ["fast0", "fast1"]
    run.batch()
    assert [view["outcome"] for view in server.rollouts.views.values()].count("cancelled") == 0
    first = list(server.rollouts.views.values())[:2]
    assert [(view["instance"], view["segments"]) for view in first] == [("p0", None)] * 2


@pytest.mark.parametrize("cancelled", [True, False])
def test_tokens_that_a_killed_trainer_did_not_delete_are_deleted_by_the_next_one(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    slow = prompts(GOOD, seconds=(1.0, 10.0))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 2))]
    if not cancelled:
        monkeypatch.setattr(
            RolloutCalls, "cancel_many", lambda *_, **__: server.clock.advance(100.0)
        )
    first = dapo(client, slow + fast, epochs=1, carry="terminate")
    first.acknowledge(first.batch())
    assert kept(server) == ["p0"]
    assert dapo(client, slow + fast, epochs=1, state=first.state()).batch() == []
    assert kept(server) == []


@pytest.mark.parametrize(
    ("fewer", "rules"),
    [(None, {"informative": lambda rewards: False}), (2, {})],
    ids=["by-its-rules", "without-their-instances"],
)
def test_groups_that_a_restarted_trainer_does_not_want_leave_no_tokens_and_nothing_at_work(
    server: FakeServer, client: Client, fewer: int | None, rules: dict[str, Any]
) -> None:
    """They were ready, or parked, when the state was stored."""
    fast = prompts(*[GOOD] * 3)
    slow = [{**each, "id": "slow"} for each in prompts(GOOD, seconds=(1.0, 500.0))]
    first = dapo(client, fast + slow, epochs=1, at_once=8)
    first.acknowledge(first.batch())
    assert sorted(kept(server)) == ["p2", "p2", "slow"]
    again = dapo(client, (fast + slow)[:fewer], epochs=1, state=first.state(), **rules)
    assert again.batch() == []
    again.batch()
    assert [each for each in kept(server) if each != "slow" or fewer] == []
    if fewer:
        assert "parked" not in states(server)


def test_tokens_of_a_group_that_is_read_only_in_part_are_deleted(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RolloutCalls.get

    def without(calls: RolloutCalls, rollout: str, **fields: Any) -> RolloutInfo:
        found = real(calls, rollout, **fields)
        return replace(found, segments=None) if found.reward else found

    monkeypatch.setattr(RolloutCalls, "get", without)
    run = dapo(client, prompts(GOOD), epochs=1)
    assert (run.batch(), run.counts.dropped, kept(server)) == ([], 1, [])


def test_a_run_that_is_closed_leaves_no_tokens_of_unfinished_groups(
    server: FakeServer, client: Client
) -> None:
    slow = prompts(GOOD, seconds=(1.0, 10.0))
    fast = [{**each, "id": f"fast{number}"} for number, each in enumerate(prompts(*[GOOD] * 2))]
    run = dapo(client, slow + fast, epochs=1)
    run.acknowledge(run.batch())
    assert kept(server) == ["p0"]
    run.close()
    ended = next(view for view in server.rollouts.views.values() if view["reward"] is not None)
    assert (ended["instance"], ended["segments"]) == ("p0", None)


def test_an_error_within_a_page_costs_no_tokens_of_a_group_that_trains(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is read again, with rollouts of a group that is informative since its first reading."""
    real, refused = RolloutCalls.cancel_many, [Unreachable("no")]

    def once(calls: RolloutCalls, rollouts: Sequence[str], **fields: Any) -> object:
        if refused:
            raise refused.pop()
        return real(calls, rollouts, **fields)

    monkeypatch.setattr(RolloutCalls, "cancel_many", once)
    instances = [
        *prompts(GOOD),
        *({**each, "id": "lost"} for each in prompts((None, 1.0), seconds=(1.0, 50.0))),
    ]
    run = dapo(client, instances, epochs=1)
    with pytest.raises(Unreachable):
        run.batch()
    (group,) = run.batch()
    assert names([group]) == ["p0"]
    assert all(info.segments for info in group.rewarded)
