"""1,000 rollouts at once on one worker machine, each with an environment and a tool.

The model answers nothing until all of them are in RUN and have asked, so all are there at the same moment; then each makes its
call and ends. Targets: all complete, control endpoints answer within 250 ms meanwhile (99th percentile).

An operator asks for the status, with a token and in a process of its own: what the event loop of the trainer takes for its thousand
requests is not Tangram's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import httpx
import psutil

from benchmarks.record import quantiles
from benchmarks.rollouts.installation import (
    Installation,
    Options,
    RolloutService,
    add_backends,
    installation,
    kind_of,
)
from benchmarks.rollouts.language_models import LanguageModels, language_models
from benchmarks.rollouts.plans import PlannedRollout, PlannedStep
from benchmarks.rollouts.trainer import COMPLETED
from benchmarks.stack import token

CONTROL_SECONDS: Final = 0.25
WITHIN_SECONDS: Final = 1200.0
TOOL_SECONDS: Final = 0.1
#: Between two requests of the operator: in ten seconds there are hundreds, so that the 99th percentile is not the slowest one.
PAUSE_SECONDS: Final = 0.03


async def measure(count: int, *, environments: bool) -> dict[str, Any]:
    """Return what so many rollouts took."""
    steps = (PlannedStep(50, TOOL_SECONDS),) if environments else ()
    plans = [PlannedRollout(f"m{number}", "m", steps, 1.0) for number in range(count)]
    slots = {"TANGRAM_ROLLOUT_SLOTS": str(count)}
    with (
        language_models([1.0], slots=count) as models,
        installation("--cpus", "256", environment=slots) as found,
    ):
        await found.declare(run=count)
        async with found.client() as client:
            await add_backends(client, models.addresses, count)
            service = RolloutService(client, Options(environment=environments))
            models.call("hold")
            with asked(found) as latencies:
                began = time.monotonic()
                ids = await service.submit(plans)
                waits = asyncio.gather(*map(service.wait, ids))
                at_once = await _until_asked(models, count)
                started = time.monotonic() - began
                memory = memory_of(found)
                models.call("release")
                outcomes = Counter(each.outcome for each in await waits)
                ended = time.monotonic() - began - started
    row = {
        "rollouts": count,
        "environments": environments,
        "at_once": at_once,
        "started_seconds": round(started, 1),
        "ended_seconds": round(ended, 1),
        "memory_mib": memory,
        "control": quantiles(latencies),
        "outcomes": dict(outcomes),
    }
    print(f"many: {row}", flush=True)
    return row


async def _until_asked(models: LanguageModels, count: int) -> int:
    """Return how many rollouts wait for the model, once all do."""
    async with asyncio.timeout(WITHIN_SECONDS):
        asked = 0
        while asked < count:
            await asyncio.sleep(0.1)
            asked = int((await asyncio.to_thread(models.stats))[0]["asked"])
    return asked


@contextmanager
def asked(found: Installation) -> Iterator[list[float]]:
    """Ask for the status now and then; the list has the seconds of each request at the end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    given = (found.url, token(found.stack, "read"), theirs)
    process = context.Process(target=_ask, args=given, daemon=True)
    process.start()
    ours.recv()
    latencies: list[float] = []
    try:
        yield latencies
    finally:
        ours.send("enough")
        latencies += ours.recv()
        process.join()


def _ask(url: str, secret: str, pipe: Connection) -> None:
    latencies = []
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(headers=headers, trust_env=False, timeout=30) as client:
        client.get(f"{url}/api/v1/status").raise_for_status()
        pipe.send("ready")
        while not pipe.poll(PAUSE_SECONDS):
            began = time.monotonic()
            client.get(f"{url}/api/v1/status").raise_for_status()
            latencies.append(time.monotonic() - began)
    pipe.send(latencies)


def memory_of(found: Installation) -> dict[str, float]:
    """Return the proportional memory of Tangram's processes by kind, in MiB."""
    sizes: Counter[str] = Counter()
    for each in psutil.Process(found.stack.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if kind := kind_of(each):
                sizes[kind] += each.memory_full_info().pss
    return {kind: round(size / 2**20, 1) for kind, size in sizes.items()}


def missed(row: dict[str, Any]) -> list[str]:
    """Return the targets that were missed."""
    late = []
    if row["outcomes"] != {COMPLETED: row["rollouts"]}:
        late.append(f"not all completed: {row['outcomes']}")
    if row["control"]["p99_ms"] > 1000 * CONTROL_SECONDS:
        late.append(f"control endpoints answered after {row['control']['p99_ms']:g} ms")
    return late
