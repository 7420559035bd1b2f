"""Workers, clients, leaders and web processes that fail while generations run: each ends once, and its slot is free."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from domain.decisions import Finish, Grant, Requeue
from domain.events import ActionSubmitted
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetEngine, FleetSpec, WorkerFact, WorkerSpec
from scheduler.core.state import lifecycle
from tests.integration.runtime import fleet_processes
from tests.integration.runtime.fleet_doors import CHAT, a_chat, events_of, until_finished, web
from tests.integration.runtime.fleet_processes import engine, free_port, until_running
from tests.integration.runtime.keeper_rig import KeeperRig, an_engine

pytestmark = pytest.mark.slow

#: A generation that goes on until it is ended.
LONG: dict[str, Any] = {"max_tokens": 50_000, "ignore_eos": True}


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def finishes(fleet: KeeperRig) -> list[Finish]:
    return [each for each in fleet.journalled() if isinstance(each, Finish)]


async def until_ended(fleet: KeeperRig, count: int = 1) -> list[Finish]:
    """Wait until so many generations have ended."""
    await fleet.until_journalled(
        lambda received: sum(isinstance(each, Finish) for each in received) >= count
    )
    return finishes(fleet)


async def first_event(lines: AsyncIterator[str]) -> str:
    async for line in lines:
        if line:
            return line
    raise AssertionError("the stream has no event")


@asynccontextmanager
async def one_engine(fleet: KeeperRig) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """Run an engine, a leader and a web server."""
    port = free_port()
    async with engine(port):
        fleet.lead([url(port)])
        async with web(fleet) as client:
            yield port, client


async def test_a_worker_that_refuses_connections_is_left_out(fleet: KeeperRig) -> None:
    working = an_engine()
    [served] = await fleet.serve(working)
    fleet.lead([url(free_port()), served.url])
    async with web(fleet) as client:
        asked = [client.post(CHAT, json=a_chat(f"n{n}", max_tokens=2)) for n in range(6)]
        answered = await asyncio.gather(*asked)

    assert [each.status_code for each in answered] == [200] * 6
    assert {each.headers["x-tangram-worker"] for each in answered} == {"w2"}
    assert "cannot be reached" in fleet.workers()["w1"].unhealthy
    assert fleet.workers()["w2"].usable


async def test_without_any_worker_that_answers_the_client_may_ask_again(fleet: KeeperRig) -> None:
    fleet.lead([url(free_port()), url(free_port()), url(free_port())])
    async with web(fleet) as client:
        failed = await client.post(CHAT, json=a_chat("x"))

    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "infra_failed")
    assert "cannot be reached" in failed.json()["error"]["message"]
    assert "x-should-retry" not in failed.headers


@pytest.mark.parametrize("replay_safe", [True, False])
async def test_a_worker_that_is_killed_before_its_answer(
    fleet: KeeperRig, replay_safe: bool
) -> None:
    dying, other = free_port(), an_engine()
    [served] = await fleet.serve(other)
    async with engine(dying) as process:
        fleet.lead([url(dying), served.url])
        async with web(fleet) as client:
            fleet.tell(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w2", drained=True),)))
            await fleet.until(lambda found: found["w2"].drained)
            own = {"trajectory": "t", "replay_safe": replay_safe}
            asking = asyncio.create_task(client.post(CHAT, json=a_chat("x", **LONG, tangram=own)))
            await until_running(dying, 1)
            fleet.tell(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w2", drained=False),)))
            await fleet.until(lambda found: not found["w2"].drained)
            process.kill()
            answered = await asking
            # The next request of the trajectory does not meet the dead worker.
            following = await client.post(
                CHAT, json=a_chat("y", max_tokens=1, tangram={"trajectory": "t"})
            )

    if replay_safe:
        assert (answered.status_code, answered.headers["x-tangram-worker"]) == (200, "w2")
        assert len(other.received) == 2
    else:
        assert (answered.status_code, answered.json()["error"]["code"]) == (502, "unknown")
        assert answered.headers["x-should-retry"] == "false"
        assert "worker w1" in answered.json()["error"]["message"]
    assert (following.status_code, following.headers["x-tangram-worker"]) == (200, "w2")


async def test_a_worker_that_is_killed_within_its_answer_ends_it_with_an_error(
    fleet: KeeperRig,
) -> None:
    dying, own = free_port(), {"trajectory": "t", "replay_safe": True}
    async with engine(dying) as process:
        fleet.lead([url(dying)])
        async with (
            web(fleet) as client,
            client.stream(
                "POST", CHAT, json=a_chat("x", **LONG, stream=True, tangram=own)
            ) as stream,
        ):
            lines = stream.aiter_lines()
            await first_event(lines)
            process.kill()
            rest = [line async for line in lines if line]

    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("unknown", "server_error")
    [finish] = await until_ended(fleet)
    assert (finish.outcome, finish.attempts) == ("unknown", 1)
    await fleet.until(lambda found: "broke off" in found["w1"].unhealthy)


async def test_a_generation_without_a_worker_waits_and_says_why(fleet: KeeperRig) -> None:
    working = an_engine()
    [served] = await fleet.serve(working)
    fleet.lead([served.url])
    drain = FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=True),))
    async with web(fleet) as client:
        fleet.tell(drain)
        await fleet.until(lambda found: found["w1"].drained)
        late = {"queue_timeout_seconds": 0.2}
        expired = await client.post(CHAT, json=a_chat("x", tangram=late))
        asking = asyncio.create_task(client.post(CHAT, json=a_chat("y", max_tokens=1)))
        waiting = await _waiting(fleet, client, 2)
        fleet.tell(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=False),)))
        answered = await asking

    assert (expired.status_code, expired.json()["error"]["code"]) == (503, "expired")
    assert "queue_timeout_seconds" in expired.json()["error"]["message"]
    assert waiting["waiting"]["code"] == "no_worker"
    assert "no worker of fleet m" in waiting["waiting"]["reason"]
    assert answered.status_code == 200


async def _waiting(fleet: KeeperRig, client: httpx.AsyncClient, count: int) -> dict[str, Any]:
    """Return the generation that was submitted as number ``count``, once it waits."""
    submitted = await fleet.until_journalled(
        lambda received: [each for each in received if isinstance(each, ActionSubmitted)][
            count - 1 :
        ]
    )
    view: dict[str, Any] = (await client.get(f"/api/v1/actions/{submitted[0].action.id}")).json()
    assert view["state"] == "queued"
    return view


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_hangs_up_ends_its_generation_at_the_worker(
    fleet: KeeperRig, streams: bool
) -> None:
    async with one_engine(fleet) as (port, client):
        asking = asyncio.create_task(client.post(CHAT, json=a_chat("x", **LONG, stream=streams)))
        await until_running(port, 1)
        asking.cancel()
        await until_running(port, 0)
        [finish] = await until_ended(fleet)
        answered = await client.post(CHAT, json=a_chat("y", max_tokens=1))

    assert (finish.outcome, finish.detail) == ("cancelled", "its client disconnected")
    assert answered.status_code == 200


async def test_a_client_that_hangs_up_while_it_waits_takes_no_slot(fleet: KeeperRig) -> None:
    working = an_engine()
    [served] = await fleet.serve(working)
    fleet.lead([served.url])
    async with web(fleet) as client:
        fleet.tell(FleetWorkersChanged(fleet="m", facts=(WorkerFact("w1", drained=True),)))
        await fleet.until(lambda found: found["w1"].drained)
        asking = asyncio.create_task(client.post(CHAT, json=a_chat("x")))
        await _waiting(fleet, client, 1)
        asking.cancel()
        [finish] = await until_ended(fleet)

    assert (finish.outcome, finish.attempts) == ("cancelled", 0)
    assert working.received == []


@pytest.mark.parametrize("streams", [True, False])
async def test_a_cancelled_action_ends_its_generation_at_the_worker(
    fleet: KeeperRig, streams: bool
) -> None:
    async with one_engine(fleet) as (port, client):
        asking = asyncio.create_task(client.post(CHAT, json=a_chat("x", **LONG, stream=streams)))
        await until_running(port, 1)
        [grant] = await fleet.until_journalled(
            lambda received: [each for each in received if isinstance(each, Grant)]
        )
        cancelled = await client.post(
            f"/api/v1/actions/{grant.action_id}/cancel", json={"reason": "enough"}
        )
        answered = await asking
        await until_running(port, 0)
        [finish] = await until_ended(fleet)

    assert cancelled.status_code in (200, 202)
    assert (finish.outcome, finish.detail) == ("cancelled", "enough")
    error = events_of(answered.text)[-1]["error"] if streams else answered.json()["error"]
    assert (error["code"], error["message"]) == ("cancelled", "enough")
    assert answered.status_code == (200 if streams else 409)


async def test_a_generation_that_takes_too_long_is_ended(fleet: KeeperRig) -> None:
    async with one_engine(fleet) as (port, client):
        own = {"timeout_seconds": 0.3}
        answered = await client.post(CHAT, json=a_chat("x", **LONG, tangram=own))
        await until_running(port, 0)

    assert (answered.status_code, answered.json()["error"]["code"]) == (502, "timeout")
    assert "timeout_seconds (0.3)" in answered.json()["error"]["message"]


async def test_a_finished_trajectory_ends_its_generations(fleet: KeeperRig) -> None:
    async with one_engine(fleet) as (port, client):
        own = {"trajectory": "t"}
        asking = asyncio.create_task(client.post(CHAT, json=a_chat("x", **LONG, tangram=own)))
        await until_running(port, 1)
        await client.post("/api/v1/trajectories/t/finish")
        answered = await asking
        await until_running(port, 0)

    assert (answered.status_code, answered.json()["error"]["code"]) == (409, "cancelled")


async def test_kill_9_of_the_leader_loses_no_generation(fleet: KeeperRig) -> None:
    """1. One generation runs and one waits for its slot. 2. The leader is killed. 3. Another one leads."""
    port = free_port()
    spec = FleetSpec(FleetEngine.VLLM, workers=(WorkerSpec("w1", url(port), 1),))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine(port, "--slots", "4"))
        first = await stack.enter_async_context(fleet_processes.leader(fleet, spec))
        client = await stack.enter_async_context(web(fleet))
        runs = asyncio.create_task(
            client.post(CHAT, json=a_chat("x", max_tokens=300, ignore_eos=True))
        )
        await until_running(port, 1)
        waits = asyncio.create_task(client.post(CHAT, json=a_chat("y", max_tokens=2)))
        await _waiting(fleet, client, 2)
        first.kill()
        await first.wait()
        fleet.redis.delete(fleet.keys.leader)
        await stack.enter_async_context(fleet_processes.leader(fleet, spec))
        answered = await asyncio.gather(runs, waits)
        views = [await until_finished(client, each) for each in answered]

    assert [each.status_code for each in answered] == [200, 200]
    assert [each["outcome"] for each in views] == ["completed", "completed"]
    assert not any(isinstance(each, Requeue) for each in fleet.journalled())


async def test_kill_9_of_a_web_process_ends_its_generations_as_unknown(
    fleet: KeeperRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A generation runs. 2. Its web process is killed. 3. The slot is given to one of another web process."""
    monkeypatch.setattr(lifecycle, "HOLD_SECONDS", 8.0)
    port = free_port()
    async with engine(port, "--slots", "1"):
        fleet.lead([url(port)], slots=1)
        async with fleet_processes.gateway(fleet) as (process, address):
            asking = asyncio.create_task(_ask(address, a_chat("x", **LONG)))
            await until_running(port, 1)
            process.kill()
            with pytest.raises(httpx.TransportError):
                await asking
            await until_running(port, 0)  # its connection to the worker ended with it
        [finish] = await until_ended(fleet)
        async with web(fleet) as client:
            answered = await client.post(CHAT, json=a_chat("y", max_tokens=1))

    assert (finish.outcome, finish.attempts) == ("unknown", 1)
    assert "gateway that held it is silent" in (finish.detail or "")
    assert answered.status_code == 200


async def _ask(address: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": "Bearer trainer"}
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120) as client:
        return await client.post(CHAT, json=body)


@pytest.mark.long
async def test_generations_are_held_for_longer_than_a_renewal_lasts(
    fleet: KeeperRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "HOLD_SECONDS", 12.0)
    async with one_engine(fleet) as (_, client):
        answered = await client.post(CHAT, json=a_chat("x", max_tokens=2300, ignore_eos=True))
        view = await until_finished(client, answered)

    assert (answered.status_code, view["outcome"]) == (200, "completed")
    assert view["timing"]["execution_seconds"] > 12.0
