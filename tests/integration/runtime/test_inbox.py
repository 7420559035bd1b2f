"""The inbox holds what is not handled yet, and nothing else for long."""

from __future__ import annotations

import asyncio

from tests.integration.runtime.rig import Rig

NOOP = {"task": "t", "kind": "noop"}


async def test_questions_alone_do_not_pile_up(rig: Rig) -> None:
    """They leave nothing in the journal, so no commit trims them."""
    async with rig.client() as client:
        for _ in range(30):
            assert (await client.get("/status")).status_code == 200
        async with asyncio.timeout(120):
            while rig.redis.xlen(rig.keys.inbox) > 1:
                await asyncio.sleep(0.05)


async def test_a_submission_between_questions_is_not_trimmed_away(rig: Rig) -> None:
    async with rig.client() as client:
        for _ in range(20):
            asked, submitted = await asyncio.gather(
                client.get("/status"), client.post("/actions?wait=60", json=NOOP)
            )
            assert asked.status_code == 200
            assert submitted.json()["outcome"] == "completed"
