"""Calls to GPU services through every part of the system, on declared GPUs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis

from domain.allocation import Home
from domain.limits import Share
from domain.ports import UnitUse
from domain.services import Engine
from tests.api_server import answer
from tests.integration.runtime.gpu_rig import (
    GIB,
    GPU_BYTES,
    GpuRig,
    a_call,
    finished,
    running,
    until,
)


async def test_a_call_returns_the_response_of_the_service_and_the_restore_time(
    gpus: GpuRig,
) -> None:
    gpus.api.says(answer(200, b'{"score": 0.75}'))
    async with running(gpus, "a") as client:
        reward = {"from": "json", "path": "score"}
        first = await finished(client, a_call("a", reward=reward))
        second = await finished(client, a_call("a", reward=reward))

    assert (first["outcome"], first["reward"], first["units"]) == ("completed", 0.75, {"gpu": 1})
    assert first["placement"] == {"node": "n1", "gpus": [0]}
    assert [view["result"]["cached"] for view in (first, second)] == [False, True]
    restored = first["result"]["restore_seconds"]
    assert 0 < restored <= first["timing"]["overhead_seconds"]
    assert [request.path for request in gpus.api.asked] == ["/v1/score", "/v1/score"]


async def test_more_services_than_gpus_are_served_by_eviction(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    names = ("a", "b", "c", "d")
    async with running(gpus, *names) as client:
        views = await asyncio.gather(*(finished(client, a_call(name)) for name in names * 3))

    assert {view["outcome"] for view in views} == {"completed"}
    assert any(view["result"]["evicted"] for view in views)
    assert max(gpus.memory.used.values()) <= GPU_BYTES


async def test_cached_services_survive_a_restart_of_the_loop(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b") as client:
        await finished(client, a_call("a"))
        assert gpus.loop is not None
        gpus.loop.stop()
        gpus.start_loop()
        again = await finished(client, a_call("a"))

    assert again["result"]["cached"]


async def test_a_restarted_node_begins_with_what_it_really_has(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a") as client:
        await finished(client, a_call("a"))
        await gpus.stop_node()
        await gpus.start_gpu_node()
        again = await finished(client, a_call("a"))

    assert (again["outcome"], again["result"]["cached"]) == ("completed", False)


@pytest.mark.parametrize(
    ("payload", "pointer", "says"),
    [
        (a_call("unknown"), "/call/target", "there are: a, huge, wide"),
        (a_call("huge"), "/call/target", "bytes of each GPU"),
        (a_call("wide"), "/cost/gpu", "4 asked, the largest node"),
        (a_call("a", cost={"gpu": 2}), "/cost/gpu", "runs on 1 GPUs"),
        ({**a_call("a"), "call": {"target": "service:a", "path": "/x"}}, "/call/path", "/v1"),
    ],
    ids=["unknown", "more memory than a GPU has", "more GPUs than a node has", "a count", "a path"],
)
async def test_an_infeasible_call_is_refused_at_the_gateway(
    gpus: GpuRig, payload: dict[str, Any], pointer: str, says: str
) -> None:
    async with running(gpus, "a") as client:
        refused = await client.post("/actions", json=payload)

    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == pointer
    assert says in refused.text


async def test_a_service_that_crashed_between_calls_is_restored(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a") as client:
        await finished(client, a_call("a"))
        gpus.servers[Home("a", (0,))].crash()
        again = await finished(client, a_call("a"))

    assert again["outcome"] == "completed"
    assert gpus.servers[Home("a", (0,))].restores == 2


async def test_a_service_that_breaks_off_its_answer_is_ended_and_the_call_is_unknown(
    gpus: GpuRig,
) -> None:
    async def hang_up(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.close()

    gpus.api.behave = hang_up
    async with running(gpus, "a") as client:
        broken = await finished(client, a_call("a"))
        gpus.api.says(answer(200, b"{}"))
        again = await finished(client, a_call("a"))

    assert (broken["outcome"], again["outcome"]) == ("unknown", "completed")
    assert not again["result"]["cached"]


async def test_a_service_that_cannot_be_restored_fails_with_its_last_words(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b") as client:
        gpus.trouble["a"] = "dies"
        failed = await finished(client, a_call("a"))
        other = await finished(client, a_call("b"))

    assert (failed["outcome"], failed["attempt"]) == ("infra_failed", 3)
    assert "out of memory" in failed["detail"]
    assert other["outcome"] == "completed"
    assert set(gpus.memory.used.values()) <= {0, 50 * GIB}


async def test_a_gpu_whose_memory_does_not_get_free_is_quarantined(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", "c") as client:
        gpus.trouble["a"] = "leaks"
        await finished(client, a_call("a"))
        await finished(client, a_call("b"))
        moved = await finished(client, a_call("c"))
        assert gpus.loop is not None
        capacity = gpus.loop.loop.term.machine.state.supply.ledgers["gpu:n1"].capacity  # type: ignore[index]

    assert moved["outcome"] == "completed"
    assert (moved["attempt"], moved["placement"]["gpus"]) == (2, [1])
    assert capacity == 1000


async def test_a_restore_whose_action_is_cancelled_goes_on_and_ends_cached(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", gpus=1) as client:
        gpus.gate.clear()
        accepted = await client.post("/actions", json=a_call("a"))
        name = accepted.json()["id"]
        async with asyncio.timeout(120):
            while not gpus.servers:
                await asyncio.sleep(0.001)
        await client.post(f"/actions/{name}/cancel", json={})
        ended = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
        gpus.gate.set()
        later = [await finished(client, a_call(service)) for service in ("a", "b")]

    assert (ended["outcome"], ended["reward"]) == ("cancelled", None)
    assert [view["result"]["cached"] for view in later] == [True, False]


async def test_a_command_with_gpus_gets_them_empty(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", gpus=1) as client:
        await finished(client, a_call("a"))
        assert gpus.memory.used[0] == 50 * GIB
        command = {"task": "t", "kind": "exec", "cost": {"gpu": 1}, "exec": {"command": ["true"]}}
        ran = await finished(client, command)

    assert ran["outcome"] == "completed"
    assert gpus.memory.used[0] == 0


async def test_a_call_whose_node_worker_dies_ends_and_its_chunk_is_free_again(
    gpus: GpuRig,
) -> None:
    asked = asyncio.Event()

    async def never(_: Any, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    gpus.api.behave = never
    async with running(gpus, "a", "b", gpus=1) as client:
        name = (await client.post("/actions", json=a_call("a"))).json()["id"]
        await asyncio.wait_for(asked.wait(), 120)
        await gpus.stop_node()
        await gpus.start_gpu_node()
        ended = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
        gpus.api.says(answer(200, b"{}"))
        other = await finished(client, a_call("b"))

    assert ended["outcome"] in ("unknown", "infra_failed")
    assert ended["reward"] is None
    assert other["outcome"] == "completed"


async def test_two_calls_that_race_for_one_chunk_follow_each_other(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", gpus=1) as client:
        views = await asyncio.gather(*(finished(client, a_call(name)) for name in "abab"))

    assert {view["outcome"] for view in views} == {"completed"}
    assert {tuple(view["placement"]["gpus"]) for view in views} == {(0,)}
    assert max(gpus.memory.used.values()) <= GPU_BYTES


async def test_a_call_that_waits_for_its_share_finds_its_service_on_the_idle_chunk(
    gpus: GpuRig,
) -> None:
    gpus.api.says(answer(200, b"{}"))
    gpus.shares = {"gpu": {"default": Share(1000, borrow=0), "other": Share(1000, lend=0)}}
    async with running(gpus, "a", "b") as client:
        gpus.gate.clear()
        first = asyncio.ensure_future(finished(client, a_call("a")))
        await until(lambda: any(home.service == "a" for home in gpus.servers))
        second = asyncio.ensure_future(finished(client, a_call("b")))
        await until(lambda: Home("b", (1,)) in gpus.servers)
        gpus.gate.set()

        assert (await first)["result"]["cached"] is False
        assert (await second)["result"]["cached"] is True
        assert gpus.servers[Home("b", (1,))].restores == 1


async def test_a_service_that_dies_on_one_chunk_is_served_on_another_one(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a") as client:
        gpus.trouble["a@0"] = "dies"
        first = await finished(client, a_call("a"))
        gpus.servers[Home("a", (1,))].crash()
        second = await finished(client, a_call("a"))

        for view in (first, second):
            assert view["outcome"] == "completed", view
            assert view["placement"]["gpus"] == [1]
        assert gpus.servers[Home("a", (0,))].restores == 0


async def test_an_eager_service_is_in_host_memory_for_every_chunk_before_it_is_called(
    gpus: GpuRig,
) -> None:
    gpus.api.says(answer(200, b"{}"))
    gpus.engine, gpus.eager = Engine.SGLANG, True
    async with running(gpus, "a", "b") as client:
        ready = {(name, (unit,)) for name in "ab" for unit in (0, 1)}

        def prepared() -> bool:
            instances = gpus.gpu_driver.runner.store.instances()
            asleep = {(e.service, e.units) for e in instances if e.state == "host_resident"}
            return asleep >= ready

        await until(prepared)
        assert set(gpus.memory.used.values()) == {0}
        assert (await finished(client, a_call("a")))["outcome"] == "completed"


async def test_a_node_says_what_its_gpus_do(gpus: GpuRig) -> None:
    async with running(gpus, "a"):
        gpus.gpu_driver._use = lambda unit: UnitUse(0.5, unit)
        client = redis.Redis.from_url(gpus.url)

        def said() -> object:
            life = client.hget(gpus.keys.workers, "node@n1")
            return json.loads(life).get("gpus") if life else None

        await until(lambda: said() == {"0": [0.5, 0], "1": [0.5, 1]})
        client.close()
