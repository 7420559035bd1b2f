"""Connections: small pools that grow with what is under way, and proxies of the environment."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tangram_client._http import POOL_SIZE, SpreadTransport, proxy_for


class Slow(httpx.AsyncBaseTransport):
    """Answers when the test opens the gate."""

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate
        self.requests = 0
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        await self._gate.wait()
        return httpx.Response(200)

    async def aclose(self) -> None:
        self.closed = True


class Made:
    """The pools that were made."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.pools: list[Slow] = []
        self.client = httpx.AsyncClient(transport=SpreadTransport(self._make))

    def _make(self) -> Slow:
        self.pools.append(Slow(self.gate))
        return self.pools[-1]

    async def at_once(self, count: int) -> None:
        self.gate.clear()
        asking = [asyncio.create_task(self.client.get("http://x.test")) for _ in range(count)]
        while sum(pool.requests for pool in self.pools) < count:
            await asyncio.sleep(0)
        self.gate.set()
        await asyncio.gather(*asking)


async def test_no_pool_has_more_under_way_than_its_size() -> None:
    made = Made()

    await made.at_once(3 * POOL_SIZE + 1)

    assert [pool.requests for pool in made.pools] == [POOL_SIZE] * 3 + [1]


async def test_one_request_at_a_time_keeps_to_one_pool() -> None:
    made = Made()
    made.gate.set()

    for _ in range(3 * POOL_SIZE):
        await made.client.get("http://x.test")

    assert [pool.requests for pool in made.pools] == [3 * POOL_SIZE]


async def test_failed_request_makes_room_again() -> None:
    made = Made()
    asking = [asyncio.create_task(made.client.get("http://x.test")) for _ in range(POOL_SIZE)]
    await asyncio.sleep(0)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    made.gate.set()

    await made.client.get("http://x.test")

    assert len(made.pools) == 1


async def test_closing_closes_every_pool() -> None:
    made = Made()
    await made.at_once(POOL_SIZE + 1)

    await made.client.aclose()

    assert [pool.closed for pool in made.pools] == [True, True]


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://tangram.test", "http://proxy.test:3128"),
        ("http://tangram.test", None),
        ("https://127.0.0.1:8000", None),
        ("https://near.test:8000", None),
    ],
)
def test_proxy_of_the_environment_is_used_except_nearby(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("no_proxy", "near.test")

    assert proxy_for(url) == proxy
