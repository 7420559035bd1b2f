"""All nodes of a cluster, modelled: what they do with a grant, and what they report.

One `ModelledRun` is one attempt of one action. Its start and its end are known as soon as it is granted;
both reports are entered into the agenda at once, at the moment when the loop hears of them. A run
that is stopped or resized gets a new version, and reports of an older one are dropped when their
time comes. As in production, a start is not reported if the end is known before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from random import Random

from domain.action import COMPLETED, Outcome
from domain.allocation import Home
from domain.decisions import Abort, Grant, Prepare, RemoveEnvironment
from domain.events import (
    ActionFinished,
    ActionStarted,
    ChunkReport,
    EnvironmentRemoved,
    Event,
    ServicePrepared,
)
from domain.ids import ActionId
from simulator.agenda import Agenda
from simulator.gpus import Restorable, restore_of
from simulator.overheads import Overheads
from simulator.work import ActionWork, WorkProgress

Tell = Callable[[Event], None]


class ModelledRun:
    """One attempt on one node."""

    __slots__ = (
        "action_id", "attempt", "deadline", "ends_at", "news", "node", "progress", "starts_at",
        "stopped", "version",
    )  # fmt: skip

    def __init__(
        self, grant: Grant, work: ActionWork, starts_at: float, timeout_seconds: float | None
    ) -> None:
        self.action_id = grant.action_id
        self.node = grant.node or ""
        self.attempt = grant.attempt
        self.starts_at = starts_at
        self.progress = WorkProgress(work, grant.allocations, starts_at)
        self.deadline = inf if timeout_seconds is None else starts_at + timeout_seconds
        #: What the report of its end says about GPU memory.
        self.news: ChunkReport | None = None
        #: When it ends, if nothing changes.
        self.ends_at = self.progress.ends_at
        if timeout_seconds is not None:
            self.ends_at = min(self.ends_at, self.deadline)
        #: Counts what changed its end; reports of an older version are void.
        self.version = 0
        #: It was stopped, and its report is on its way.
        self.stopped = False

    def resize(self, milli: int, now: float) -> None:
        """Go on with other units."""
        self.progress.change(milli, now)
        self.ends_at = min(self.progress.ends_at, self.deadline)
        self.version += 1

    @property
    def outcome(self) -> Outcome:
        """Its outcome, if nothing changes."""
        return COMPLETED if self.progress.ends_at <= self.deadline else Outcome.TIMEOUT


class ModelledNodes:
    """Runs what is granted, on all nodes at once."""

    def __init__(
        self,
        agenda: Agenda,
        overheads: Overheads,
        tell: Tell,
        tell_start: Tell,
        *,
        failure_ratio: float = 0.0,
        seed: int = 0,
        models: Mapping[str, Restorable] | None = None,
    ) -> None:
        """``tell_start`` hears of starts, which carry their time; ``tell`` of everything else.

        ``failure_ratio`` of the grants fail before anything was spawned (default: none).

        ``models``: what is served on GPUs.
        """
        self._models = models or {}
        self._agenda = agenda
        self._overheads = overheads
        self._tell = tell
        self._tell_start = tell_start
        #: From a decision to its effect on a node.
        self._order_seconds = overheads.pass_seconds + overheads.start_seconds
        self._hop_seconds = overheads.report_seconds
        self._failure_ratio = failure_ratio
        self._seed = seed
        self._runs: dict[tuple[ActionId, int], ModelledRun] = {}
        #: When a service is at home, by node and chunk.
        self._ready: dict[tuple[str, Home], float] = {}
        #: Until when a service is restored ahead of a grant.
        self._coming: dict[tuple[str, int], float] = {}
        #: Trajectories whose environment exists.
        self._environments: set[str] = set()

    def serve(self, models: Mapping[str, Restorable]) -> None:
        """Serve ``models`` from now on, beside what is served."""
        self._models = {**self._models, **models}

    @property
    def running(self) -> int:
        """Number of attempts under way."""
        return len(self._runs)

    def grant(
        self, grant: Grant, work: ActionWork, environment: str | None, timeout_seconds: float | None
    ) -> None:
        """Start a granted action, in ``environment`` if it has one."""
        starts_at = self._agenda.now + self._order_seconds
        if environment is not None and environment not in self._environments:
            self._environments.add(environment)
            starts_at += self._overheads.environment_seconds
        restore_seconds = None
        if self._models:
            restore_seconds = restore_of(grant, self._models)
            starts_at = self._brought(grant, starts_at, restore_seconds or 0.0)
        run = ModelledRun(grant, work, starts_at, timeout_seconds)
        if restore_seconds is not None:
            run.news = ChunkReport(restore_seconds=restore_seconds)
        self._runs[run.action_id, run.attempt] = run
        if self._failure_ratio and self._fails(run):
            self._agenda.at(starts_at, self._never_start, run)
            return
        hop_seconds = self._hop_seconds
        if run.ends_at - starts_at > hop_seconds:
            self._agenda.at(starts_at + hop_seconds, self._report_start, run)
        self._agenda.at(run.ends_at + hop_seconds, self._report_end, (run, 0))

    def _brought(self, grant: Grant, arrives_at: float, restore_seconds: float) -> float:
        """Return when the service that is called answers; others may have called for it before."""
        for allocation in grant.allocations:
            hosting = allocation.hosting
            if hosting is not None and hosting.service:
                home = (grant.node or "", Home(hosting.service, allocation.units))
                if not hosting.cached:
                    free_at = self._free_of_others(grant.node or "", allocation.units, arrives_at)
                    self._ready[home] = free_at + restore_seconds
                return max(arrives_at, self._ready.get(home, arrives_at))
        return arrives_at

    def _free_of_others(self, node: str, units: Iterable[int], arrives_at: float) -> float:
        """Return when nothing is on its way to ``units`` any more: what wakes goes on to its end."""
        return max(arrives_at, *(self._coming.get((node, unit), 0.0) for unit in units))

    def prepare(self, decision: Prepare) -> None:
        """Bring a service to a free chunk, and report; what a restore takes is the same without a copy."""
        if not decision.awake:
            return
        home, arrives_at = decision.home, self._agenda.now + self._order_seconds
        seconds = self._models[home.service].restore_seconds(len(home.units))
        there_at = max(arrives_at, self._free_of_others(decision.node, home.units, 0.0)) + seconds
        self._ready[decision.node, home] = there_at
        self._coming |= {(decision.node, unit): there_at for unit in home.units}
        event = ServicePrepared(node=decision.node, home=home, seconds=seconds)
        self._agenda.at(there_at + self._hop_seconds, self._tell, event)

    def abort(self, decision: Abort) -> None:
        """Stop a run when the order has reached its node; too late changes nothing."""
        self._agenda.at(self._agenda.now + self._order_seconds, self._stop, decision)

    def resize_soon(self, action_id: ActionId, attempt: int, milli: int) -> None:
        """Resize a run when the order has reached its node."""
        arrives_at = self._agenda.now + self._order_seconds
        self._agenda.at(arrives_at, lambda _: self.resize(action_id, attempt, milli))

    def resize(self, action_id: ActionId, attempt: int, milli: int) -> None:
        """Let a run go on with ``milli`` milli-units of its key resource, from now on."""
        run = self._runs.get((action_id, attempt))
        if run is not None and not run.stopped and run.ends_at > self._agenda.now:
            run.resize(milli, self._agenda.now)
            reported_at = run.ends_at + self._hop_seconds
            self._agenda.at(reported_at, self._report_end, (run, run.version))

    def remove_environment(self, decision: RemoveEnvironment) -> None:
        """Remove a trajectory's environment, and report."""
        self._environments.discard(decision.trajectory)
        event = EnvironmentRemoved(trajectory=decision.trajectory, node=decision.node)
        overheads = self._overheads
        gone_after = overheads.pass_seconds + overheads.remove_seconds + overheads.report_seconds
        self._agenda.at(self._agenda.now + gone_after, self._tell, event)

    def _report_start(self, run: ModelledRun) -> None:
        if (run.action_id, run.attempt) in self._runs:
            self._tell_start(
                ActionStarted(
                    at=self._agenda.now,
                    action_id=run.action_id,
                    node=run.node,
                    attempt=run.attempt,
                )
            )

    def _report_end(self, entry: tuple[ModelledRun, int]) -> None:
        run, version = entry
        if version == run.version:
            self._report(run, run.outcome, run.ends_at - run.starts_at)

    def _stop(self, decision: Abort) -> None:
        run = self._runs.get((decision.action_id, decision.attempt))
        now = self._agenda.now
        if run is None or run.stopped or run.ends_at <= now:
            return
        run.stopped = True
        run.version += 1
        never_started = now < run.starts_at
        self._agenda.at(
            now + self._hop_seconds,
            lambda _: self._report(
                run,
                decision.outcome,
                max(0.0, now - run.starts_at),
                detail=decision.reason,
                never_started=never_started,
            ),
        )

    def _never_start(self, run: ModelledRun) -> None:
        detail = "simulated: the node failed to start it"
        self._report(run, Outcome.INFRA_FAILED, 0.0, detail=detail, never_started=True)

    def _report(
        self,
        run: ModelledRun,
        outcome: Outcome,
        execution_seconds: float,
        *,
        detail: str | None = None,
        never_started: bool = False,
    ) -> None:
        del self._runs[run.action_id, run.attempt]
        self._tell(
            ActionFinished(
                action_id=run.action_id,
                node=run.node,
                outcome=outcome,
                attempt=run.attempt,
                execution_seconds=execution_seconds,
                detail=detail,
                never_started=never_started,
                chunk=run.news,
            )
        )

    def _fails(self, run: ModelledRun) -> bool:
        # Drawn by name: whether it fails must not depend on the order of events.
        name = f"{self._seed}/fails/{run.action_id}#{run.attempt}"
        return Random(name).random() < self._failure_ratio
