"""Workloads written out by hand: what each trajectory does, in short words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from domain.action import LeaseSpec
from domain.decisions import Decision, Finish
from domain.elasticity import Elasticity
from domain.events import Event
from scheduler.core.machine import Machine
from scheduler.core.state import invariants
from simulator.cluster import GIB, Cluster
from simulator.engine import ClusterSimulation
from simulator.overheads import NONE
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think
from tests.builders import an_action

Moves = Sequence[Think | Act]


def act(name: str, seconds: float, *, amdahl: float | None = None, **fields: Any) -> Act:
    """Return an action whose work takes ``seconds`` with one unit."""
    elasticity = None if amdahl is None else Elasticity(amdahl=amdahl)
    return Act(an_action(name, **fields), ActionWork(seconds, elasticity))


def keep(name: str, seconds: float, *, ttl_seconds: float, renews: bool = True) -> Act:
    """Return a lease on one core that its trainer keeps for ``seconds``."""
    action = an_action(name, kind="lease", cost={"cpu": 1}, lease=LeaseSpec(ttl_seconds))
    return Act(action, ActionWork(seconds), renews)


@dataclass
class Script:
    """A workload of trajectories that only do what is written."""

    rl_steps: Sequence[Sequence[Moves]]
    train_seconds: float = 0.0
    project: str = "default"
    task: str = "task"
    #: The outcome of each action, as its trajectory received it.
    answers: dict[str, Finish] = field(default_factory=dict)

    @property
    def actions(self) -> int:
        return sum(
            isinstance(move, Act) for step in self.rl_steps for moves in step for move in moves
        )

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        for number, step in enumerate(self.rl_steps):
            yield [
                SimulatedTrajectory(f"s{number}-t{index}", self._program(moves))
                for index, moves in enumerate(step)
            ]

    def _program(self, moves: Moves) -> Callable[[], Program]:
        def play() -> Program:
            for move in moves:
                answer = yield move
                if answer is not None:
                    self.answers[answer.action_id] = answer

        return play


def script(*trajectories: Moves) -> Script:
    """Return a workload of one step."""
    return Script([trajectories])


def checked(machine: Machine, events: list[Event], decisions: list[Decision]) -> None:
    """Raise when an invariant of the core is broken."""
    invariants.check(machine.state)


def a_simulation(
    workload: Script, *, cores: int = 8, nodes: int = 1, **fields: Any
) -> ClusterSimulation:
    """Return a simulation without overheads, whose invariants are checked after every pass."""
    fields.setdefault("overheads", NONE)
    fields.setdefault("watch", checked)
    return ClusterSimulation(workload, Cluster(nodes, cores, 64 * GIB), **fields)


def played(workload: Script, **fields: Any) -> ClusterSimulation:
    """Return a simulation that has run."""
    simulation = a_simulation(workload, **fields)
    simulation.run()
    return simulation
