"""A system that can call one local API, and a trainer that calls through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from domain.apis import ApiConfig, Reach
from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.limits import Limits
from tests.api_server import LocalApi
from tests.integration.runtime.rig import LoopThread, Rig

SECRET = "pl41nly-Secret"


class CallRig(Rig):
    """A system that can call one local API."""

    api: LocalApi

    def start_loop(self, limits: Limits | None = None, at_once: int = 4, **declared: Any) -> None:
        """Start a leader under a configuration with ``api:search``."""
        settings = {"base_url": f"http://127.0.0.1:{self.api.port}", "reach": Reach.LOOPBACK}
        config = Config(
            revision=1,
            projects={"default": ProjectConfig("default")},
            pools={"default": PoolConfig("default")},
            resources={"api:search": at_once * 1000},
            limits={"api:search": limits} if limits else {},
            apis={"api:search": ApiConfig(**{**settings, **declared})},
        )
        self.loop = LoopThread(self.url, self.keys, config)


def a_call(path: str = "/", **fields: Any) -> dict[str, Any]:
    call = {"target": "api:search", "path": path, **fields.pop("call", {})}
    return {"task": "t", "kind": "call", "call": call, **fields}


@asynccontextmanager
async def running(rig: CallRig, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Start everything; return a trainer's client."""
    rig.start_loop(**options)
    await rig.start_node()
    async with rig.client() as client:
        yield client


async def finished(client: httpx.AsyncClient, payload: dict[str, Any]) -> dict[str, Any]:
    answered = await client.post("/actions", params={"wait": 60}, json=payload)
    assert answered.status_code == 200, answered.text
    view: dict[str, Any] = answered.json()
    return view
