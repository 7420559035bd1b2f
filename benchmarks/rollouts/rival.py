"""The rival as a service for the trainer: `benchmarks.rival_prorl` as a process, over its own wire."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from benchmarks.door_client import Connection
from benchmarks.rollouts.plans import PlannedRollout
from benchmarks.rollouts.trainer import Ended
from benchmarks.stack import ROOT, free_port

READY_SECONDS: Final = 60.0


class RivalService:
    """Rollouts over ``/process`` and ``/cancel``."""

    def __init__(self, client: httpx.AsyncClient, port: int) -> None:
        self._client = client
        self._port = port
        self._running: dict[str, asyncio.Task[Ended]] = {}
        #: Whether a connection to cancel each rollout is opened when it is submitted.
        self.connects_early = False
        self._free: list[Connection] = []

    async def submit(self, plans: Sequence[PlannedRollout]) -> list[str]:
        """Submit rollouts; return their ids in the order of the plans."""
        ids = [uuid.uuid4().hex for _ in plans]
        for name, plan in zip(ids, plans, strict=True):
            self._running[name] = asyncio.create_task(self._process(name, plan))
            if self.connects_early:
                self._free.append(self._connection())
                (await self._free[-1].ask("POST", "/status", {})).checked()
        return ids

    async def wait(self, rollout: str) -> Ended:
        """Return the end of a rollout."""
        return await self._running[rollout]

    async def cancel(self, rollouts: Sequence[str]) -> None:
        """Cancel rollouts, one after the other, over one connection."""
        async with self._free.pop() if self._free else self._connection() as connection:
            for each in rollouts:
                (await connection.ask("POST", "/cancel", {"job_id": each})).checked()

    def _connection(self) -> Connection:
        return Connection("127.0.0.1", self._port, {})

    async def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request."""
        answer = await self._client.post(path, json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def _process(self, name: str, plan: PlannedRollout) -> Ended:
        instance = {"question": plan.question, "reward": plan.reward}
        found = await self.ask("/process", {"job_id": name, "instance": instance})
        if found.get("cancelled"):
            return Ended("cancelled", None)
        error = str(found.get("error", ""))
        return Ended(
            "failed" if error else "completed",
            found.get("reward"),
            error,
            found.get("tools", 0),
            found.get("tool_seconds", 0.0),
        )


@asynccontextmanager
async def rival(
    addresses: Sequence[str], run: int, *, init: int = 8, balance: str = "in_flight"
) -> AsyncIterator[RivalService]:
    """Start the rival with backends and so many workers for RUN; end it afterwards."""
    port = free_port()
    options = ["--port", str(port), "--init", str(init), "--run", str(run), "--balance", balance]
    command = [sys.executable, "-m", "benchmarks.rival_prorl", *options]
    process = subprocess.Popen(command, cwd=ROOT)  # noqa: ASYNC220 (nothing else runs yet)
    limits = httpx.Limits(max_connections=None)
    base = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(
            base_url=base, timeout=None, limits=limits, trust_env=False
        ) as client:
            service = RivalService(client, port)
            await _until_ready(service, process)
            for address in addresses:
                await service.ask("/add_llm_server", {"address": address})
            yield service
    finally:
        process.kill()
        process.wait()


async def _until_ready(service: RivalService, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                await service.ask("/status", {})
            except httpx.TransportError:
                if process.poll() is not None:
                    raise SystemExit("the rival did not start") from None
                await asyncio.sleep(0.05)
            else:
                return
