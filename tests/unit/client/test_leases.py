"""Leases of the client: renewed while held, released at the end, and their loss is reported."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable

import pytest

from tangram_client import AsyncClient, Client, LeaseLost
from tangram_client.testing import FakeServer, Ran

COST = {"gpu": 1}


def until(condition: Callable[[], bool]) -> None:
    """Let other threads run until ``condition`` holds; the limit only ends a broken test."""
    limit = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.0005)


async def soon(condition: Callable[[], bool]) -> None:
    """Let other tasks run until ``condition`` holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


def test_lease_is_renewed_in_time_and_released_at_the_end(
    server: FakeServer, client: Client
) -> None:
    began = server.clock.now()
    with client.lease("reward", COST, ttl_seconds=30.0) as lease:
        until(lambda: server.world.renewals[lease.id] >= 9)
        assert server.clock.now() - began >= 3 * lease.ttl_seconds
        assert server.world.actions[lease.id]["state"] == "running"

    assert server.world.actions[lease.id]["outcome"] == "completed"


def test_lease_is_released_when_its_block_fails(server: FakeServer, client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.lease("reward", COST) as lease:
        raise ZeroDivisionError

    assert server.world.actions[lease.id]["state"] == "finished"


def test_a_lost_lease_is_reported_at_the_end(server: FakeServer, client: Client) -> None:
    def work() -> None:
        with client.lease("reward", COST) as lease:
            server.finish(lease.id, Ran(outcome="cancelled"))
            until(lambda: lease.lost is not None)

    with pytest.raises(LeaseLost, match="is not held"):
        work()


def test_lease_that_cannot_be_renewed_in_time_counts_as_lost(
    server: FakeServer, client: Client
) -> None:
    def work() -> None:
        with client.lease("reward", COST, ttl_seconds=3.0) as lease:
            server.lose_requests(60)
            until(lambda: lease.lost is not None)

    with pytest.raises(LeaseLost, match="connection refused"):
        work()


def test_lease_that_ends_before_its_grant_raises(server: FakeServer, client: Client) -> None:
    accept = server.world.accept

    def expired(payload: dict[str, object]) -> dict[str, object]:
        view = accept(payload)
        server.world.finish(view["id"], Ran(outcome="expired", seconds=0.0, detail="waited 5 s"))
        return view

    server.world.accept = expired  # type: ignore[method-assign,assignment]

    with (
        pytest.raises(LeaseLost, match="never granted: expired, waited 5 s"),
        client.lease("reward", COST),
    ):
        pytest.fail("the block must not run")


async def test_async_lease_is_renewed_and_released(
    server: FakeServer, aclient: AsyncClient
) -> None:
    async with aclient.lease("reward", COST, ttl_seconds=30.0) as lease:
        await soon(lambda: server.world.renewals[lease.id] >= 9)
        lease.check()

    assert server.world.actions[lease.id]["outcome"] == "completed"


async def test_a_lost_async_lease_is_reported_at_the_end(
    server: FakeServer, aclient: AsyncClient
) -> None:
    async def work() -> None:
        async with aclient.lease("reward", COST) as lease:
            server.finish(lease.id, Ran(outcome="cancelled"))
            await soon(lambda: lease.lost is not None)

    with pytest.raises(LeaseLost, match="is not held"):
        await work()


def test_no_renewal_is_sent_after_the_end(server: FakeServer, client: Client) -> None:
    with client.lease("reward", COST) as lease:
        until(lambda: server.world.renewals[lease.id] >= 1)
    renewals = server.world.renewals[lease.id]

    client.status()

    assert server.world.renewals[lease.id] == renewals
    assert not [thread.name for thread in threading.enumerate() if lease.id in thread.name]


def test_feedback_of_the_holder_is_sent_with_the_release(
    server: FakeServer, client: Client
) -> None:
    with client.lease("t", {"api:search": 1}) as lease:
        lease.report(429, retry_after_seconds=2.0)
    (released,) = [sent for sent in server.sent if sent.path.endswith("/release")]
    assert json.loads(released.body) == {"status": 429, "retry_after_seconds": 2.0}
