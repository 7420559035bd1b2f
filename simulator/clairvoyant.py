"""Clairvoyance: what policy ``makespan`` could do if it knew every think time and duration. A bound, for comparison.

No scheduler has this: the true rest of each trajectory takes the place of predictions
(`scheduler.core.state.critical_paths`), and overtaking is not bounded by its cost. `least_step_seconds` is a bound for any
scheduler at all. Only for workloads whose programs do not depend on the outcome of actions (`ai_coding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from domain.action import COMPLETED, Timing
from domain.decisions import Finish
from domain.ids import ActionId
from domain.resources import MILLI
from scheduler.core.policies.makespan import Makespan
from scheduler.core.state.critical_paths import CriticalPaths
from scheduler.core.state.live import LiveAction, LiveTrajectory
from simulator.cluster import POOL
from simulator.compare import Scene
from simulator.engine import ClusterSimulation
from simulator.result import Result, summarise
from simulator.workloads.program import Act, Program, Think, Workload

NAME: Final = "clairvoyant"
#: No overtaking is too expensive.
_UNBOUNDED: Final = 10**9


@dataclass(slots=True)
class KnownPaths(CriticalPaths):
    """True rests in place of predictions."""

    rests: dict[ActionId, float] = field(default_factory=dict)

    def submitted(
        self, trajectory: LiveTrajectory, live: LiveAction, own_seconds: float, now: float
    ) -> float:
        """Return the true rest of the trajectory, with each elastic action on its fastest count."""
        rest = self.rests[live.id]
        trajectory.submitted += 1
        trajectory.predicted_end = now + rest
        return rest


def simulate(scene: Scene) -> Result:
    """Simulate ``scene`` under policy `makespan` with known rests and without a bound on the loss."""
    simulation = ClusterSimulation(
        scene.workload, scene.cluster, "makespan", overheads=scene.overheads, seed=scene.seed
    )
    state = simulation.machine.state
    state.critical_paths = KnownPaths(rests=dict(rests(scene.workload)))
    state.pools.policies[POOL] = Makespan(name=NAME, loss_percent=_UNBOUNDED)
    simulation.run()
    return summarise(simulation, scene.cluster, NAME)


def rests(workload: Workload) -> Iterator[tuple[ActionId, float]]:
    """Yield each action with the seconds from its submission to the end of its trajectory, if nothing waits."""
    for step in workload.steps():
        for rollout in step:
            rest = 0.0
            for move in reversed(list(moves(rollout.program()))):
                rest += move.seconds if isinstance(move, Think) else _fastest(move)
                if isinstance(move, Act):
                    yield move.action.id, rest


def least_step_seconds(workload: Workload, cores: int) -> list[float]:
    """Return for each step the least seconds that any scheduler needs on ``cores`` cores.

    The longest trajectory if nothing waits, or all T_ori on all cores: E(m) ≤ 1 saves no core·seconds.
    """
    least = []
    for step in workload.steps():
        played = [list(moves(rollout.program())) for rollout in step]
        paths = [sum(_alone(each)) for each in played]
        work = sum(
            each.work.base_seconds for some in played for each in some if isinstance(each, Act)
        )
        least.append(max(*paths, work / cores))
    return least


def moves(program: Program) -> Iterator[Think | Act]:
    """Yield what ``program`` does when all its actions complete."""
    answer: Finish | None = None
    while True:
        try:
            move = program.send(answer)
        except StopIteration:
            return
        yield move
        answer = _completed(move) if isinstance(move, Act) else None


def _completed(act: Act) -> Finish:
    action = act.action
    timing = Timing(0.0, 0.0, act.work.base_seconds, act.work.base_seconds)
    return Finish(
        action_id=action.id, project=action.project, task=action.task, outcome=COMPLETED,
        timing=timing, trajectory=action.trajectory,
    )  # fmt: skip


def _alone(played: Iterable[Think | Act]) -> Iterator[float]:
    for move in played:
        yield move.seconds if isinstance(move, Think) else _fastest(move)


def _fastest(act: Act) -> float:
    counts = act.action.cost.get(act.work.key, (MILLI,))
    return min(act.work.seconds(count) for count in counts)
