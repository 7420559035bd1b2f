"""docker_contended: trajectories of a trace in real containers, under Tangram and without it.

The first steps of each recording, sped up, in containers of one node: under a whole Tangram; with
cores reserved for the life of each container, which queues when they are all taken (0.5 and 1 core
each); and without any control. An action's completion time (ACT) counts from the moment its trainer
wants it, waiting for a container included. Then, in a second round, one trajectory runs a CPU-bound
action again and again on one core instead: how much longer it takes than alone is its slowdown.

    python -m benchmarks.docker_contended TRACE.jsonl --trajectories 16 48
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, store
from benchmarks.stack import tangram
from domain.action import Action, ExecSpec, Kind
from domain.allocation import Allocation
from domain.ids import ActionId, ResourceId, trajectory_key
from domain.ports import DriverContext, RunOrder
from managers.common.affinity import usable_cores
from managers.cpu.containers import ContainerDriver
from simulator.figures import Figure, Interval, Series, plot
from tangram_client.aio import AsyncClient
from tangram_client.payloads import exec_action
from tangram_client.replay.report import Quantiles
from tangram_client.traces.burn import burn_command, recorded_cost
from tangram_client.traces.recording import Recording, read_trace, resample
from tests.docker_engine import IMAGE, DockerEngine

SPIN = ("python3", "-c", "for n in range(4_000_000): pass")
ALONE_RUNS = 8
PAUSE_SECONDS = 0.2
LIMIT_SECONDS = 600.0


class System(ABC):
    """Something that runs actions in containers."""

    @asynccontextmanager
    async def trajectory(self, name: str) -> AsyncIterator[None]:
        """Enter a trajectory; leave nothing of it."""
        yield

    @abstractmethod
    async def act(self, trajectory: str, command: Sequence[str], cores: float) -> float:
        """Run one action; return the seconds that the command itself took."""


class Whole(System):
    """A whole Tangram, over HTTP."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def trajectory(self, name: str) -> AsyncIterator[None]:
        yield
        await self._client.finish_trajectory(name)

    async def act(self, trajectory: str, command: Sequence[str], cores: float) -> float:
        payload = exec_action("bench", command, cpu=cores, trajectory=trajectory)
        action = await self._client.run(payload)
        assert action.outcome == "completed", action
        assert action.timing is not None
        return action.timing.execution_seconds


class Bare(System):
    """Containers alone: as many at once as their reserved cores allow, or any number."""

    def __init__(self, driver: ContainerDriver, reserved: float | None) -> None:
        self._driver, self._reserved = driver, reserved
        cores = usable_cores()
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(int(len(cores) / reserved) if reserved else 0):
            self._free.put_nowait(cores[slot % len(cores)])
        self._core: dict[str, int] = {}
        self._count = 0

    @asynccontextmanager
    async def trajectory(self, name: str) -> AsyncIterator[None]:
        if self._reserved is not None:
            self._core[name] = await self._free.get()
        yield
        await self._driver.remove_environment(trajectory_key("bench", name))
        if self._reserved is not None:
            self._free.put_nowait(self._core.pop(name))

    async def act(self, trajectory: str, command: Sequence[str], cores: float) -> float:
        self._count += 1
        action = Action(
            id=ActionId(f"act_{self._count}"), project="bench", task="bench", kind=Kind.EXEC,
            trajectory=trajectory, exec=ExecSpec(tuple(command)),
        )  # fmt: skip
        granted: tuple[Allocation, ...] = ()
        if self._reserved is not None:
            milli, core = round(self._reserved * 1000), self._core[trajectory]
            granted = (Allocation(ResourceId("cpu:n1"), milli, (core,), shared=milli < 1000),)
        report = await self._driver.run(RunOrder(action, granted), lambda: None)
        assert report.outcome == "completed", report
        return report.execution_seconds


async def play(
    system: System, recordings: Sequence[Recording], steps: int, speed: float
) -> dict[str, Any]:
    """Play all recordings at once; return what came of it."""
    acts: list[float] = []
    began = time.monotonic()
    run = secrets.token_hex(4)

    async def one(number: int, recording: Recording) -> None:
        name = f"{run}-{number}"
        wanted = time.monotonic()
        async with system.trajectory(name):
            waited = time.monotonic() - wanted
            for step in recording.steps[:steps]:
                await asyncio.sleep(step.think_seconds / speed)
                asked = time.monotonic()
                command = burn_command(step.duration_seconds / speed, step.cpu_cores)
                await system.act(name, command, recorded_cost(step.cpu_cores))
                acts.append(time.monotonic() - asked + waited)
                waited = 0.0

    async with asyncio.timeout(LIMIT_SECONDS):
        await asyncio.gather(*(one(n, recording) for n, recording in enumerate(recordings)))
    spread = Quantiles.of(acts)
    assert spread is not None
    return {
        "actions": len(acts),
        "act_mean_seconds": round(spread.mean, 4),
        "act_p50_seconds": round(spread.p50, 4),
        "act_p95_seconds": round(spread.p95, 4),
        "makespan_seconds": round(time.monotonic() - began, 1),
    }


