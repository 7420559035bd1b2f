"""The OpenAI door of a fleet behind a real web server, and what tests ask there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.integration.runtime.keeper_rig import ServedApplication
from tests.integration.runtime.rig import Rig

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@asynccontextmanager
async def web(rig: Rig, token: str = "trainer") -> AsyncIterator[httpx.AsyncClient]:
    """Serve a gateway of the rig, and return a client of it."""
    async with rig.gateway() as gateway:
        served = ServedApplication(gateway)
        await served.start()
        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=None)
        try:
            async with httpx.AsyncClient(
                base_url=served.url, headers=headers, timeout=120, limits=limits
            ) as client:
                yield client
        finally:
            await served.stop()


def a_chat(said: str, **fields: Any) -> dict[str, Any]:
    """Return a request for a chat completion of fleet ``m``."""
    return {"model": "m", "messages": [{"role": "user", "content": said}], **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, but for its mark of the end."""
    lines = (line for line in text.split("\n") if line.startswith("data: {"))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def the_action(client: httpx.AsyncClient, answered: httpx.Response) -> dict[str, Any]:
    """Return the action of an answer as it is now."""
    view: dict[str, Any] = (
        await client.get(f"/api/v1/actions/{answered.headers['x-tangram-action']}")
    ).json()
    return view


async def until_finished(client: httpx.AsyncClient, answered: httpx.Response) -> dict[str, Any]:
    """Return the action of an answer once it is finished."""
    name = answered.headers["x-tangram-action"]
    while True:
        view: dict[str, Any] = (
            await client.get(f"/api/v1/actions/{name}", params={"wait": 60})
        ).json()
        if view["state"] == "finished":
            return view
