"""beside_ray: the same actions by Tangram on the machines of a Ray cluster, and by Ray alone: a task per action, with a sandbox of its own.

    python -m benchmarks.beside_ray --trace RECORDED.jsonl [--machines 4] [--trajectories 32] [--seconds 20] [--speed 20]

Both have the same raylets of two cores each, one after the other in each round, and the order changes with the round. Two loads:

rate    so many trajectories run an empty command, one after the other each: actions a second
trace   recorded trajectories of coding agents, in a twentieth of their time: each step thinks, then sleeps as long as its command ran;
        the mean ACT, seen by the client; each round has other trajectories, since a mean depends on which of them share a machine

In both an action takes one core of the machine on which its trajectory has its folder. All machines are on this one, so what is compared
is the cost of an action and the order of actions. Targets: at least 3 times Ray's actions a second, and the lower mean ACT.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import name_paths, quantiles, store
from domain.decisions import EndMove
from scheduler.runtime.redis.journal import START, Journal
from tangram_client import AsyncClient, exec_action
from tests.faults.ray_nodes import RayNodes, until

RIVAL: Final = Path(__file__).with_name("rival_ray_sandbox.py")
TARGET_RATE: Final = 3.0
SPEED: Final = 20.0

Steps = list[tuple[float, float]]


def recorded(path: Path, first: int, count: int, speed: float, longest: int) -> list[Steps]:
    """Return (think, run) seconds of the first steps of so many trajectories, from the one with number ``first`` on, and then the first ones."""
    lines = itertools.islice(itertools.cycle(path.read_text().splitlines()), first, first + count)
    return [
        [
            (step["think_s"] / speed, step["dur_s"] / speed)
            for step in json.loads(line)["steps"][:longest]
        ]
        for line in lines
    ]


class RayAlone:
    """Ray without Tangram."""

    def __init__(self, running: RayNodes, folder: Path) -> None:
        self._folder = folder
        command = [str(running.machines.python), str(RIVAL)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._tell(address=running.machines.address)

    def _tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdout is not None
        self._tell(folder=str(self._folder), **order)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def rate(self, trajectories: int, seconds: float) -> dict[str, Any]:
        """Run empty commands."""
        return self._ask(trajectories=trajectories, seconds=seconds)

    def trace(self, steps: Sequence[Steps]) -> dict[str, Any]:
        """Play recorded trajectories."""
        return self._ask(trajectories=len(steps), steps=steps)

    def close(self) -> None:
        """Leave the cluster, whose processes for tasks end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Ours:
    """Tangram, whose node workers run on the same machines."""

    #: Of all rounds: a trajectory ends with the nodes of its round.
    _openings = itertools.count()

    def __init__(self, running: RayNodes, machines: int) -> None:
        self._running = running
        access = json.loads((running.directory / "client.json").read_text())
        self._access = access["url"], access["token"]
        running.launch(machines)

    def rate(self, trajectories: int, seconds: float) -> dict[str, Any]:
        """Run empty commands."""
        return asyncio.run(self._rate(trajectories, seconds))

    def trace(self, steps: Sequence[Steps]) -> dict[str, Any]:
        """Play recorded trajectories."""
        return asyncio.run(self._trace(steps))

    async def _rate(self, trajectories: int, seconds: float) -> dict[str, Any]:
        async with AsyncClient(*self._access) as client:
            runs = await self._opened(client, trajectories)
            found: list[float] = []
            began = time.perf_counter()

            async def fill(run: Any) -> None:
                while time.perf_counter() < began + seconds:
                    found.append(await run(["true"]))

            await asyncio.gather(*map(fill, runs))
            return {"seconds": time.perf_counter() - began, "act": found}

    async def _trace(self, steps: Sequence[Steps]) -> dict[str, Any]:
        async with AsyncClient(*self._access) as client:
            runs = await self._opened(client, len(steps))
            found: list[float] = []
            began = time.perf_counter()

            async def play(run: Any, own: Steps) -> None:
                for think, seconds in own:
                    await asyncio.sleep(think)
                    found.append(await run(["sleep", f"{seconds:.3f}"]))

            await asyncio.gather(*map(play, runs, steps))
            return {"seconds": time.perf_counter() - began, "act": found}

    async def _opened(self, client: AsyncClient, trajectories: int) -> list[Any]:
        """Return what runs an action of each trajectory; its environment exists, as Ray's processes do."""
        opened = next(self._openings)

        def runner(name: str) -> Any:
            async def run(command: list[str]) -> float:
                began = time.perf_counter()
                done = await client.run(exec_action("beside", command, cpu=1, trajectory=name))
                if done.outcome != "completed":
                    raise SystemExit(f"{command} ended as {done.outcome}: {done}")
                return time.perf_counter() - began

            return run

        runs = [runner(f"load-{opened}-{number}") for number in range(trajectories)]
        await asyncio.gather(*(run(["true"]) for run in runs))
        return runs

    def close(self) -> None:
        """End the node workers, so that Ray has their cores."""
        assert self._running.launcher is not None
        for name in self._running.instances():
            self._running.launcher.end(self._running.installation, self._running.group, name)
        # The next round's nodes have the same names: those of this one are lost before.
        until(lambda: not self._running.instances() and not self._running.ready_nodes())


