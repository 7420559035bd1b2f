"""Prepared environments of a pool: each of its nodes gets the number, when it joins and when it changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from domain.codec import encode
from domain.events import ConfigApplied
from domain.inventory import PoolConfig
from domain.ports.images import WarmFacts
from managers.cpu.fake import FakeDriver
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig


class WarmDriver(FakeDriver):
    """A driver that is asked for prepared environments."""

    wanted: Mapping[str, int] | None = None

    @property
    def prepared(self) -> WarmDriver:
        return self

    def keep_warm(self, wanted: Mapping[str, int]) -> None:
        self.wanted = dict(wanted)

    def warm_facts(self) -> dict[str, WarmFacts]:
        return {image: WarmFacts(number, 1, 2, 3) for image, number in (self.wanted or {}).items()}


def apply(rig: Rig, revision: int, warm: dict[str, int]) -> None:
    pools = {"default": PoolConfig("default", warm=warm)}
    config = replace(CONFIG, revision=revision, pools=pools)
    rig.redis.set(rig.keys.config, encode(config))
    rig.redis.xadd(rig.keys.inbox, {"0": encode(ConfigApplied(config=config))})


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def kept_on(rig: Rig) -> dict[str, dict[str, int]]:
    facts = json.loads(cast("bytes", rig.redis.hget(rig.keys.workers, "node@n1") or b"{}"))
    found: dict[str, dict[str, int]] = facts.get("warm", {})
    return found


async def test_a_node_gets_what_its_pool_asks_for_now_and_when_it_starts_again(rig: Rig):
    await rig.stop_node()
    first = rig.driver = WarmDriver()
    await rig.start_node()
    assert first.wanted is None
    apply(rig, 2, {"swe:1": 8})
    await until(lambda: first.wanted == {"swe:1": 8})
    await until(lambda: kept_on(rig).get("swe:1", {}).get("kept") == 1)
    async with rig.client("reader") as client:
        [node] = [
            each
            for each in (await client.get("/status")).json()["workers"]
            if each["role"] == "node"
        ]
        assert node["warm"]["swe:1"]["taken"] == 2

    await rig.stop_node()
    second = rig.driver = WarmDriver()
    await rig.start_node()
    await until(lambda: second.wanted == {"swe:1": 8})
    apply(rig, 3, {})
    await until(lambda: second.wanted == {})


async def test_another_leader_sends_it_to_nodes_that_join_later(rig: Rig):
    apply(rig, 2, {"": 2})
    await rig.stop_node()
    assert rig.loop is not None
    rig.loop.stop()
    rig.loop = LoopThread(rig.url, rig.keys)
    driver = rig.driver = WarmDriver()
    await rig.start_node()
    await until(lambda: driver.wanted == {"": 2})


async def test_a_node_without_prepared_environments_gets_no_such_command(rig: Rig):
    apply(rig, 2, {"swe:1": 8})
    async with rig.client() as client:
        # A later command passes it, so nothing waits before it.
        body = {"task": "t", "kind": "exec", "exec": {"command": ["true"]}, "cost": {"cpu": [1]}}
        response = await client.post("/actions?wait=30", json=body)
        assert response.json()["state"] == "finished", response.text
    prefix = f"{rig.keys.prefix}:node:n1:*"
    [stream] = [key for key in rig.redis.scan_iter(prefix) if b":position" not in key]
    entries = cast("list[Any]", rig.redis.xrange(stream))
    assert all(b"warm" not in value for _, fields in entries for value in fields.values())
