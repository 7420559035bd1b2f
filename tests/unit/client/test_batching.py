"""Submissions of one moment become one request; each caller gets its own answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from tangram_client import AsyncClient, InvalidRequest, Unauthorized, exec_action
from tangram_client.aio import MAX_BYTES
from tangram_client.testing import FakeServer

ACTION = exec_action("swe", "true")


async def test_submissions_of_one_moment_are_one_request(
    server: FakeServer, aclient: AsyncClient
) -> None:
    accepted = await asyncio.gather(*(aclient.submit(ACTION) for _ in range(500)))

    assert [sent.path for sent in server.sent] == ["/api/v1/actions/batch"]
    assert [action.id for action in accepted] == server.executed


async def test_lone_submission_goes_alone(server: FakeServer, aclient: AsyncClient) -> None:
    await aclient.submit(ACTION)

    assert [sent.path for sent in server.sent] == ["/api/v1/actions"]


async def test_more_than_a_batch_holds_becomes_several(
    server: FakeServer, aclient: AsyncClient
) -> None:
    await asyncio.gather(*(aclient.submit(ACTION) for _ in range(2030)))

    sizes = [len(json.loads(sent.body)["actions"]) for sent in server.sent]
    assert sorted(sizes) == [30, 1000, 1000]


async def test_batch_stays_below_the_size_of_a_body(
    server: FakeServer, aclient: AsyncClient
) -> None:
    large = exec_action("swe", ["cat"], stdin="x" * (MAX_BYTES // 2 - 500))

    await asyncio.gather(*(aclient.submit(large) for _ in range(3)))

    assert len(server.sent) == 2
    assert all(len(sent.body) <= MAX_BYTES + 100 for sent in server.sent)


async def test_refused_item_raises_for_its_caller_alone(
    server: FakeServer, aclient: AsyncClient
) -> None:
    good, bad, other = await asyncio.gather(
        aclient.submit(ACTION),
        aclient.submit(exec_action("swe", "true", cpu=64)),
        aclient.submit(ACTION),
        return_exceptions=True,
    )

    assert isinstance(bad, InvalidRequest)
    assert bad.problem.code == "never_fits"
    assert bad.errors[0]["pointer"] == "/cost/cpu"
    assert not isinstance(good, BaseException)
    assert not isinstance(other, BaseException)


async def test_refused_batch_raises_for_every_caller(server: FakeServer) -> None:
    async with AsyncClient(server.url, "tgm_wrong", transport=server.transport) as client:
        answers = await asyncio.gather(
            client.submit(ACTION), client.submit(ACTION), return_exceptions=True
        )

    assert [type(answer) for answer in answers] == [Unauthorized, Unauthorized]


async def test_caller_cancelled_before_the_flush_is_left_out(
    server: FakeServer, aclient: AsyncClient
) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(aclient.submit(ACTION))
        second = group.create_task(aclient.submit(ACTION))
        first.add_done_callback(lambda _: None)
        second.cancel()

    assert server.executed == [first.result().id]


async def test_submission_with_an_own_key_goes_alone(
    server: FakeServer, aclient: AsyncClient
) -> None:
    await asyncio.gather(
        aclient.submit(ACTION, idempotency_key="a"), aclient.submit(ACTION, idempotency_key="b")
    )

    assert [sent.headers["idempotency-key"] for sent in server.sent] == ["a", "b"]


async def test_closing_lets_submissions_arrive(server: FakeServer) -> None:
    client = AsyncClient(server.url, server.token, transport=server.transport)
    submitting = asyncio.create_task(client.submit(ACTION))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await client.close()

    assert server.executed == [(await submitting).id]


async def test_number_without_meaning_is_refused_before_it_is_sent(
    server: FakeServer, aclient: AsyncClient
) -> None:
    with pytest.raises(InvalidRequest, match="Out of range float"):
        await aclient.submit({**ACTION, "timeout_seconds": float("nan")})

    assert server.sent == []