def one_round(side: Ours | RayAlone, options: argparse.Namespace, steps: Sequence[Steps]) -> Any:
    """Return what one of both does."""
    try:
        rate = side.rate(options.trajectories, options.seconds)
        played = side.trace(steps)
    finally:
        side.close()
    return {
        "per_second": round(len(rate["act"]) / rate["seconds"], 1),
        "empty": quantiles(rate["act"]),
        "trace_mean_act_ms": round(1e3 * statistics.fmean(played["act"]), 2),
        "trace": quantiles(played["act"]),
        "trace_seconds": round(played["seconds"], 1),
        "trace_actions": len(played["act"]),
    }


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Return all rounds of both, and medians of the ratios."""
    count = options.trajectories
    played = [
        recorded(options.trace, number * count, count, options.speed, options.steps)
        for number in range(options.rounds)
    ]
    running = RayNodes(directory, machines=options.machines)
    rounds: list[dict[str, Any]] = []
    try:
        running.start()
        for number in range(options.rounds):
            makers: dict[str, Callable[[], Ours | RayAlone]] = {
                "ray": partial(RayAlone, running, directory / f"ray-{number}"),
                "tangram": partial(Ours, running, options.machines),
            }
            names = list(makers) if number % 2 == 0 else list(reversed(makers))
            steps = played[number]
            rounds.append({name: one_round(makers[name](), options, steps) for name in names})
            print(json.dumps(rounds[-1]), flush=True)
        moves = _moves(running)
    finally:
        running.stop()
    means = [
        each["tangram"]["trace_mean_act_ms"] / each["ray"]["trace_mean_act_ms"] for each in rounds
    ]
    rates = [each["tangram"]["per_second"] / each["ray"]["per_second"] for each in rounds]
    ideal = statistics.fmean(seconds for steps in played for own in steps for _, seconds in own)
    return {
        "machines": options.machines,
        "trajectories": options.trajectories,
        "recorded_mean_ms": round(1e3 * ideal, 2),
        "rounds": rounds,
        "rate_ratio": round(statistics.median(rates), 2),
        "act_ratio": round(statistics.median(means), 3),
        "moves": moves,
    }


def _moves(running: RayNodes) -> int:
    """Return how many environments have moved for actions that waited."""
    with running.system.client() as client:
        return sum(
            isinstance(decision, EndMove) and not decision.why
            for _, entry in Journal(client, running.system.keys).after(START)
            for decision in entry.decisions
        )


def main() -> int:
    """Measure, print and store."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=25, help="of a trajectory, at most")
    parser.add_argument("--speed", type=float, default=SPEED)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="beside-ray-") as directory:
        found = measure(options, Path(directory))
    print(json.dumps({name: found[name] for name in ("rate_ratio", "act_ratio")}))
    name_paths()
    store("beside_ray", found, "" if options.speed == SPEED else f"speed-{options.speed:g}")
    return int(found["rate_ratio"] < TARGET_RATE or found["act_ratio"] >= 1)


if __name__ == "__main__":
    sys.exit(main())
