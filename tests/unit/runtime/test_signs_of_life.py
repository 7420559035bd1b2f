"""Signs of life of web processes: stored while they run, taken away when they end in order."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from domain.redis_keys import Keys
from scheduler.runtime import liveness
from scheduler.runtime.liveness import WEB, keep_showing_life


class Hash:
    """The part of Redis that holds signs of life."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.stored: list[dict[str, Any]] = []

    async def hset(self, key: str, name: str, body: str) -> None:
        """Store a row."""
        self.rows[name] = json.loads(body)
        self.stored.append(self.rows[name])

    async def hdel(self, key: str, name: str) -> None:
        """Delete a row."""
        self.rows.pop(name, None)


async def test_a_process_shows_life_with_its_delay_until_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "LIFE_SECONDS", 0.05)
    monkeypatch.setattr(liveness, "DELAY_SECONDS", 0.01)
    client: Any = Hash()
    living = asyncio.ensure_future(
        keep_showing_life(client, Keys("t"), "web@h:1:ab", WEB, lambda: True)
    )
    while not client.stored:
        await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - the event loop is blocked, as by a view that computes
    while not any(each["delay_seconds"] >= 0.2 for each in client.stored):
        await asyncio.sleep(0.01)
    row = client.rows["web@h:1:ab"]
    assert (row["role"], row["host"] != "") == ("web", True)
    assert row["began"] <= row["at"]

    living.cancel()
    await asyncio.wait({living})
    assert client.rows == {}
