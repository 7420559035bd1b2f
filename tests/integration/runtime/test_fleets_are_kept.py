"""The keeper of fleets finds what workers are, over HTTP, and says so to the scheduler."""

from __future__ import annotations

import asyncio

import pytest

from domain.errors import Fenced
from domain.fleet_events import FleetWorkersChanged, TrajectoryPinned
from domain.fleets import FleetEngine, PriorityUse, TransferAdapter, WorkerFact
from scheduler.runtime.fleets.keeper_lease import KeeperLease
from scheduler.runtime.redis.clients import connect_async
from tests.integration.runtime.keeper_rig import KeeperRig, an_engine

pytestmark = pytest.mark.slow


async def test_a_worker_that_dies_gets_no_generations_until_it_answers_again(
    fleet: KeeperRig,
) -> None:
    first, second = await fleet.serve(an_engine(), an_engine())
    fleet.lead([first.url, second.url])
    fleet.keep()
    await fleet.until(lambda found: all(each.usable for each in found.values()))
    await fleet.until_reported(lambda found: len(found.workers) == 2)

    await second.stop()
    found = await fleet.until(lambda found: not found["w2"].usable)
    assert "3 health checks failed" in found["w2"].unhealthy
    assert found["w1"].usable

    await second.start()
    await fleet.until(lambda found: found["w2"].usable)


async def test_probes_name_what_workers_do_with_priorities_and_moves(fleet: KeeperRig) -> None:
    engines = [
        an_engine("sglang", priorities="lower", store="file", weight_version="7"),
        an_engine("sglang", priorities="greater", store="file", weight_version="8"),
    ]
    served = await fleet.serve(*engines)
    fleet.lead([each.url for each in served], FleetEngine.SGLANG)
    fleet.keep()

    found = await fleet.until(
        lambda found: all(
            each.priorities and each.moves and each.weights_version for each in found.values()
        )
    )
    assert [each.priorities for each in found.values()] == [
        PriorityUse.LOWER_FIRST,
        PriorityUse.GREATER_FIRST,
    ]
    assert {each.moves for each in found.values()} == {TransferAdapter.SHARED}
    assert [each.weights_version for each in found.values()] == [7, 8]

    engines[0].behaviour.weight_version = "9"
    await fleet.until(lambda found: found["w1"].weights_version == 9)
    report = await fleet.until_reported(lambda found: found.moves is TransferAdapter.SHARED)
    assert [each.detail for each in report.probed_moves if each.usable] == [
        "all workers read the store file"
    ]


async def test_a_vllm_that_refuses_priorities_is_known_before_a_request_has_one(
    fleet: KeeperRig,
) -> None:
    served = await fleet.serve(an_engine(priorities="refused"), an_engine(priorities="ignored"))
    fleet.lead([each.url for each in served])
    fleet.keep()

    found = await fleet.until(lambda found: all(each.priorities for each in found.values()))

    assert found["w1"].priorities is PriorityUse.REFUSED
    assert found["w2"].priorities is PriorityUse.ACCEPTED  # vLLM does not say that it ignores them
    report = await fleet.until_reported(lambda found: found.probed_moves)
    assert report.moves is TransferAdapter.NONE
    assert "writes to no store" in str(report.probed_moves) or "404" in str(report.probed_moves)


async def test_a_worker_that_another_process_found_dead_is_checked_again(fleet: KeeperRig) -> None:
    (only,) = await fleet.serve(an_engine())
    fleet.lead([only.url])
    fleet.keep()
    await fleet.until_reported(lambda found: found.workers)

    fleet.tell(
        FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", unhealthy="refused a connection"),))
    )
    await fleet.until_journalled(
        lambda facts: [
            each
            for each in facts
            if isinstance(each, FleetWorkersChanged) and each.facts[0].unhealthy == ""
        ]
    )
    await fleet.until(lambda found: found["w1"].usable)


