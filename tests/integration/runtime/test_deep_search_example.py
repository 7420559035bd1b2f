"""The DeepSearch example, on APIs that are strict and sometimes fail: no trajectory does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.ports import DriverContext
from domain.redis_keys import Keys
from examples.deep_search import SEARCHES, TURNS, ToyApis, play
from managers.quota.call_driver import CallDriver
from tangram_client import AsyncClient
from tangram_web.pools import manifests
from tests.architecture.tree import ROOT
from tests.integration.runtime.rig import LoopThread, Rig
from tests.redis_server import RedisServer


def declared(port: int) -> Config:
    """Return the example's own declaration, on another port."""
    text = (ROOT / "examples" / "deep_search.yaml").read_text().replace("8900", str(port))
    specs = {name: spec for (_, name), spec in manifests.parse(text).items()}
    return Config(
        revision=1,
        projects={"default": ProjectConfig("default")},
        pools={"default": PoolConfig("default")},
        resources={name: spec.limit_units * 1000 for name, spec in specs.items()},
        limits={name: spec.limits for name, spec in specs.items()},
        apis={name: spec.api for name, spec in specs.items()},
    )


async def test_no_trajectory_fails(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> None:
    trajectories, apis = 12, ToyApis()
    server = await asyncio.start_server(apis.serve, "127.0.0.1", 0)
    rig = Rig(runtime_redis.url, keys, tmp_path)
    rig.others = [CallDriver(DriverContext("n1", tmp_path / "api", {}, {}))]
    rig.loop = LoopThread(rig.url, keys, declared(server.sockets[0].getsockname()[1]))
    await rig.start_node()
    try:
        async with rig.client() as gateway:
            transport = gateway._transport
            client = AsyncClient("http://tangram", "trainer", transport=_Borrowed(transport))
            scores = await asyncio.wait_for(play(client, trajectories), 240)
    finally:
        await rig.stop_node()
        rig.loop.stop()
        rig.close()
        server.close()
    assert scores == [0.5] * trajectories
    assert apis.served == trajectories * (TURNS * SEARCHES + 1)
    assert apis.broken > 0


class _Borrowed(httpx.AsyncBaseTransport):
    """The gateway's transport, which closing a client does not close."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._transport.handle_async_request(request)
