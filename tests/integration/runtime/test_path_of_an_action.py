"""From a request to a process and back, over a real Redis."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from domain.action import Outcome
from domain.allocation import UsedResources
from domain.redis_keys import Keys
from managers.cpu.fake import Play
from managers.registry import load
from scheduler.core.machine import Machine
from scheduler.core.state import invariants
from scheduler.runtime.redis.journal import START, Journal
from tests.integration.runtime.rig import CONFIG, Rig

NOOP = {"task": "t", "kind": "noop"}


@pytest.fixture(params=[True, False], ids=["socket", "redis"])
def leader_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The node reaches the leader of its machine over a socket, that of another through Redis."""
    return tmp_path / "leader.sock" if request.param else None


def an_exec(*command: str, **more: object) -> dict[str, object]:
    return {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": command}, **more}


async def test_a_noop_is_finished_in_one_request(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/actions", params={"wait": 60}, json=NOOP)
    assert answer.status_code == 200
    view = answer.json()
    assert (view["state"], view["outcome"]) == ("finished", "completed")
    timing = view["timing"]
    parts = timing["queue_seconds"] + timing["overhead_seconds"] + timing["execution_seconds"]
    assert abs(parts - timing["act_seconds"]) < 1e-9


async def test_command_brings_its_output_units_and_reward(rig: Rig) -> None:
    body = an_exec("echo", "hi", cost={"cpu": [2, 4]}, reward={"from": "exit_code"})
    async with rig.client() as client:
        view = (await client.post("/actions?wait=60", json=body)).json()
    assert view["result"]["stdout"] == "hi\n"
    assert view["units"] == {"cpu": 2}
    assert view["placement"]["node"] == "n1"
    assert len(view["placement"]["cpus"]) == 2
    assert view["reward"] == 1.0


@pytest.mark.parametrize(
    ("play", "rule", "reason"),
    [
        (Play(exit_code=127), {"from": "exit_code"}, "no reward: exit code 127"),
        (
            Play(exit_code=137, detail="left"),
            {"from": "exit_code"},
            "left; no reward: exit code 137",
        ),
        (
            Play(exit_code=1),
            {"from": "exit_code", "runner": "pytest"},
            "no reward: the command did",
        ),
        (Play(), {"from": "json", "file": "score.json"}, "no reward: the command did not write"),
        (Play(outcome=Outcome.INFRA_FAILED, detail="lost"), {"from": "exit_code"}, "lost"),
        (Play(outcome=Outcome.OOM_KILLED, detail="large"), {"from": "exit_code"}, "large"),
    ],
)
async def test_an_action_without_evidence_has_no_reward_and_gives_the_reason(
    rig: Rig, play: Play, rule: dict[str, str], reason: str
) -> None:
    rig.driver.script = lambda _: play
    body = an_exec("pytest", reward=rule, trajectory="trj-1")
    async with rig.client() as client:
        view = (await client.post("/actions?wait=60", json=body)).json()
    assert view["reward"] is None
    assert view["detail"].startswith(reason)


async def test_a_reward_is_read_from_the_file_that_the_command_writes(rig: Rig) -> None:
    rig.driver.script = lambda _: Play(exit_code=3, reward_file=b'{"score": 0.25}')
    rule = {"from": "json", "path": "score", "file": "score.json"}
    async with rig.client() as client:
        view = (await client.post("/actions?wait=60", json=an_exec("score", reward=rule))).json()
    assert (view["reward"], view["detail"]) == (0.25, None)


async def test_the_result_has_used_and_granted_resources(rig: Rig) -> None:
    used = UsedResources(0.5, 0.0, 2**20)
    rig.driver.script = lambda _: Play(used=used)
    async with rig.client() as client:
        view = (await client.post("/actions?wait=60", json=an_exec("true"))).json()
    assert view["units"] == {"cpu": 1}
    assert view["used"] == view["result"]["used"] == msgspec.to_builtins(used)


async def test_action_that_runs_long_is_answered_202_and_found_later(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/actions?wait=0.1", json=an_exec("sleep", "600"))
        assert answer.status_code == 202
        await rig.end_action(answer.json()["id"])
        later = await client.get(f"/actions/{answer.json()['id']}", params={"wait": 60})
    assert later.json()["outcome"] == "completed"


async def test_waiting_action_says_why(rig: Rig) -> None:
    async with rig.client() as client:
        await client.post("/actions", json=an_exec("sleep", "600", cost={"cpu": 4}))
        second = (await client.post("/actions", json=an_exec("true"))).json()["id"]
        view = (await client.get(f"/actions/{second}")).json()
    assert view["state"] == "queued"
    assert view["waiting"]["resource"] == "cpu:n1"
    assert "waits for 1 of cpu:n1" in view["waiting"]["reason"]


async def test_cancel_ends_a_running_action_and_may_be_repeated(rig: Rig) -> None:
    async with rig.client() as client:
        name = (await client.post("/actions?wait=0.1", json=an_exec("sleep", "600"))).json()["id"]
        assert (await client.post(f"/actions/{name}/cancel")).status_code == 202
        view = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
        again = await client.post(f"/actions/{name}/cancel")
    assert view["outcome"] == "cancelled"
    assert view["reward"] is None
    assert (again.status_code, again.json()["outcome"]) == (200, "cancelled")


async def test_batch_takes_each_item_on_its_own(rig: Rig) -> None:
    items = [NOOP, {"task": "t"}, {"task": "t", "kind": "noop", "cost": {"cpu": 99}}]
    async with rig.client() as client:
        answer = await client.post("/actions/batch", json={"actions": items})
        body = answer.json()
        first = await client.get(f"/actions/{body['items'][0]['id']}", params={"wait": 60})
    assert answer.status_code == 202
    assert [item["status"] for item in body["items"]] == [202, 422, 422]
    assert body["items"][2]["problem"]["code"] == "never_fits"
    assert (body["accepted"], body["refused"]) == (1, 2)
    assert first.json()["outcome"] == "completed"


async def test_batch_of_which_nothing_is_accepted_is_answered_too(rig: Rig) -> None:
    async with rig.client() as client:
        answer = await client.post("/actions/batch", json={"actions": [{"task": "t"}]})
    assert (answer.status_code, answer.json()["accepted"]) == (202, 0)


async def test_lease_is_granted_renewed_and_released(rig: Rig) -> None:
    body = {"task": "t", "kind": "lease", "cost": {"api:search": 2}, "lease": {"ttl_seconds": 600}}
    async with rig.client() as client:
        name = (await client.post("/actions", json=body)).json()["id"]
        held = (await client.get(f"/actions/{name}")).json()
        behind = (await client.post("/actions", json=body)).json()["id"]
        waiting = (await client.get(f"/actions/{behind}")).json()
        renewed = await client.post(f"/leases/{name}/renew", json={"ttl_seconds": 1200})
        released = (await client.post(f"/leases/{name}/release")).json()
        then = (await client.get(f"/actions/{behind}")).json()
    assert (held["state"], held["units"]) == ("running", {"api:search": 2})
    assert waiting["waiting"]["resource"] == "api:search"
    assert renewed.json()["expires_at"] > held["result"]["expires_at"]
    assert released["outcome"] == "completed"
    assert then["state"] == "running"


async def test_waiting_for_a_lease_ends_at_its_grant(rig: Rig) -> None:
    body = {"task": "t", "kind": "lease", "cost": {"api:search": 2}, "lease": {"ttl_seconds": 600}}
    async with rig.client() as client:
        held = await client.post("/actions?wait=60", json=body)
        behind = asyncio.create_task(client.post("/actions?wait=60", json=body))
        await client.post(f"/leases/{held.json()['id']}/release")
        then = await behind
        await client.post(f"/leases/{then.json()['id']}/release")
        over = await client.get(f"/actions/{then.json()['id']}?wait=60")
    assert (held.status_code, held.json()["state"]) == (200, "running")
    assert (then.status_code, then.json()["state"]) == (200, "running")
    assert then.json()["result"]["expires_at"]
    assert over.json()["outcome"] == "completed"


async def test_file_written_before_the_first_action_is_read_back(rig: Rig) -> None:
    async with rig.client() as client:
        await client.post("/trajectories", json={"id": "a", "task": "t"})
        put = await client.put("/trajectories/a/files/x/y.txt", content=b"hello\0")
        got = await client.get("/trajectories/a/files/x/y.txt")
        gone = await client.get("/trajectories/a/files/nothing")
        out = await client.put("/trajectories/a/files/%2e%2e/y.txt", content=b"")
    assert (put.status_code, got.content) == (201, b"hello\0")
    assert gone.status_code == 404
    assert out.status_code == 422


async def test_finished_trajectory_takes_no_more_actions(rig: Rig) -> None:
    async with rig.client() as client:
        await client.post("/actions?wait=60", json=an_exec("true", trajectory="a"))
        finish = await client.post("/trajectories/a/finish")
        late = (await client.post("/actions?wait=60", json=an_exec("true", trajectory="a"))).json()
        unknown = await client.post("/trajectories/unknown/finish")
    assert finish.status_code == 202
    assert late["outcome"] == "cancelled"
    assert unknown.status_code == 404


async def test_many_clients_at_once_all_get_their_own_answer(rig: Rig) -> None:
    async with rig.client() as client:
        answers = await asyncio.gather(
            *(
                client.post("/actions?wait=60", json=an_exec("echo", str(number)))
                for number in range(60)
            )
        )
    assert [a.json()["result"]["stdout"] for a in answers] == [f"{n}\n" for n in range(60)]


async def test_replay_of_the_journal_decides_the_same(rig: Rig, keys: Keys) -> None:
    async with rig.client() as client:
        works = [an_exec("true", trajectory=f"r{n % 3}") for n in range(12)]
        await asyncio.gather(*(client.post("/actions?wait=60", json=work) for work in works))
    machine = Machine(load(()).make_ledger, CONFIG)
    entries = list(Journal(rig.redis, keys).after(START))
    for _, entry in entries:
        assert machine.handle(*entry.events) == entry.decisions
        invariants.check(machine.state)
    assert len(entries) > 5
