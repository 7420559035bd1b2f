"""A token of one project learns nothing of what others do, and touches nothing that all share."""

from __future__ import annotations

from typing import Any

from tests.integration.runtime.rig import Rig

TRUE = {"task": "secret-plan", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}
LEASE = {
    "task": "secret-plan",
    "trajectory": "t-77",
    "kind": "lease",
    "cost": {"api:search": 2},
    "lease": {"ttl_seconds": 600},
}


async def seen(rig: Rig, token: str, path: str) -> Any:
    async with rig.client(token) as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    return answer


async def test_lines_of_others_are_lines_without_names(rig: Rig) -> None:
    async with rig.client() as client:
        await client.post("/actions?wait=60", json=LEASE)
        waits = (await client.post("/actions", json=LEASE)).json()["id"]
        own = (await client.get("/queues")).json()["items"]
    others = (await seen(rig, "stranger", "/queues")).json()

    assert own[0]["head"] == waits
    assert (own[0]["project"], own[0]["task"]) == ("default", "secret-plan")
    assert others["waiting"] == 1
    assert (others["items"][0]["project"], others["items"][0]["task"]) == ("", "")
    assert others["items"][0]["trajectory"] is None
    assert others["items"][0]["why"]["code"] == own[0]["why"]["code"]


async def test_the_status_shows_tasks_to_their_own_project(rig: Rig) -> None:
    async with rig.client() as client:
        done = await client.post("/actions?wait=60", json=TRUE)
        assert done.json()["outcome"] == "completed"
    async with rig.client("operator") as client:
        await client.post("/tasks/secret-plan/priority", json={"priority": 3})
        own = (await client.get("/status")).json()
    others = await seen(rig, "stranger", "/status")

    assert list(own["steered_tasks"]) == ["default/secret-plan"]
    assert list(own["durations"]) == ["default/secret-plan exec"]
    assert "secret-plan" not in others.text
    assert others.json()["nodes"] == own["nodes"]


async def test_a_service_that_all_share_is_not_evicted_for_one_project(rig: Rig) -> None:
    async with rig.client("operator") as client:
        view = client._transport.app._context.admission.view  # type: ignore[attr-defined]
        view.services["reward"] = None
        answer = await client.post("/services/reward/evict")

    assert answer.status_code == 403
    assert "not bound to a project" in answer.json()["detail"]
