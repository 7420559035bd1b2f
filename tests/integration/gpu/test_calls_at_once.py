"""Several calls at once with one instance of a service, as engines that batch want them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import Outcome
from domain.allocation import Home
from domain.apis import CallSpec
from domain.services import Engine, ServiceEvent
from managers.gpu.driver import GpuDriver
from managers.gpu.engines import EngineFailed
from tests.integration.gpu.test_driver_on_a_node import SERVICE, a_driver, an_order

HOME = Home("a", (0,))
TOGETHER = 3
GENEROUS_SECONDS = 120.0


class Batching:
    """An engine that answers when so many have asked it at once, and not before."""

    def __init__(self) -> None:
        self.restores = 0
        self.base_url = ""
        self.alive = False
        self._asked = 0
        self.heads: list[str] = []
        self._all = asyncio.Event()

    async def restore(self) -> None:
        self.restores += 1
        self._server = await asyncio.start_server(self._answer, "127.0.0.1")
        port = self._server.sockets[0].getsockname()[1]
        self.base_url, self.alive = f"http://127.0.0.1:{port}", True

    async def prepare(self) -> None:
        raise EngineFailed("it keeps nothing in host memory")

    async def evict(self) -> ServiceEvent:
        await self.close()
        return ServiceEvent.STOPPED

    async def close(self) -> None:
        if self.alive:
            self.alive = False
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.decode().lower())
        if b"broken" in head:
            writer.close()
            return
        self._asked += 1
        if self._asked == TOGETHER:
            self._all.set()
        await self._all.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()


@pytest.fixture
async def engine() -> Batching:
    return Batching()


@pytest.fixture
async def driver(tmp_path: Path, engine: Batching) -> AsyncIterator[GpuDriver]:
    driver = a_driver(tmp_path)
    driver._services._make_server = lambda service, home: engine
    await driver.open()
    yield driver
    await driver.close()


async def test_calls_reach_one_instance_at_once_after_one_restore(
    driver: GpuDriver, engine: Batching
) -> None:
    orders = [an_order(str(number), "a") for number in range(TOGETHER)]
    async with asyncio.timeout(GENEROUS_SECONDS):
        reports = await asyncio.gather(*(driver.run(order, lambda: None) for order in orders))

    assert [report.outcome for report in reports] == [Outcome.COMPLETED] * TOGETHER
    assert engine.restores == 1
    assert driver.residents() == (HOME,)
    (instance,) = driver.runner.store.instances()
    assert instance.evictable, "no call uses it any more"


async def test_a_call_that_breaks_off_does_not_end_the_service_under_the_others(
    driver: GpuDriver, engine: Batching
) -> None:
    first = asyncio.ensure_future(driver.run(an_order("1", "a"), lambda: None))
    broken = an_order("2", "a")
    broken.action.call = CallSpec("service:a", path="/v1/score?broken")
    async with asyncio.timeout(GENEROUS_SECONDS):
        failed = await driver.run(broken, lambda: None)
        assert failed.outcome is Outcome.UNKNOWN
        assert driver.residents() == (HOME,)
        others = [driver.run(an_order(name, "a"), lambda: None) for name in "34"]
        reports = await asyncio.gather(first, *others)

    assert {report.outcome for report in reports} == {Outcome.COMPLETED}
    assert engine.restores == 1


async def test_another_declaration_waits_until_no_call_uses_the_service(
    driver: GpuDriver, engine: Batching
) -> None:
    other = replace(SERVICE, env={"A": "1"})
    sent = asyncio.Event()
    async with asyncio.timeout(GENEROUS_SECONDS):
        first = asyncio.ensure_future(driver.run(an_order("1", "a"), sent.set))
        await sent.wait()
        others = [driver.run(an_order(name, "a", other), lambda: None) for name in "23"]
        await asyncio.gather(first, *others)
        assert engine.restores == 1
        await driver.run(an_order("4", "a", other), lambda: None)

    assert engine.restores == 2


@pytest.mark.parametrize(
    ("engine_of", "trajectory", "named"),
    [
        (Engine.TORCH, "t1", ["x-tangram-trajectory: p/t1"]),
        (Engine.TORCH, None, ["x-tangram-trajectory:"]),
        (Engine.PROCESS, "t1", ["x-tangram-trajectory: theirs/t9"]),
    ],
)
async def test_the_cache_of_a_call_is_that_of_its_action_whatever_its_client_names(
    driver: GpuDriver, engine: Batching, engine_of: Engine, trajectory: str | None, named: list[str]
) -> None:
    """Engine torch keeps caches by trajectory, and those of another project are not for the asking."""
    engine._all.set()
    order = an_order("1", "a")
    call = CallSpec("service:a", path="/v1/score", headers={"x-TANGRAM-trajectory": "theirs/t9"})
    order.action.call, order.action.trajectory = call, trajectory
    order.service = replace(SERVICE, engine=engine_of, source="m:f")
    async with asyncio.timeout(GENEROUS_SECONDS):
        await driver.run(order, lambda: None)
    (head,) = engine.heads
    found = [line.strip() for line in head.splitlines() if "trajectory" in line]
    assert found == named