async def test_one_process_keeps_the_fleets_and_another_takes_over(fleet: KeeperRig) -> None:
    (only,) = await fleet.serve(an_engine())
    fleet.lead([only.url])
    first, running = fleet.keep()
    await fleet.until_reported(lambda found: found.keeper == first.lease.name)
    second, _ = fleet.keep()

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await fleet.until_reported(lambda found: found.keeper == second.lease.name)

    await only.stop()
    await fleet.until(lambda found: not found["w1"].usable)


async def test_a_keeper_that_stood_still_changes_nothing_afterwards(fleet: KeeperRig) -> None:
    client = connect_async(fleet.url)
    late, next_one = (KeeperLease(client, fleet.keys, name, 600) for name in ("late", "next"))
    assert await late.take()
    assert not await next_one.take()
    fleet.redis.delete(fleet.keys.fleet_keeper)  # it expires while the process stands still
    assert await next_one.take()

    with pytest.raises(Fenced):
        await late.append([FleetWorkersChanged(fleet="m", removed=("w1",))])
    with pytest.raises(Fenced):
        await late.put(fleet.keys.fleet_reports, "m", b"{}")
    await late.give_back()
    assert not fleet.redis.exists(fleet.keys.inbox)
    assert fleet.redis.get(fleet.keys.fleet_keeper) == b"next"
    late.close()
    next_one.close()
    await client.aclose()


async def test_operators_drain_workers_and_pin_trajectories_by_name(fleet: KeeperRig) -> None:
    fleet.lead(["http://127.0.0.1:9"])
    await fleet.until(lambda found: "w1" in found)
    async with fleet.client("cluster") as client, fleet.client("operator") as member:
        refused = await member.post("/fleets/m/workers/w1/drain")
        assert (refused.status_code, refused.json()["code"]) == (403, "all_projects")
        missing = await client.post("/fleets/m/workers/w9/drain")
        assert (missing.status_code, "there are: w1" in missing.text) == (404, True)
        assert (await client.post("/fleets/n/pin", json={"trajectory": "t"})).status_code == 404

        assert (await client.post("/fleets/m/workers/w1/drain")).status_code == 202
        await fleet.until(lambda found: found["w1"].drained)
        assert (await client.post("/fleets/m/workers/w1/undrain")).status_code == 202
        await fleet.until(lambda found: not found["w1"].drained)

        pin = {"trajectory": "t-1", "worker": "w1"}
        assert (await member.post("/fleets/m/pin", json=pin)).status_code == 404
        opened = {"task": "t", "id": "t-1"}
        assert (await member.post("/trajectories", json=opened)).status_code < 300
        assert (await member.post("/fleets/m/pin", json=pin)).json() == {"fleet": "m", **pin}
        (pinned,) = await fleet.until_journalled(
            lambda facts: [each for each in facts if isinstance(each, TrajectoryPinned)]
        )
    assert (pinned.trajectory, pinned.worker) == ("default/t-1", "w1")
    assert pinned.asked is not None
    assert pinned.asked.by == "operator"


async def test_a_fleet_says_how_it_is_and_what_an_arrangement_would_change(
    fleet: KeeperRig,
) -> None:
    fleet.lead(["http://127.0.0.1:9"])
    await fleet.until(lambda found: "w1" in found)
    async with fleet.client("cluster") as client, fleet.client("operator") as member:
        status = (await client.get("/fleets/m/status")).json()
        theirs = (await member.get("/fleets/m/status", params={"limit": 0})).json()
        plan = (await member.post("/fleets/m/plan")).json()
        wrong = [
            await client.post("/fleets/m/plan", json={"limit": 0}),
            await client.post("/fleets/m/plan", json={"limits": 1}),
            await client.get("/fleets/m/status", params={"limit": "many"}),
        ]
        missing = await client.post("/fleets/n/plan")

    assert [each["url"] for each in (*status["workers"], *theirs["workers"])] == [
        "http://127.0.0.1:9", None,
    ]  # fmt: skip
    assert (plan["code"], plan["placements"]) == ("no_trajectories", [])
    assert [each.json()["errors"][0]["pointer"] for each in wrong] == [
        "/limit", "/limits", "?limit",
    ]  # fmt: skip
    assert {each.status_code for each in wrong} == {422}
    assert (missing.status_code, "there are: m" in missing.text) == (404, True)
