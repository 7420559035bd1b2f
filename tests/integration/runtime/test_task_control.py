"""A task is paused, ranked and ended over REST; each is in the journal with who asked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.runtime.rig import Rig

NOOP = {"task": "swe", "kind": "noop", "cost": {"cpu": 1}}


async def test_a_paused_task_waits_until_it_goes_on(rig: Rig) -> None:
    async with rig.client("operator") as client:
        paused = await client.post("/tasks/swe/pause")
        waits = (await client.post("/actions", json=NOOP)).json()["id"]
        why = await client.get(f"/actions/{waits}")
        other = await client.post("/actions?wait=60", json={**NOOP, "task": "other"})
        await client.post("/tasks/swe/resume")
        done = await client.get(f"/actions/{waits}?wait=60")

    assert (paused.status_code, paused.json()["paused"]) == (202, True)
    assert why.json()["waiting"]["code"] == "task_paused"
    assert other.json()["outcome"] == "completed"
    assert done.json()["outcome"] == "completed"


async def test_a_cancelled_task_ends_what_it_has(rig: Rig) -> None:
    async with rig.client("operator") as client:
        await client.post("/tasks/swe/pause")
        waits = (await client.post("/actions", json=NOOP)).json()["id"]
        await client.post("/tasks/swe/cancel", json={"reason": "a mistake"})
        done = await client.get(f"/actions/{waits}?wait=60")

    assert (done.json()["outcome"], done.json()["detail"]) == ("cancelled", "a mistake")


@pytest.mark.parametrize(
    ("body", "status"),
    [({"priority": 3}, 202), ({"priority": None}, 202), ({"priority": "high"}, 422), ({}, 422)],
)
async def test_a_priority_is_a_number_or_nothing(rig: Rig, body: Any, status: int) -> None:
    async with rig.client("operator") as client:
        answer = await client.post("/tasks/swe/priority", json=body)

    assert answer.status_code == status, answer.text


async def test_steering_needs_its_scope_and_a_name(rig: Rig) -> None:
    async with rig.client("trainer") as client:
        refused = await client.post("/tasks/swe/pause")
    async with rig.client("operator") as client:
        nonsense = await client.post("/tasks/%3Cb%3E/pause")

    assert refused.status_code in (401, 403)
    assert nonsense.status_code == 404


async def test_only_a_service_that_is_declared_is_evicted(rig: Rig) -> None:
    async with rig.client("operator") as client:
        unknown = await client.post("/services/reward/evict")

    assert unknown.status_code == 404
    assert "no service 'reward'" in unknown.json()["detail"]
