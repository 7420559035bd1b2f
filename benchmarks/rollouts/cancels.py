"""Cancels: 64 rollouts in the middle of a tool are cancelled at once, of Tangram and of the rival.

answered   each ``/cancel``, from its request to its answer. Target: all 64 within 250 ms.
waiters    ``GET /rollouts/{id}?wait=`` of each rollout, from the first request to cancel on
leases     until no seat of the model is taken and no core is granted
freed      until no process of a tool is left, too. Target: ≤ 2 s
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import psutil

from benchmarks.door_client import Connection
from benchmarks.record import quantiles
from benchmarks.rollouts.installation import (
    POOL,
    Installation,
    Options,
    RolloutService,
    add_backends,
    installation,
)
from benchmarks.rollouts.language_models import language_models
from benchmarks.rollouts.plans import PlannedRollout, PlannedStep
from benchmarks.rollouts.rival import rival
from benchmarks.rollouts.trainer import Ended, Service
from tangram_client.aio import AsyncClient

ANSWERED_SECONDS: Final = 0.25
FREED_SECONDS: Final = 2.0
WITHIN_SECONDS: Final = 120.0
#: Of the tool that is cancelled: found by it in the list of processes.
TOOL_SECONDS: Final = 4321.0
T = TypeVar("T")


class LeanService:
    """Waits and cancels of Tangram over connections that are open already: a client's own work is not measured."""

    def __init__(self, found: Installation, service: RolloutService) -> None:
        self._found, self._service = found, service
        self._free: list[Connection] = []

    async def submit(self, plans: Sequence[PlannedRollout]) -> list[str]:
        """Submit rollouts; open a connection to cancel each."""
        ids = await self._service.submit(plans)
        for _ in ids:
            connection = self._connection()
            (await connection.ask("GET", "/livez")).checked()
            self._free.append(connection)
        return ids

    async def wait(self, rollout: str) -> Ended:
        """Return the end of a rollout."""
        async with self._connection() as connection:
            while True:
                path = f"/api/v1/rollouts/{rollout}?wait=30&segments=false"
                found = (await connection.ask("GET", path)).checked().json()
                if found["state"] == "finished":
                    return Ended(found["outcome"], found.get("reward"))

    async def cancel(self, rollouts: Sequence[str]) -> None:
        """Cancel rollouts, one after the other."""
        connection = self._free.pop()
        for each in rollouts:
            answer = await connection.ask("POST", f"/api/v1/rollouts/{each}/cancel")
            answer.checked(200, 202)
        connection.close()

    def _connection(self) -> Connection:
        headers = {"Authorization": f"Bearer {self._found.operator}"}
        return Connection(self._found.stack.host, self._found.stack.port, headers)


async def measure(count: int, rounds: int) -> dict[str, Any]:
    """Return latencies of both systems."""
    rows: dict[str, Any] = {}
    with language_models([1.0, 1.0], slots=count) as models:
        with installation("--cpus", str(2 * count)) as found:
            async with found.client() as client:
                await add_backends(client, models.addresses, count)
                service = LeanService(found, RolloutService(client, Options()))
                rows["tangram"] = [
                    await _round(service, count, lambda: _taken(client, found))
                    for _ in range(rounds)
                ]
        async with rival(models.addresses, count, init=count) as theirs:
            theirs.connects_early = True

            async def environments() -> float:
                return float((await theirs.ask("/status", {}))["environments"])

            rows["rival"] = [await _round(theirs, count, environments) for _ in range(rounds)]
    for name, found_rows in rows.items():
        for row in found_rows:
            print(f"cancels: {name}: {row}", flush=True)
    return {"rollouts": count, "rows": rows}


async def _round(
    service: Service, count: int, taken: Callable[[], Awaitable[float]]
) -> dict[str, Any]:
    steps = (PlannedStep(50, TOOL_SECONDS),)
    plans = [PlannedRollout(f"c{number}", "c", steps, 1.0) for number in range(count)]
    ids = await service.submit(plans)
    waits = [asyncio.create_task(_timed(service.wait(each))) for each in ids]
    await _until(lambda: _tools() >= count)
    await asyncio.sleep(0.5)  # the last of them is reported as running
    began = time.monotonic()
    answers = await asyncio.gather(*(_timed(service.cancel([each])) for each in ids))
    answered = [ended - began for ended, _ in answers]
    ends = await asyncio.gather(*waits)
    outcomes = {end.outcome for _, end in ends}
    await _until_zero(taken)
    leases = time.monotonic() - began
    await _until(lambda: not _tools())
    freed = time.monotonic() - began
    assert outcomes == {"cancelled"}, outcomes
    return {
        "answered": quantiles(answered),
        "last_answer_ms": round(1000 * max(answered), 1),
        "last_waiter_ms": round(1000 * (max(ended for ended, _ in ends) - began), 1),
        "leases_seconds": round(leases, 3),
        "freed_seconds": round(freed, 3),
    }


async def _timed(work: Awaitable[T]) -> tuple[float, T]:
    result = await work
    return time.monotonic(), result


async def _until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        while not await asyncio.to_thread(reached):  # noqa: ASYNC110 (processes give no event)
            await asyncio.sleep(0.05)


async def _until_zero(taken: Callable[[], Awaitable[float]]) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        while await taken():  # noqa: ASYNC110 (another system gives no event)
            await asyncio.sleep(0.02)


def _tools() -> int:
    """Return how many tools run: each is one `sleep` of its own duration."""
    wanted = ["sleep", f"{TOOL_SECONDS:.3f}"]
    return sum(each.info["cmdline"] == wanted for each in psutil.process_iter(["cmdline"]))


async def _taken(client: AsyncClient, found: Installation) -> float:
    """Return how many seats and cores are taken."""
    pools = await client.backends.list()
    seats = sum(
        each.get("taken", 0) for pool in pools if pool["pool"] == POOL for each in pool["backends"]
    )
    cores = await found.cores_taken()
    return float(seats) + cores


def missed(result: dict[str, Any]) -> list[str]:
    """Return the targets that were missed."""
    rows = result["rows"]["tangram"]
    answered = max(row["last_answer_ms"] for row in rows)
    freed = max(row["freed_seconds"] for row in rows)
    late = []
    if answered > 1000 * ANSWERED_SECONDS:
        late.append(f"the last cancel was answered after {answered:g} ms")
    if freed > FREED_SECONDS:
        late.append(f"everything was free after {freed:g} s")
    return late
