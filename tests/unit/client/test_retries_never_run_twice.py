"""A retry is the same request again: what was done once is never done twice (I3)."""

from __future__ import annotations

import pytest

from tangram_client import AsyncClient, Client, Conflict, Unreachable, exec_action
from tangram_client.testing import FakeServer

ACTION = exec_action("swe", "touch /tmp/once")


def test_lost_answer_after_execution_leaves_one_execution(
    server: FakeServer, client: Client
) -> None:
    server.lose_answers(3)

    action = client.run(ACTION)

    assert action.completed
    assert server.executed == [action.id]
    assert len([sent for sent in server.sent if sent.method == "POST"]) == 4


def test_every_attempt_of_one_submission_carries_the_same_key(
    server: FakeServer, client: Client
) -> None:
    server.lose_answers(2)

    client.submit(ACTION)

    assert len({sent.headers["idempotency-key"] for sent in server.sent}) == 1


def test_two_submissions_of_the_same_action_are_two_actions(
    server: FakeServer, client: Client
) -> None:
    first, second = client.submit(ACTION), client.submit(ACTION)

    assert first.id != second.id
    assert server.executed == [first.id, second.id]


def test_own_key_makes_a_repeat_by_another_process_harmless(
    server: FakeServer, client: Client
) -> None:
    first = client.submit(ACTION, idempotency_key="step-7")
    again = client.submit(ACTION, idempotency_key="step-7")

    assert again.id == first.id
    assert server.executed == [first.id]


def test_own_key_with_another_action_is_a_conflict(server: FakeServer, client: Client) -> None:
    client.submit(ACTION, idempotency_key="step-7")

    with pytest.raises(Conflict):
        client.submit(exec_action("swe", "true"), idempotency_key="step-7")


def test_lost_answer_to_a_batch_leaves_each_action_executed_once(
    server: FakeServer, client: Client
) -> None:
    server.lose_answers()

    batch = client.submit_batch([ACTION, ACTION, ACTION])

    assert server.executed == [item.id for item in batch.items]


@pytest.mark.parametrize("verb", ["cancel", "release", "finish"])
def test_every_post_carries_a_key(server: FakeServer, client: Client, verb: str) -> None:
    with client.trajectory("trj-1", task="swe"), client.lease("swe", {"cpu": 1}) as lease:
        client.cancel(client.submit(ACTION).id)
        lease.check()

    posts = [sent for sent in server.sent if sent.method == "POST"]
    assert all(sent.headers.get("idempotency-key") for sent in posts)
    assert any(sent.path.endswith(verb) for sent in posts)


async def test_lost_answer_to_coalesced_submissions_leaves_one_execution_each(
    server: FakeServer, aclient: AsyncClient
) -> None:
    server.lose_answers(2)

    action = await aclient.run(ACTION)

    assert server.executed == [action.id]


def test_server_that_never_answers_is_unreachable_after_all_attempts(
    server: FakeServer, client: Client
) -> None:
    server.lose_requests(100)

    with pytest.raises(Unreachable, match="connection refused"):
        client.submit(ACTION)

    assert len(server.sent) == 8
    assert server.executed == []
