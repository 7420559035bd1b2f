"""predicted: the same small workload on the real stack and in the simulator, side by side.

Targets: simulated mean ACT within 10 % of the measured one, p95 within 20 %.

Trajectories think, run ``sleep``, and at the end a command that sleeps the shorter, the more cores it
was granted, on one node with 4 declared cores. Nothing needs a core, so what is measured is
scheduling and the path around it, as on a node that is not overloaded. The simulator takes the
same draws. A warm-up with other draws measures what the path costs on this machine at this hour:
mean overhead, and how much longer than asked a ``sleep`` takes; ``as_quiet`` is what comes out with
the hops of `simulator.overheads` instead, which were measured on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
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
from simulator.overheads import Overheads
from simulator.result import Spread, spread
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think
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


@dataclass(frozen=True)
class Ended:
    """A real action: its ACT, and what its path and its process cost beside the work."""

    act_seconds: float
    overhead_seconds: float
    excess_seconds: float


async def _trajectory(client: AsyncClient, name: str, turns: Sequence[Turn]) -> list[Ended]:
    ended = []
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
        units = view.units.get("cpu", 1)
        asked = turn.seconds
        if turn.reward:
            asked = PROFILE.duration_seconds(turn.seconds, round(units * MILLI))
        timing = view.timing
        excess = timing.execution_seconds - asked
        ended.append(Ended(timing.act_seconds, timing.overhead_seconds, excess))
    await client.finish_trajectory(name)
    return ended


async def _measure(stack: Stack, plan: Sequence[Sequence[Turn]], prefix: str) -> list[Ended]:
    url = f"http://{stack.host}:{stack.port}"
    async with AsyncClient(url, token=stack.token) as client:
        every = await asyncio.gather(
            *(_trajectory(client, f"{prefix}-{n}", turns) for n, turns in enumerate(plan))
        )
    return [each for trajectory in every for each in trajectory]


def _path(warm: Sequence[Ended]) -> tuple[Overheads, float]:
    """Return the hops as the warm-up found them, and what a process takes beside its work.

    Hops keep their shares; of them all, those between grant and report count as overhead.
    """
    quiet = Overheads()
    counted = quiet.pass_seconds + quiet.start_seconds + quiet.report_seconds
    ratio = float(np.median([each.overhead_seconds for each in warm])) / counted
    hops = {field.name: getattr(quiet, field.name) * ratio for field in fields(quiet)}
    return Overheads(**hops), max(0.0, float(np.median([each.excess_seconds for each in warm])))


@dataclass(frozen=True)
class Drawn:
    """The same, for the simulator."""

    plan: Sequence[Sequence[Turn]]
    #: What a process takes beside its work.
    excess_seconds: float = 0.0
    project: str = "default"
    task: str = "bench"
    train_seconds: float = 0.0

    @property
    def actions(self) -> int:
        return sum(map(len, self.plan))

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        yield [
            SimulatedTrajectory(f"t{n}", lambda n=n, turns=turns: self._play(f"t{n}", turns))  # type: ignore[misc]
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
            # On more cores the excess shrinks with the work, by a few milliseconds too much.
            yield Act(action, ActionWork(turn.seconds + self.excess_seconds, profile))


def _beside(measured: Spread, simulated: Spread) -> dict[str, float]:
    return {
        "measured_mean": round(measured.mean, 4),
        "simulated_mean": round(simulated.mean, 4),
        "mean_off": round(simulated.mean / measured.mean - 1, 4),
        "measured_p95": round(measured.p95, 4),
        "simulated_p95": round(simulated.p95, 4),
        "p95_off": round(simulated.p95 / measured.p95 - 1, 4),
    }


def _simulated(
    plan: Sequence[Sequence[Turn]], policy: str, overheads: Overheads, excess_seconds: float
) -> Spread:
    scene = Scene(Drawn(plan, excess_seconds), Cluster(1, CORES, 64 * GIB), overheads)
    return run(scene, policy).result.whole.act


def main() -> None:
    """Measure, simulate, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=12)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    plan = draw(options.trajectories, options.turns, seed=5)
    result: dict[str, Any] = {}
    for policy in POLICIES:
        with tangram("--nodes", "1", "--cpus", str(CORES)) as stack:
            _switch(stack, policy)
            warm = asyncio.run(_measure(stack, draw(4, 4, seed=1), "warm"))
            ended = asyncio.run(_measure(stack, plan, "t"))
        measured = spread(np.array([each.act_seconds for each in ended]))
        overheads, excess = _path(warm)
        result[policy] = {
            **_beside(measured, _simulated(plan, policy, overheads, excess)),
            "as_quiet": _beside(measured, _simulated(plan, policy, Overheads(), 0.0)),
            "warm_up": {
                "path_ratio": round(overheads.pass_seconds / Overheads().pass_seconds, 2),
                "excess_seconds": round(excess, 4),
            },
        }
        print(policy, result[policy], flush=True)
    if not options.dry:
        print("stored in", store("predicted", {"result": result}))


if __name__ == "__main__":
    main()
