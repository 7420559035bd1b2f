"""Nodes on a `SharedMachine`: what they do with a grant, and what they report.

Unlike those of `simulator.nodes`, an end is not known at the start: it depends on what else runs on the machine.
Actions are commands of a replay: nothing resizes or cancels them, and no GPU service is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from domain.action import COMPLETED, Outcome
from domain.decisions import Abort, Grant, Prepare, RemoveEnvironment
from domain.errors import InvariantViolation
from domain.events import ActionFinished, ActionStarted, EnvironmentRemoved, Event
from domain.ids import ActionId
from domain.resources import MILLI
from simulator.agenda import Agenda
from simulator.gpus import Restorable
from simulator.machine import COMMAND_WEIGHT, Hop, SharedMachine
from simulator.overheads import Overheads
from simulator.processors import ProcessorJob
from simulator.work import ActionWork

Tell = Callable[[Event], None]


@dataclass(eq=False, slots=True)
class MachineRun:
    """One attempt of one action."""

    grant: Grant
    work: ActionWork
    timeout_seconds: float | None
    weight: float
    starts_at: float = 0.0
    job: ProcessorJob | None = None
    over: bool = False


class MachineNodes:
    """Runs what is granted on one shared machine."""

    def __init__(
        self,
        machine: SharedMachine,
        agenda: Agenda,
        overheads: Overheads,
        tell: Tell,
        tell_start: Tell,
    ) -> None:
        """``tell_start`` hears of starts, which carry their time; ``tell`` of everything else."""
        self._agenda = agenda
        self._machine = machine
        self._overheads = overheads
        self._tell = tell
        self._tell_start = tell_start
        self._environments: set[str] = set()
        self._running = 0

    def serve(self, models: Mapping[str, Restorable]) -> None:
        """Refuse services: a replay calls none."""
        raise InvariantViolation("a replay calls no service")

    def grant(
        self, grant: Grant, work: ActionWork, environment: str | None, timeout_seconds: float | None
    ) -> None:
        """Start a granted action, in ``environment`` if it has one."""
        light = all(each.amount < MILLI for each in grant.allocations)
        weight = self._machine.costs.light_weight if light else COMMAND_WEIGHT
        run = MachineRun(grant, work, timeout_seconds, weight)
        begin = self._spawn
        if environment is not None and environment not in self._environments:
            self._environments.add(environment)
            begin = self._make_environment
        self._agenda.at(self._agenda.now + self._overheads.pass_seconds, begin, run)

    def _make_environment(self, run: MachineRun) -> None:
        self._machine.hop(self._machine.costs.environment, self._spawn, run)

    def _spawn(self, run: MachineRun) -> None:
        self._machine.hop(self._machine.costs.start, self._spawned, run)

    def _spawned(self, run: MachineRun) -> None:
        run.starts_at = self._agenda.now
        self._running += 1
        if run.timeout_seconds is not None:
            self._agenda.at(run.starts_at + run.timeout_seconds, self._time_out, run)
        reported_at = run.starts_at + self._overheads.report_seconds
        self._agenda.at(reported_at, self._report_start, run)
        self._machine.hop(self._machine.costs.process, self._works, run, weight=run.weight)

    def _report_start(self, run: MachineRun) -> None:
        if not run.over:
            grant = run.grant
            self._tell_start(
                ActionStarted(
                    at=self._agenda.now, action_id=grant.action_id, node=grant.node or "",
                    attempt=grant.attempt,
                )
            )  # fmt: skip

    def _works(self, run: MachineRun) -> None:
        if run.over:
            return
        work = run.work
        loops = max(1, math.ceil(work.busy_cores))
        run.job = self._machine.work(
            work.base_seconds, work.cpu_seconds, loops, run.weight, self._end, run
        )

    def _end(self, run: MachineRun) -> None:
        self._finish(run, COMPLETED)

    def _time_out(self, run: MachineRun) -> None:
        if not run.over:
            if run.job is not None:
                self._machine.stop(run.job)
            self._finish(run, Outcome.TIMEOUT)

    def _finish(self, run: MachineRun, outcome: Outcome) -> None:
        run.over = True
        self._running -= 1
        event = ActionFinished(
            action_id=run.grant.action_id, node=run.grant.node or "", outcome=outcome,
            attempt=run.grant.attempt, execution_seconds=self._agenda.now - run.starts_at,
        )  # fmt: skip
        self._machine.hop(self._machine.costs.report, self._tell_end, event)

    def _tell_end(self, event: Event) -> None:
        self._tell(event)
        self._machine.beside()

    def remove_environment(self, decision: RemoveEnvironment) -> None:
        """Remove a trajectory's environment, and report."""
        self._environments.discard(decision.trajectory)
        overheads = self._overheads
        removal = Hop(overheads.pass_seconds + overheads.remove_seconds + overheads.report_seconds)
        event = EnvironmentRemoved(trajectory=decision.trajectory, node=decision.node)
        self._machine.hop(removal, self._tell, event)

    def abort(self, decision: Abort) -> None:
        """Refuse to stop an action: a replay cancels none, and none waits too long."""
        raise InvariantViolation(f"a replay stops no action, but {decision.action_id} was")

    @property
    def running(self) -> int:
        """Number of attempts under way."""
        return self._running

    def resize_soon(self, action_id: ActionId, attempt: int, milli: int) -> None:
        """Refuse other units, as `resize`."""
        self.resize(action_id, attempt, milli)

    def resize(self, action_id: ActionId, attempt: int, milli: int) -> None:
        """Refuse other units: the actions of a replay have one feasible count."""
        raise InvariantViolation(f"a replay resizes no action, but {action_id} got {milli}")

    def prepare(self, decision: Prepare) -> None:
        """Refuse a service ahead of its call."""
        raise InvariantViolation("a replay calls no service")