async def slowdown(system: System, *arguments: Any) -> dict[str, Any]:
    """Run a CPU-bound action again and again beside the recordings, after some runs alone."""
    spins: list[float] = []

    async def spin() -> None:
        async with system.trajectory("spin"):
            while True:
                spins.append(await system.act("spin", SPIN, 1))
                await asyncio.sleep(PAUSE_SECONDS)

    async with system.trajectory("alone"):
        alone = sorted([await system.act("alone", SPIN, 1) for _ in range(ALONE_RUNS)])
    spinning = asyncio.create_task(spin())
    await play(system, *arguments)
    spinning.cancel()
    await asyncio.wait({spinning})
    usual, ordered = alone[len(alone) // 2], sorted(spins)
    return {
        "spins": len(ordered),
        "alone_p50_seconds": round(usual, 3),
        **{
            f"slowdown_p{share}": round(ordered[len(ordered) * share // 100] / usual, 2)
            for share in (50, 99)
        },
    }


async def both(system: System, recordings: Sequence[Recording], *arguments: Any) -> dict[str, Any]:
    """Play, then play again with one trajectory less and the CPU-bound one instead."""
    played = await play(system, recordings, *arguments)
    return played | await slowdown(system, recordings[1:], *arguments)


async def bare(engine: DockerEngine, reserved: float | None, *arguments: Any) -> dict[str, Any]:
    """Measure containers alone."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"docker_host": engine.host, "docker_image": IMAGE, "docker_way": "direct"}
        driver = ContainerDriver(DriverContext("n1", Path(directory), {}, settings))
        await driver.open()
        try:
            measure = both if reserved is None else play
            return await measure(Bare(driver, reserved), *arguments)
        finally:
            for environment in driver.containers():
                await driver.remove_environment(environment.trajectory)  # type: ignore[arg-type]
            await driver.close()


def whole(engine: DockerEngine, *arguments: Any) -> dict[str, Any]:
    """Measure a whole Tangram."""
    os.environ |= {
        "TANGRAM_CPU_BACKEND": "docker",
        "TANGRAM_DOCKER_HOST": engine.host,
        "TANGRAM_DOCKER_IMAGE": IMAGE,
    }

    async def work(url: str, token: str) -> dict[str, Any]:
        async with AsyncClient(url, token) as client:
            return await both(Whole(client), *arguments)

    with tangram() as stack:
        return asyncio.run(work(f"http://{stack.host}:{stack.port}", stack.token))


def _play_all(
    engine: DockerEngine, recordings: Sequence[Recording], steps: int, speed: float
) -> dict[str, Any]:
    arguments = (recordings, steps, speed)
    found = {"tangram": whole(engine, *arguments)}
    for name, reserved in (("no control", None), ("0.5 for life", 0.5), ("1 for life", 1.0)):
        found[name] = asyncio.run(bare(engine, reserved, *arguments))
    return found


def _draw(found: dict[str, dict[str, Any]]) -> str:
    """Draw mean and p95 of each system; whiskers would need more than one run."""
    series = tuple(
        Series(
            name=f"{count}, {name}",
            points=tuple(
                (system, Interval(row[field], row[field], row[field]))
                for system, row in rows.items()
            ),
        )
        for count, rows in found.items()
        for name, field in (("mean", "act_mean_seconds"), ("p95", "act_p95_seconds"))
    )
    return plot(
        Figure(id="contended", title="Trajectories in containers of two cores", x="", y="ACT, s",
               series=series, kind="bars", log_y=True)
    )  # fmt: skip


def main() -> None:
    """Print a table, store it and draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--trajectories", type=int, nargs="+", default=[16, 48])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--speed", type=float, default=10.0)
    options = parser.parse_args()
    # The result names the trace, not where it lies on this machine.
    sys.argv = [word.replace(str(options.trace), options.trace.name) for word in sys.argv]
    load = os.getloadavg()[0]  # other processes on the machine slow all rivals
    engine = DockerEngine().start()
    found: dict[str, dict[str, Any]] = {}
    try:
        engine.load_image()
        for count in options.trajectories:
            recordings = list(resample(read_trace(options.trace), count, seed=0))
            found[str(count)] = _play_all(engine, recordings, options.steps, options.speed)
    finally:
        engine.stop()
    for count, rows in found.items():
        for name, row in rows.items():
            print(f"{count:>4} {name:13}", json.dumps(row))
    settings = {"steps": options.steps, "speed": options.speed}
    body = {"load_before": load, "settings": settings, "trajectories": found}
    print(store("docker_contended", body))
    (RESULTS / "docker_contended.svg").write_text(_draw(found))


if __name__ == "__main__":
    main()
