"""More real services than chunks: ledger, service runner and engine together, on declared GPUs.

Memory is declared, not measured: what a stopped process held is free.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from domain.ids import ResourceId
from domain.ports import DriverContext
from domain.resources import MILLI
from domain.services import Degree, Engine, GpuService, check_service
from managers.gpu.engines.process import ProcessServer
from managers.gpu.host_memory import Home
from managers.gpu.ledger import ChunkLedger
from managers.gpu.probe import probe_gpu
from managers.gpu.service_runner import ServiceRunner
from tests.architecture.tree import ROOT

GIB = 2**30
NAMES = ("reward", "judge", "teacher", "critic")


def a_service(seed: int) -> GpuService:
    model = str(ROOT / "examples/gpu_service/numpy_model.py")
    service = GpuService(
        Engine.PROCESS,
        (Degree(1, 50 * GIB),),
        command=(
            sys.executable, model, "--port", "{port}", "--mebibytes", "1", "--seed", str(seed),
        ),
        paths=("/v1",),
    )  # fmt: skip
    check_service("model", service)
    return service


class Node:
    """Two declared GPUs of 80 GiB, on each of which one service fits."""

    def __init__(self, directory: Path) -> None:
        settings = {"gpus": "2", "gpu_memory_bytes": str(80 * GIB)}
        context = DriverContext("n1", directory, {}, settings)
        self.ledger = ChunkLedger(ResourceId("gpu:n1"), probe_gpu(context))
        self._services = {name: a_service(seed) for seed, name in enumerate(NAMES)}
        self._directory = directory
        self.runner = ServiceRunner(self._make, lambda _: 80 * GIB)
        self.evictions = 0

    def _make(self, name: str, units: tuple[int, ...]) -> ProcessServer:
        directory = self._directory / f"{name}-{units[0]}"
        return ProcessServer(self._services[name], units, directory, grace_seconds=0.5)

    async def call(self, action: str, name: str) -> float:
        """Grant a chunk, bring the service there, ask it, and give the chunk back."""
        memory = self._services[name].memory_bytes(1)
        units = self.ledger.allocate(action, MILLI, name, memory).units
        occupied = self.ledger.occupy(action, name, memory)
        self.evictions += len(occupied.evicted)
        home: Home = (name, units)
        leaving = [(each.service, each.units) for each in occupied.evicted]
        server = await self.runner.hold(action, home, memory, leaving)
        try:
            async with httpx.AsyncClient(base_url=server.base_url, trust_env=False) as client:
                answer = await client.post("/v1/score", json={"text": name}, timeout=180)
            score: float = answer.json()["score"]
            return score
        finally:
            self.runner.release(action, home)
            self.ledger.release(action)


@pytest.mark.slow
async def test_four_services_on_two_gpus_answer_alike_before_and_after_their_evictions(tmp_path):
    node = Node(tmp_path)
    try:
        first = {name: await node.call(f"1-{name}", name) for name in NAMES}
        again = {name: await node.call(f"2-{name}", name) for name in reversed(NAMES)}
        pair = await asyncio.gather(node.call("3-a", "reward"), node.call("3-b", "judge"))

        assert again == first
        assert list(pair) == [first["reward"], first["judge"]]
        assert len(set(first.values())) == len(NAMES)
        assert node.evictions == 4
        assert [each.service for each in node.ledger.residents()] in (
            ["reward", "judge"], ["judge", "reward"],
        )  # fmt: skip
        assert (node.ledger.free, node.ledger.counts) == (2 * MILLI, (0, 1, 0, 0))
    finally:
        await node.runner.close()
