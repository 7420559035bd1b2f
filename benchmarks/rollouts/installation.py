"""A whole Tangram for the benchmarks of rollouts, with their handler, and the service that a trainer sees.

Nodes declare more cores than the machine has: the commands of plans sleep, so nodes are bound by delay. `ENVIRONMENT_NAMES` of
the rollout worker are set by the caller alone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from benchmarks.rollouts.agents import HANDLER, SAMPLING, handlers_on_path
from benchmarks.rollouts.language_models import DIALECT
from benchmarks.rollouts.plans import PlannedRollout
from benchmarks.rollouts.trainer import Ended
from benchmarks.stack import Stack, tangram, token
from tangram_client.aio import AsyncClient

TASK: Final = "bench"
POOL: Final = "policy"
#: Instances of one request.
AT_ONCE: Final = 500
_KINDS: Final = (
    "redis",
    "valkey",
    "loop",
    "node",
    "projector",
    "jobs",
    "rollout",
    "handler",
    "web",
)


@dataclass(frozen=True)
class Options:
    """Options of the rollouts of one measurement."""

    #: Pools in turn; rollouts are dealt out among them.
    pools: Sequence[str] = (POOL,)
    #: Of the handler.
    handler: Mapping[str, Any] = field(default_factory=dict)
    #: False: rollouts without an environment.
    environment: bool = True


class RolloutService:
    """Rollouts over the native API, for one project."""

    def __init__(self, client: AsyncClient, options: Options) -> None:
        self._client = client
        self._options = options

    async def submit(self, plans: Sequence[PlannedRollout]) -> list[str]:
        """Submit rollouts; return their ids in the order of the plans."""
        pools = self._options.pools
        ids: dict[int, str] = {}
        for place, pool in enumerate(pools):
            numbers = range(place, len(plans), len(pools))
            for start in range(0, len(numbers), AT_ONCE):
                part = numbers[start : start + AT_ONCE]
                made = await self._client.rollouts.submit(
                    TASK, HANDLER, [_instance(plans[number]) for number in part],
                    llm=pool or None, sampling=SAMPLING, options=dict(self._options.handler),
                    environment={} if self._options.environment else None,
                )  # fmt: skip
                ids |= dict(zip(part, made, strict=True))
        return [ids[number] for number in range(len(plans))]

    async def wait(self, rollout: str) -> Ended:
        """Return the end of a rollout."""
        found = await self._client.rollouts.wait(rollout, tokens=False)
        detail = found.body.get("detail") or {}
        return Ended(
            found.outcome or "",
            found.reward,
            found.reason,
            detail.get("tools", 0),
            detail.get("tool_seconds", 0.0),
        )

    async def cancel(self, rollouts: Sequence[str]) -> None:
        """Cancel rollouts, all at once."""
        await asyncio.gather(*map(self._client.rollouts.cancel, rollouts))


def _instance(plan: PlannedRollout) -> dict[str, Any]:
    return {"id": plan.name, "data": {"question": plan.question, "reward": plan.reward}}


@dataclass(frozen=True)
class Installation:
    """A running Tangram, and tokens to it."""

    stack: Stack
    operator: str

    @property
    def url(self) -> str:
        """Where it is served."""
        return f"http://{self.stack.host}:{self.stack.port}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """Return a client with all scopes that the benchmarks need, for any number of waits at once."""
        async with AsyncClient(self.url, self.operator) as client:
            yield client

    async def declare(self, **units: int) -> None:
        """Declare how many rollouts are in a stage at once: ``run=1000``."""
        headers = {"Authorization": f"Bearer {self.operator}"}
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=60) as client:
            for stage, limit in units.items():
                path = f"{self.url}/api/v1/resources/stage:{stage}"
                (await client.put(path, json={"limit_units": limit})).raise_for_status()

    async def cores_taken(self) -> float:
        """Return how many cores are granted."""
        headers = {"Authorization": f"Bearer {self.operator}"}
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=60) as client:
            status = (await client.get(f"{self.url}/api/v1/status")).raise_for_status().json()
        cores = [node["resources"]["cpu"] for node in status["nodes"]]
        return float(sum(each["capacity"] - each["free"] for each in cores))

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of Tangram's processes so far, by kind; commands and sandboxes are left out."""
        found: dict[str, float] = {}
        root = psutil.Process(self.stack.process.pid)
        for each in (root, *root.children(recursive=True)):
            try:
                kind, times = kind_of(each), each.cpu_times()
            except psutil.Error:
                continue
            if kind:
                found[kind] = round(found.get(kind, 0.0) + times.user + times.system, 2)
        return found


def kind_of(process: psutil.Process) -> str:
    """Return which part of Tangram a process is; empty for others."""
    words = process.cmdline()
    line = " ".join(words)
    if "rollout.worker.handler_process" in line:
        return "handler"
    if "uvicorn" in line:
        return "web"
    if words and Path(words[0]).name in ("redis-server", "valkey-server"):
        return "redis"
    if "-Q" in words and "celery" in line:
        return words[words.index("-Q") + 1]
    return ""


async def add_backends(
    client: AsyncClient, addresses: Sequence[str], seats: int, *, separate: bool = False
) -> list[str]:
    """Add backends to one pool, or each to a pool of its own; return the pools."""
    pools = [f"{POOL}-{number}" if separate else POOL for number in range(len(addresses))]
    for number, (pool, address) in enumerate(zip(pools, addresses, strict=True)):
        await client.backends.add(pool, address, seats=seats, dialect=DIALECT, name=f"b{number}")
    return list(dict.fromkeys(pools))


@contextmanager
def installation(
    *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Installation]:
    """Start a Tangram with the handler of the benchmarks."""
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as folder:
        added = {"PYTHONPATH": handlers_on_path(Path(folder) / "packages"), **(environment or {})}
        with tangram(*options, environment=added) as stack:
            yield Installation(stack, token(stack, "read", "submit", "operate", "config"))
