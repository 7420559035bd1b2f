"""A machine that runs Tangram and its actions on the same cores, with the costs of both.

Every hop of an action is a wait and a job on the processors: it takes its measured time on a machine with free
cores, and longer where the cores are busy. The command of an action is a job as well: its start, and then the CPU
that it declares, spread over its duration. So Tangram takes CPU from commands, and commands from Tangram.

Weights are those of `managers.cpu.process.priority` and `tangram_web.supervisor.part_placement`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from simulator.agenda import Agenda, Step
from simulator.processors import ProcessorJob, Processors

#: Weight of a command with cores of its own, of a light one, and of all of Tangram's parts together.
COMMAND_WEIGHT: Final = 1024.0
LIGHT_WEIGHT: Final = 110.0
PARTS_WEIGHT: Final = 512.0


@dataclass(frozen=True, slots=True)
class Hop:
    """The cost of one hop of an action's path, in seconds."""

    #: Without any CPU: timers, disks, other machines.
    wait_seconds: float = 0.0
    #: CPU; as long as this on a free core.
    cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Return how long it takes on a machine with free cores."""
        return self.wait_seconds + self.cpu_seconds


@dataclass(frozen=True)
class MachineCosts:
    """What a machine takes for the path of an action beside its work."""

    #: Processors of the machine, and how many further programs that never rest share them.
    cores: float
    others: float = 0.0
    #: Weight of light commands in effect.
    light_weight: float = LIGHT_WEIGHT
    #: Trainer → gateway → inbox of the loop.
    submit: Hop = field(default_factory=Hop)
    #: Grant → the node has spawned the command.
    start: Hop = field(default_factory=Hop)
    #: First action of a trajectory: its environment.
    environment: Hop = field(default_factory=Hop)
    #: Spawned → the command works, and its end; counts as execution.
    process: Hop = field(default_factory=Hop)
    #: End of the command → the loop has it.
    report: Hop = field(default_factory=Hop)
    #: Finish committed → the trainer has it and can submit again.
    answer: Hop = field(default_factory=Hop)
    #: CPU of an action that delays none of its hops: rows, pages, clean-up.
    beside_cpu_seconds: float = 0.0


class SharedMachine:
    """The machine in virtual time."""

    def __init__(self, agenda: Agenda, costs: MachineCosts) -> None:
        self.costs = costs
        self._agenda = agenda
        self._processors = Processors(agenda, costs.cores)
        if costs.others > 0:
            self._processors.begin(
                float("inf"), weight=COMMAND_WEIGHT * costs.others, most=costs.others
            )

    def hop(
        self, hop: Hop, then: Step, argument: Any = None, *, weight: float = PARTS_WEIGHT
    ) -> None:
        """Call ``then(argument)`` when a hop that begins now is over."""
        self._agenda.at(
            self._agenda.now + hop.wait_seconds, self._spend, (hop, then, argument, weight)
        )

    def _spend(self, entry: tuple[Hop, Step, Any, float]) -> None:
        hop, then, argument, weight = entry
        if hop.cpu_seconds > 0:
            self._processors.begin(hop.cpu_seconds, then, argument, weight=weight)
        else:
            then(argument)

    def beside(self) -> None:
        """Spend what an action costs beside its path."""
        if self.costs.beside_cpu_seconds > 0:
            self._processors.begin(self.costs.beside_cpu_seconds, weight=PARTS_WEIGHT)

    def work(
        self,
        seconds: float,
        cpu_seconds: float,
        most: float,
        weight: float,
        done: Step,
        argument: Any,
    ) -> ProcessorJob:
        """Run a command that takes ``seconds`` on free cores and ``cpu_seconds`` on at most ``most`` of them."""
        return self._processors.begin(
            cpu_seconds, done, argument, weight=weight, most=most, paced_seconds=seconds
        )

    def stop(self, job: ProcessorJob) -> None:
        """End a command before its time."""
        self._processors.end(job)
