"""predicted: the same small workload on the real stack and in the simulator, side by side.

Targets: simulated mean ACT within 10 % of the measured one, p95 within 20 %.

Trajectories think, run ``sleep``, and at the end a command that sleeps the shorter, the more cores it
was granted, on one node with 4 declared cores. Nothing needs a core, so what is measured is
scheduling and the path around it, as on a node that is not overloaded. The simulator takes the
same draws and the hops of `simulator.overheads`, which were measured on the development machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from benchmarks.record import store
from benchmarks.stack import Stack, tangram, token
from domain.action import Action, EnvironmentSpec, ExecSpec, Kind
from domain.elasticity import Elasticity
from domain.ids import ActionId
from domain.resources import MILLI
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.result import Spread, spread
from simulator.work import Work
from simulator.workloads.program import Act, Program, Rollout, Think
from tangram_client.aio import AsyncClient
from tangram_client.payloads import exec_action

CORES = 4
COUNTS = (1, 2, 3, 4)
PROFILE = Elasticity(amdahl=0.9)
POLICIES = ("minimum", "paper", "malleable")


@dataclass(frozen=True)
class Turn:
    """One action of a trajectory: think, then run for so long on one core."""

    think_seconds: float
    seconds: float
    reward: bool = False


def draw(trajectories: int, turns: int, seed: int) -> list[list[Turn]]:
    """Draw what each trajectory does."""
    chooser = Random(seed)
    return [
        [
            *(
                Turn(chooser.expovariate(1 / 0.6), min(2.0, chooser.lognormvariate(-1.6, 0.9)))
                for _ in range(turns)
            ),
            Turn(0.5, chooser.lognormvariate(1.0, 0.6), reward=True),
        ]
        for _ in range(trajectories)
    ]


def _reward(base_seconds: float) -> str:
    """Return a command that takes as long as its profile says on the cores it was granted."""
    cases = " ".join(
        f"{count}) sleep {PROFILE.duration_seconds(base_seconds, count * MILLI):.4f};;"
        for count in COUNTS
    )
    return f"case {{units}} in {cases} esac"


def _switch(stack: Stack, policy: str) -> None:
    """Let the default pool grant by ``policy``."""
    request = urllib.request.Request(
        f"http://{stack.host}:{stack.port}/api/v1/pools/default",
        json.dumps({"policy": policy}).encode(),
        {
            "Authorization": f"Bearer {token(stack, 'admin')}",
            "Content-Type": "application/json",
        },
        method="PATCH",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        if json.load(answer)["policy"] != policy:
            raise SystemExit(f"the pool did not take {policy}")


async def _trajectory(client: AsyncClient, name: str, turns: Sequence[Turn]) -> list[float]:
    acts = []
    for turn in turns:
        await asyncio.sleep(turn.think_seconds)
        fields: dict[str, Any] = {"trajectory": name, "family": "tool"}
        command, cores = f"sleep {turn.seconds:.4f}", [1]
        if turn.reward:
            command, cores = _reward(turn.seconds), list(COUNTS)
            fields |= {
                "family": "reward",
                "key": "cpu",
                "duration_seconds": turn.seconds,
                "elasticity": {"amdahl": 0.9},
            }
        view = await client.run(exec_action("bench", ["sh", "-c", command], cpu=cores, **fields))
        if view.outcome != "completed":
            raise SystemExit(f"{view.id} ended as {view.outcome}: {view.result}")
        assert view.timing is not None  # it is finished
        acts.append(view.timing.act_seconds)
    await client.finish_trajectory(name)
    return acts


async def _measure(stack: Stack, plan: Sequence[Sequence[Turn]], prefix: str) -> Spread:
    url = f"http://{stack.host}:{stack.port}"
    async with AsyncClient(url, token=stack.token) as client:
        every = await asyncio.gather(
            *(_trajectory(client, f"{prefix}-{n}", turns) for n, turns in enumerate(plan))
        )
    return spread(np.array([act for acts in every for act in acts]))


@dataclass(frozen=True)
class Drawn:
    """The same, for the simulator."""

    plan: Sequence[Sequence[Turn]]
    project: str = "default"
    task: str = "bench"
    train_seconds: float = 0.0

    @property
    def actions(self) -> int:
        return sum(map(len, self.plan))

    def steps(self) -> Iterator[list[Rollout]]:
        yield [
            Rollout(f"t{n}", lambda n=n, turns=turns: self._play(f"t{n}", turns))  # type: ignore[misc]
            for n, turns in enumerate(self.plan)
        ]

    def _play(self, name: str, turns: Sequence[Turn]) -> Program:
        for index, turn in enumerate(turns):
            yield Think(turn.think_seconds)
            profile = PROFILE if turn.reward else None
            counts = tuple(n * MILLI for n in (COUNTS if turn.reward else (1,)))
            action = Action(
                id=ActionId(f"{name}.{index}"), project=self.project, task=self.task,
                kind=Kind.EXEC, cost={"cpu": counts}, trajectory=name, key="cpu",
                family="reward" if turn.reward else "tool", elasticity=profile,
                duration_seconds=turn.seconds if turn.reward else None,
                environment=EnvironmentSpec(), exec=ExecSpec(("true",)),
            )  # fmt: skip
            yield Act(action, Work(turn.seconds, profile))


def _beside(measured: Spread, simulated: Spread) -> dict[str, float]:
    return {
        "measured_mean": round(measured.mean, 4),
        "simulated_mean": round(simulated.mean, 4),
        "mean_off": round(simulated.mean / measured.mean - 1, 4),
        "measured_p95": round(measured.p95, 4),
        "simulated_p95": round(simulated.p95, 4),
        "p95_off": round(simulated.p95 / measured.p95 - 1, 4),
    }


def main() -> None:
    """Measure, simulate, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=12)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    plan = draw(options.trajectories, options.turns, seed=5)
    result = {}
    for policy in POLICIES:
        with tangram("--nodes", "1", "--cpus", str(CORES)) as stack:
            _switch(stack, policy)
            asyncio.run(_measure(stack, draw(2, 2, seed=1), "warm"))
            measured = asyncio.run(_measure(stack, plan, "t"))
        scene = Scene(Drawn(plan), Cluster(1, CORES, 64 * GIB))
        result[policy] = _beside(measured, run(scene, policy).result.whole.act)
        print(policy, result[policy], flush=True)
    if not options.dry:
        print("stored in", store("predicted", {"result": result}))


if __name__ == "__main__":
    main()
