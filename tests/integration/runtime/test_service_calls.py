"""Calls to GPU services through every part of the system, on declared GPUs.

Engines are in memory here (`managers.gpu.engines.fake`); one local server answers for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.allocation import Home
from domain.inventory import Config, PoolConfig, ProjectConfig, ResourceInventory
from domain.keys import Keys
from domain.ports import DriverContext
from domain.services import Degree, Engine, GpuService
from managers.gpu.driver import GpuDriver
from managers.gpu.engines.fake import FakeEngineServer, FakeMemory
from scheduler.runtime.node.worker import NodeWorker
from tests.api_server import LocalApi, answer, local_api
from tests.integration.runtime.rig import LoopThread, Rig
from tests.redis_server import RedisServer

GIB = 2**30
GPU_BYTES = 80 * GIB


class AnsweringServer(FakeEngineServer):
    """A service in memory whose requests a local server answers."""

    port: int
    #: Opened when restores may go on; set unless a test closes it.
    gate: asyncio.Event

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.alive else ""

    async def restore(self) -> None:
        await self.gate.wait()
        await super().restore()


class GpuRig(Rig):
    """A system with one node of two declared GPUs, and services that need most of one."""

    api: LocalApi

    def prepare(self, *names: str, gpus: int = 2) -> None:
        services = {
            name: GpuService(
                Engine.PROCESS, (Degree(1, 50 * GIB),), command=("serve", "{port}"), paths=("/v1",)
            )
            for name in names
        }
        services["huge"] = GpuService(
            Engine.PROCESS, (Degree(1, 90 * GIB),), command=("serve", "{port}")
        )
        services["wide"] = GpuService(
            Engine.PROCESS, (Degree(4, 10 * GIB),), command=("serve", "{port}")
        )
        self.config = Config(
            revision=1,
            projects={"default": ProjectConfig("default")},
            pools={"default": PoolConfig("default")},
            services=services,
        )
        self.memory = FakeMemory()
        self.servers: dict[Home, AnsweringServer] = {}
        self.trouble: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        units = tuple(range(gpus))
        self.gpus = ResourceInventory(gpus * 1000, (units,), memory_bytes=GPU_BYTES)

    def start_loop(self) -> None:
        self.loop = LoopThread(self.url, self.keys, self.config)

    async def start_gpu_node(self) -> NodeWorker:
        have = {"gpu": self.gpus}
        context = DriverContext("n1", self.directory / "gpu", have, {}, self.passages)
        driver = GpuDriver(
            context,
            make_server=self._make,
            free_bytes=lambda unit: GPU_BYTES - self.memory.used.get(unit, 0),
            patience_seconds=0.2,
        )
        self.gpu_driver = driver
        self.others = [driver]
        return await self.start_node(gpu=self.gpus)

    def _make(self, service: GpuService, home: Home) -> AnsweringServer:
        need = service.memory_bytes(len(home.units))
        server = AnsweringServer(self.memory, home.units, need, self.trouble.get(home.service, ""))
        server.port, server.gate = self.api.port, self.gate
        self.servers[home] = server
        return server


@pytest.fixture
async def gpus(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> AsyncIterator[GpuRig]:
    rig = GpuRig(runtime_redis.url, keys, tmp_path)
    async with local_api() as rig.api:
        yield rig
        await rig.stop_node()
        if rig.loop is not None:
            rig.loop.stop()
    rig.close()


@asynccontextmanager
async def running(rig: GpuRig, *names: str, gpus: int = 2) -> AsyncIterator[httpx.AsyncClient]:
    """Start everything; return a trainer's client. The pool is whole when it is over."""
    rig.prepare(*names, gpus=gpus)
    rig.start_loop()
    await rig.start_gpu_node()
    async with rig.client() as client:
        yield client
    assert rig.loop is not None
    for ledger in rig.loop.loop.machine.state.ledgers.values():
        assert (ledger.free, ledger.holders()) == (ledger.capacity, {})
    assert not any(instance.locks for instance in rig.gpu_driver.keeper.instances())


def a_call(service: str, **fields: Any) -> dict[str, Any]:
    call = {"target": f"service:{service}", "path": "/v1/score", "json": {"text": service}}
    return {"task": "t", "kind": "call", "call": call, **fields}


async def finished(client: httpx.AsyncClient, payload: dict[str, Any]) -> dict[str, Any]:
    answered = await client.post("/actions", params={"wait": 30}, json=payload)
    assert answered.status_code == 200, answered.text
    view: dict[str, Any] = answered.json()
    return view


async def test_a_call_comes_back_with_what_the_service_said_and_what_its_restore_took(
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


async def test_what_is_cached_survives_a_restart_of_the_loop(gpus: GpuRig) -> None:
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
        (a_call("nobody"), "/call/target", "there are: a, huge, wide"),
        (a_call("huge"), "/call/target", "bytes of each GPU"),
        (a_call("wide"), "/cost/gpu", "4 asked, the largest node"),
        (a_call("a", cost={"gpu": 2}), "/cost/gpu", "runs on 1 GPUs"),
        ({**a_call("a"), "call": {"target": "service:a", "path": "/x"}}, "/call/path", "/v1"),
    ],
    ids=["unknown", "more memory than a GPU has", "more GPUs than a node has", "a count", "a path"],
)
async def test_what_can_never_be_served_is_refused_at_the_door(
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
        capacity = gpus.loop.loop.machine.state.ledgers["gpu:n1"].capacity  # type: ignore[index]

    assert moved["outcome"] == "completed"
    assert (moved["attempt"], moved["placement"]["gpus"]) == (2, [1])
    assert capacity == 1000


async def test_a_restore_whose_action_is_cancelled_goes_on_and_ends_cached(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b"{}"))
    async with running(gpus, "a", "b", gpus=1) as client:
        gpus.gate.clear()
        accepted = await client.post("/actions", json=a_call("a"))
        name = accepted.json()["id"]
        async with asyncio.timeout(30):
            while not gpus.servers:
                await asyncio.sleep(0.001)
        await client.post(f"/actions/{name}/cancel", json={})
        ended = (await client.get(f"/actions/{name}", params={"wait": 30})).json()
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
        await asyncio.wait_for(asked.wait(), 30)
        await gpus.stop_node()
        await gpus.start_gpu_node()
        ended = (await client.get(f"/actions/{name}", params={"wait": 30})).json()
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
