"""Faults during restores and evictions of services: calls end, and the pool is whole afterwards.

`running` measures that when it ends: nothing is held, and all memory is that of services which are there.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.allocation import Home
from domain.services import Engine
from tests.api_server import answer
from tests.integration.runtime.gpu_rig import GIB, GpuRig, a_call, finished, running, until


@pytest.mark.parametrize("trouble", ["breaks", "keeps", "late"])
async def test_a_service_that_misbehaves_while_it_drains_is_in_nobodys_way(
    gpus: GpuRig, trouble: str
) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", gpus=1) as client:
        gpus.trouble["a"] = trouble
        views = [await finished(client, a_call(name)) for name in "abab"]

    assert [view["outcome"] for view in views] == ["completed"] * 4


async def test_a_service_that_hangs_in_its_restore_fails_and_others_have_the_chunk(
    gpus: GpuRig,
) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", gpus=1) as client:
        gpus.trouble["a"] = "hangs"
        failed = await finished(client, a_call("a"))
        other = await finished(client, a_call("b"))

    assert (failed["outcome"], other["outcome"]) == ("infra_failed", "completed")
    assert "did not answer within" in failed["detail"]
    assert gpus.memory.used[0] == 50 * GIB


async def test_a_service_that_crashes_while_it_works_is_ended_and_restored(gpus: GpuRig) -> None:
    asked = asyncio.Event()

    async def crash(_: Any, writer: asyncio.StreamWriter) -> None:
        gpus.servers[Home("a", (0,))].crash()
        asked.set()
        writer.close()

    gpus.api.behave = crash
    async with running(gpus, "a", "b", gpus=1) as client:
        broken = await finished(client, a_call("a", replay_safe=False))
        assert asked.is_set()
        gpus.api.says(answer(200, b"{}"))
        views = [await finished(client, a_call(name)) for name in "ab"]

    assert (broken["outcome"], broken["reward"]) == ("unknown", None)
    assert [view["outcome"] for view in views] == ["completed"] * 2


async def test_a_call_is_not_kept_waiting_by_a_restore_that_its_holder_gave_up(
    gpus: GpuRig,
) -> None:
    """Engines are patient for two minutes, the node is not: the restore is ended."""
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", gpus=1) as client:
        gpus.trouble["a"] = "waits"
        name = (await client.post("/actions", json=a_call("a"))).json()["id"]
        await until(lambda: bool(gpus.memory.used.get(0)))
        await client.post(f"/actions/{name}/cancel", json={})
        other = await finished(client, a_call("b"))

    assert other["outcome"] == "completed"


async def test_more_copies_than_host_memory_holds_are_ended_and_started_again(
    gpus: GpuRig,
) -> None:
    """Four services, two GPUs, and room for the copies of three."""
    gpus.api.says(answer(200, b"{}"))
    gpus.engine, gpus.host_bytes = Engine.SGLANG, 150 * GIB
    async with running(gpus, "a", "b", "c", "d") as client:
        views = [await finished(client, a_call(name)) for name in "abcdabcd"]
        assert gpus.gpu_driver.host_memory().used_bytes <= 150 * GIB

    assert {view["outcome"] for view in views} == {"completed"}


async def test_a_service_that_no_node_can_hold_is_refused_at_the_door(gpus: GpuRig) -> None:
    gpus.engine, gpus.host_bytes = Engine.SGLANG, 40 * GIB
    async with running(gpus, "a") as client:
        refused = await client.post("/actions", json=a_call("a"))

    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == "/call/target"
    assert "TANGRAM_NODE_SERVICE_MEMORY_BYTES" in refused.text
