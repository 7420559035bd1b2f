"""Backends that do not answer get no seats, and get them again once they do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from domain.backends import BackendPool, LlmBackend
from domain.errors import Unavailable
from rollout.llm.backend_monitor import (
    ANSWERED_CHECKS,
    FAILED_CHECKS,
    INTERVAL_SECONDS,
    BackendMonitor,
)
from rollout.llm.engine_client import BackendFailed, EngineClient, ExchangeLimits
from tests.scripted_backends import Backends, FaultyBackend


class Scheduler:
    """Keeps verdicts as the scheduler does."""

    def __init__(self, *names: str, **members: Any) -> None:
        made = (LlmBackend(name=each, address=f"http://{each}", **members) for each in names)
        self.pools = {"policy": BackendPool(tuple(made))}
        self.reports: list[tuple[str, str, str]] = []
        self.away = False

    async def judge(self, pool: str, backend: str, unhealthy: str) -> None:
        if self.away:
            raise Unavailable("no leader")
        self.reports.append((pool, backend, unhealthy))
        kept = (
            replace(each, unhealthy=unhealthy) if each.name == backend else each
            for each in self.pools[pool].backends
        )
        self.pools[pool] = BackendPool(tuple(kept))


def monitor(scheduler: Scheduler, **backends: FaultyBackend) -> tuple[BackendMonitor, Backends]:
    transport = Backends(**backends)
    client = EngineClient(ExchangeLimits(health_seconds=0.02), transport=transport)
    return BackendMonitor(client, lambda: scheduler.pools, scheduler.judge), transport


async def test_a_backend_that_does_not_answer_is_reported_once():
    scheduler = Scheduler("b1", "b2")
    made, _ = monitor(scheduler, b2=FaultyBackend())
    for _ in range(FAILED_CHECKS - 1):
        await made.check()
    assert scheduler.reports == []

    for _ in range(3):
        await made.check()

    assert scheduler.reports == [("policy", "b1", "no answer to 3 health checks")]


async def test_a_backend_that_hangs_is_as_one_that_is_gone():
    hanging = FaultyBackend()
    hanging.health_answers = False
    scheduler = Scheduler("b1")
    made, _ = monitor(scheduler, b1=hanging)

    async with asyncio.timeout(5):
        for _ in range(FAILED_CHECKS):
            await made.check()

    assert len(scheduler.reports) == 1


async def test_a_backend_that_answers_again_gets_seats_again():
    scheduler = Scheduler("b1", unhealthy="it did not answer", drained=True)
    made, _ = monitor(scheduler, b1=FaultyBackend())
    for _ in range(ANSWERED_CHECKS - 1):
        await made.check()
    assert scheduler.reports == []

    await made.check()

    assert scheduler.reports == [("policy", "b1", "")]


async def test_one_failed_check_among_others_changes_nothing():
    scheduler = Scheduler("b1")
    made, transport = monitor(scheduler, b1=FaultyBackend())
    there = dict(transport.by_host)
    for _ in range(3 * FAILED_CHECKS):
        transport.by_host = {} if transport.by_host else there
        await made.check()

    assert scheduler.reports == []


async def test_a_report_that_is_lost_is_repeated():
    scheduler = Scheduler("b1")
    scheduler.away = True
    made, _ = monitor(scheduler)
    for _ in range(FAILED_CHECKS):
        await made.check()
    assert scheduler.reports == []

    scheduler.away = False
    await made.check()

    assert [report[1] for report in scheduler.reports] == ["b1"]


async def test_the_checks_of_a_removed_backend_are_forgotten():
    scheduler = Scheduler("b1")
    made, _ = monitor(scheduler)
    pools = scheduler.pools
    for _ in range(FAILED_CHECKS - 1):
        await made.check()
    scheduler.pools = {}
    await made.check()
    scheduler.pools = pools

    await made.check()

    assert scheduler.reports == []


async def test_an_address_that_cannot_be_asked_counts_as_no_answer_and_ends_nothing():
    """Such a one is stored by an earlier version."""
    scheduler = Scheduler("h:70x", "[::zz]", "b1", unhealthy="it did not answer")
    made, _ = monitor(scheduler, b1=FaultyBackend())

    for _ in range(ANSWERED_CHECKS):
        await made.check()

    assert scheduler.reports == [("policy", "b1", "")]
    with pytest.raises(BackendFailed):
        await EngineClient(transport=Backends()).get_json("http://h:70x/v1/models")


async def test_a_check_that_fails_unexpectedly_leaves_the_others(monkeypatch):
    scheduler = Scheduler("odd", "b1", unhealthy="it did not answer")
    made, _ = monitor(scheduler, b1=FaultyBackend())
    healthy = EngineClient.healthy

    async def odd(client: EngineClient, address: str) -> bool:
        if address == "http://odd":
            raise UnicodeError("label too long")
        return await healthy(client, address)

    monkeypatch.setattr(EngineClient, "healthy", odd)

    for _ in range(ANSWERED_CHECKS):
        await made.check()

    assert scheduler.reports == [("policy", "b1", "")]


async def test_it_runs_at_intervals_of_its_own():
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 20:
            raise asyncio.CancelledError

    made = BackendMonitor(EngineClient(transport=Backends()), dict, Scheduler().judge, pause=pause)
    with pytest.raises(asyncio.CancelledError):
        await made.run()

    assert len(set(pauses)) > 10
    assert all(INTERVAL_SECONDS / 2 <= each <= 1.5 * INTERVAL_SECONDS for each in pauses)
