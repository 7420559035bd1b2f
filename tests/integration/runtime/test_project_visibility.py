"""A token of one project learns nothing of what others do, and touches nothing that all share."""

from __future__ import annotations

from typing import Any, cast

from domain.codec import read_entry
from domain.events import ActionSubmitted
from domain.request_text import request_details
from domain.rollouts import RolloutOutcome, RolloutResult
from rollout.ports import Assigned, Record, RolloutPort
from rollout.tokens.turn_records import turn_record
from tests.integration.runtime.prorl_rig import sampled_turns
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.rollout_rig import RolloutRig, finished

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


async def test_the_request_of_an_action_is_for_its_own_project(rig: Rig) -> None:
    async with rig.client() as client:
        action = (await client.post("/actions?wait=60", json=TRUE)).json()["id"]
        rig.rows.requests[action] = request_details(TRUE, "trainer")
        plain = (await client.get(f"/actions/{action}")).json()
        shown = (await client.get(f"/actions/{action}?include=request")).json()
        unknown = await client.get(f"/actions/{action}?include=everything")
    async with rig.client("stranger") as client:
        refused = await client.get(f"/actions/{action}?include=request")

    assert "request" not in plain
    assert shown["request"]["command"] == "true"
    assert shown["request"]["body"] == TRUE
    assert {**shown, "request": None} == {**plain, "request": None}
    assert (unknown.status_code, refused.status_code) == (422, 404)
    assert unknown.json()["errors"][0]["pointer"] == "?include"


async def test_the_journal_has_the_name_of_the_token_that_submitted_an_action(rig: Rig) -> None:
    async with rig.client() as client:
        single = (await client.post("/actions?wait=60", json=TRUE)).json()["id"]
        batch = (await client.post("/actions/batch", json={"actions": [TRUE]})).json()["items"]
        await client.get(f"/actions/{batch[0]['id']}?wait=60")
    entries = cast("list[Any]", rig.redis.xrange(rig.keys.journal))
    events = [each for name, fields in entries for each in read_entry(name, fields).events]

    named = {e.action.id: e.action.by for e in events if isinstance(e, ActionSubmitted)}
    assert named == {single: "trainer", batch[0]["id"]: "trainer"}


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


async def test_turns_name_no_address_of_a_shared_backend_to_a_token_of_one_project(
    rollouts: RolloutRig,
) -> None:
    """As `GET /backends`: the number of a backend whose name is made of its address, a declared name, and no other."""
    names = ("10.0.0.9:8000", "own", "10.0.0.7:8000")

    async def samples(port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        first = sampled_turns()[0]
        for number, name in enumerate(names, 1):
            turn = turn_record(first)
            turn.header["backend"] = name
            await port.append(rollout, attempt, number, turn)
        await port.append(rollout, attempt, 4, Record("result", {"detail": {}}))
        await port.finished(rollout, attempt, RolloutResult(RolloutOutcome.COMPLETED, 1.0))

    await rollouts.start_worker(samples)
    shown: dict[str, list[str]] = {}
    async with rollouts.client("cluster") as all_projects, rollouts.client() as client:
        await all_projects.backends.add("policy", "http://10.0.0.9:8000")
        await all_projects.backends.add("policy", "http://10.0.0.8:8000", name="own")
        [rollout] = await client.rollouts.submit("t", "noop", [{"id": "i"}], llm="policy")
        await finished(client, rollout)
    for token in ("cluster", "trainer"):
        async with rollouts.rig.client(token) as http:
            turns = (await http.get(f"/rollouts/{rollout}/turns")).json()["turns"]
        shown[token] = [turn["backend"] for turn in turns]

    assert shown == {"cluster": list(names), "trainer": ["1", "own", ""]}
