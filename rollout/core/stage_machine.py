"""Stage machine: what a rollout does next, as a function of its log.

    INIT   lease → open ROLLOUT → init → store `prepared` → release
    RUN    lease → fork ROLLOUT-run → run → store `stage` → close ROLLOUT-run → release
    EVAL   lease → eval, which forks ROLLOUT-eval with its first call → final_result → store `result`
           → release → report

Lifetimes: a worker makes one machine for each assignment, from the records of the log. It asks `next`, does the step,
and gives the machine its outcome; the machine ends when `next` is None.

Rules
1. The log decides. What the machine remembers beside it (the lease, open trajectories) only spares repetitions: a
   machine that a successor makes from the same log ends with the same result.
2. A result is stored once, then reported; a log with a result is only reported.
3. The trajectory of RUN is closed before the lease of EVAL is asked for, those of a lost environment before INIT again.
   The scheduler closes the others when the rollout ends, whatever its worker does.
4. An environment that is lost means INIT again, in trajectories with names of their own, at most `MAX_PREPARATIONS`
   times in all; then the rollout is infra_failed. What RUN has stored stays: once it has ended, EVAL follows that INIT.
   A call that ended ``unknown`` ends the rollout infra_failed at once (I3), unless all that it may have done is lost with
   its environment (`rollout.core.calls`). One of EVAL means another fork for EVAL, at most `MAX_EVALUATIONS` times in all.
5. A handler process that ends takes no other rollout with it: the stage continues from the log, at most
   `MAX_CRASHES` times, each in a process with fewer others; then the rollout has failed.
6. A rollout that was withdrawn makes no further step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from domain.rollouts import STAGES, Rollout, RolloutOutcome, Stage
from rollout.core.records import EVAL_AGAIN, LOST, PREPARED, RESULT, STAGE, Facts, StageMark
from rollout.core.results import (
    Conclusion,
    Failure,
    NonsenseAnswer,
    checked_mapping,
    conclusion_of,
    detail_of,
    failed,
    result_of,
)
from rollout.core.steps import (
    Callback,
    CloseTrajectory,
    Invoke,
    PrepareTrajectory,
    ReleaseLease,
    ReportEnd,
    Step,
    Store,
    TakeLease,
)
from rollout.ports import Record

#: Preparations of an environment: one, and two after it was lost.
MAX_PREPARATIONS: Final = 3
#: Evaluations of what RUN stored: one, and two after it was lost.
MAX_EVALUATIONS: Final = 3
#: Ends of handler processes that a stage survives.
MAX_CRASHES: Final = 2


def trajectory_of(rollout: str, generation: int, stage: Stage, evaluation: int = 0) -> str:
    """Return the name of the trajectory of a stage; of EVAL also after so many evaluations were given up."""
    base = rollout if generation == 0 else f"{rollout}-again{generation}"
    if stage is Stage.INIT:
        return base
    again = str(evaluation + 1) if evaluation and stage is Stage.EVAL else ""
    return f"{base}-{stage.value}{again}"


class RolloutMachine:
    """One rollout on one worker."""

    def __init__(self, rollout: Rollout, attempt: int, records: Sequence[Record]) -> None:
        self.rollout = rollout
        self.attempt = attempt
        self.facts = Facts.of(records)
        #: How often the process of its handler ended in this stage.
        self.crashes = 0
        #: How often a lease was given back before its stage ended.
        self._given_back = 0
        self._leased: Stage | None = None
        self._queued_seconds = 0.0
        self._lease = ""
        self._opened: set[str] = set()
        self._closed: set[str] = set()
        self._unstored: Record | None = None
        self._conclusion: Conclusion | None = None
        #: Callbacks that are still made before the result is stored.
        self._last_callbacks: list[Invoke] = []
        self._detail: dict[str, Any] = {}
        self._over = False

    @property
    def stage(self) -> Stage:
        """The stage that it is in."""
        return self.facts.stage

    @property
    def leased(self) -> Stage | None:
        """The stage whose lease it holds."""
        return self._leased

    @property
    def trajectory(self) -> str:
        """Name of the trajectory of its stage."""
        facts = self.facts
        return trajectory_of(self.rollout.id, facts.generation, self.stage, facts.evaluation)

    def next(self) -> Step | None:
        """Return the next step; None: the machine is over."""
        if self._over:
            return None
        if self._unstored is not None:
            return Store(self.facts.records, self._unstored)
        if self.facts.result is not None:
            return (
                ReportEnd(self.facts.result) if self._leased is None else ReleaseLease(self._leased)
            )
        if self._conclusion is not None:
            if self._last_callbacks:
                return self._last_callbacks[0]
            self._unstored = self._result_record(self._conclusion)
            return Store(self.facts.records, self._unstored)
        return self._next_of_stage()

    def _next_of_stage(self) -> Step:
        stage = self.stage
        if (name := self._outdated()) is not None:
            return CloseTrajectory(name)
        if self._leased is not None and self._leased is not stage:
            return ReleaseLease(self._leased)
        if self._leased is None:
            # A number of its own: a lease that was released is over.
            return TakeLease(stage, self.facts.generation + MAX_PREPARATIONS * self._given_back)
        if self._needs_trajectory(stage) and self.trajectory not in self._opened:
            return self.opening()
        return Invoke(Callback.of(stage), stage)

    def opening(self) -> PrepareTrajectory:
        """Return the step that opens the trajectory of the present stage."""
        if self.stage is Stage.INIT:
            return PrepareTrajectory(self.trajectory)
        source = trajectory_of(self.rollout.id, self.facts.generation, Stage.INIT)
        return PrepareTrajectory(self.trajectory, source)

    def is_open(self, name: str) -> bool:
        """Say whether this machine has opened a trajectory."""
        return name in self._opened

    def _needs_trajectory(self, stage: Stage) -> bool:
        return self.facts.request.environment is not None and stage is not Stage.EVAL

    def _outdated(self) -> str | None:
        """Return a trajectory that has to be closed before the next stage."""
        if self.facts.request.environment is None:
            return None
        rollout, generation = self.rollout.id, self.facts.generation
        names = [
            trajectory_of(rollout, earlier, stage)
            for earlier in range(generation)
            for stage in reversed(STAGES)
        ]
        names += [
            trajectory_of(rollout, begun, Stage.EVAL, evaluation)
            for evaluation, begun in enumerate(self.facts.evaluations)
        ]
        if self.stage is Stage.EVAL:
            names.append(trajectory_of(rollout, generation, Stage.RUN))
        return next((name for name in names if name not in self._closed), None)

    # Outcomes of steps

    def leased_stage(self, stage: Stage, lease: str, waited_seconds: float) -> None:
        """The lease of a stage is held, after waiting for so long."""
        self._leased, self._lease = stage, lease
        self._queued_seconds = self.facts.queued_seconds(stage, lease, waited_seconds)
        self.note(self.facts.active_seconds()[stage])

    def released(self) -> None:
        """The lease is not held any more."""
        self._leased = None

    def gave_back(self) -> None:
        """The lease is not held any more, and its stage continues with another one."""
        self._leased = None
        self._given_back += 1

    def opened(self, name: str) -> None:
        """A trajectory is open."""
        self._opened.add(name)

    def closed(self, name: str) -> None:
        """A trajectory is closed."""
        self._closed.add(name)
        self._opened.discard(name)

    def stored(self, record: Record) -> None:
        """A record is on disk: one of a step, or one of a stage's calls."""
        self.facts.add(record)
        if record is self._unstored:
            self._unstored = None

    def reported(self) -> None:
        """The end is accepted."""
        self._over = True

    def returned(self, invoked: Invoke, answer: object) -> None:
        """A method of the handler answered."""
        if not invoked.callback.is_stage:
            self._detail |= detail_of(answer)
            self._called(invoked)
            return
        try:
            if invoked.stage is Stage.EVAL:
                self._conclude(conclusion_of(answer))
                return
            value = checked_mapping(invoked.stage, answer)
        except NonsenseAnswer as error:
            self.raised(invoked, Failure(type(error).__name__, str(error)))
            return
        kind = PREPARED if invoked.stage is Stage.INIT else STAGE
        self.crashes = 0
        self._unstored = self.record(kind, {"stage": invoked.stage, "value": value})

    def raised(self, invoked: Invoke, failure: Failure) -> None:
        """A method of the handler raised."""
        if invoked.callback.is_stage:
            self._conclude(failed(invoked.stage, failure))
        else:
            self._called(invoked)

    # Interruptions

    def timed_out(self, why: str) -> None:
        """A limit is used up."""
        self._interrupt(RolloutOutcome.TIMEOUT, why, "TimeoutError")

    def refused(self, why: str) -> None:
        """The request of the rollout asks for what cannot be."""
        self._interrupt(RolloutOutcome.FAILED, why, "InvalidRequest")

    def broken(self, why: str, *, callbacks: bool = True) -> None:
        """A part of Tangram, a node or all backends failed."""
        self._interrupt(RolloutOutcome.INFRA_FAILED, why, "InfraFailed", callbacks=callbacks)

    def environment_lost(self, why: str) -> None:
        """The environment is gone: INIT again, then what has not ended; or the end."""
        if self._conclusion is not None:
            return
        if self.facts.generation + 1 >= MAX_PREPARATIONS:
            self.broken(f"its environment was lost {MAX_PREPARATIONS} times, at last: {why}")
        elif self.facts.ran:
            self.evaluation_lost(why, prepared=False)
        else:
            self._unstored = self.record(LOST, {"reason": why})

    def evaluation_lost(self, why: str, *, prepared: bool = True) -> None:
        """What EVAL did is not known: EVAL again, in another fork, or the end. ``prepared``: the environment is there."""
        if self._conclusion is not None:
            return
        if self.facts.evaluation + 1 >= MAX_EVALUATIONS:
            self.broken(f"EVAL began {MAX_EVALUATIONS} times without an end, at last: {why}")
        else:
            self._unstored = self.record(EVAL_AGAIN, {"reason": why, "prepared": prepared})

    def crashed(self, invoked: Invoke, why: str, *, caused: bool = False) -> None:
        """The process of the handler ended while it did this: again, or the end, at once if it caused that."""
        self.crashes += 1
        if not invoked.callback.is_stage:
            self._called(invoked)
        elif caused or self.crashes > MAX_CRASHES:
            failure = Failure("HandlerProcessEnded", why)
            self._conclude(failed(invoked.stage, failure), callbacks=False)

    def dropped(self) -> None:
        """The rollout is not this worker's any more."""
        self._over = True

    # Records

    def record(
        self, kind: str, header: dict[str, Any], arrays: dict[str, bytes] | None = None
    ) -> Record:
        """Return a record of the present stage, with its times."""
        clock = self.facts.clock(self._leased or self.stage, self.attempt)
        return Record(kind, {**header, "clock": msgspec.to_builtins(clock)}, arrays or {})

    def note(self, active_seconds: float) -> None:
        """Take the time that the present stage has used so far."""
        if self._leased is not None:
            self.facts.note(
                StageMark(
                    self._leased, self.attempt, self._queued_seconds, active_seconds, self._lease
                )
            )

    def _result_record(self, conclusion: Conclusion) -> Record:
        result = result_of(self.facts, conclusion)
        header: dict[str, Any] = {"result": msgspec.to_builtins(result), "detail": self._detail}
        if conclusion.failure is not None:
            error = msgspec.to_builtins(conclusion.failure)
            header["error"] = {"stage": conclusion.stage, **error}
        return self.record(RESULT, header)

    def _conclude(self, conclusion: Conclusion, *, callbacks: bool = True) -> None:
        if self._conclusion is not None or self.facts.result is not None:
            return
        self._unstored = None
        self._conclusion = conclusion
        if not callbacks:
            return
        stage = conclusion.stage or self.stage
        if conclusion.failure is not None:
            self._last_callbacks.append(
                Invoke(Callback.exception_of(stage), stage, conclusion.failure)
            )
        self._last_callbacks.append(Invoke(Callback.FINAL_RESULT, stage))

    def _interrupt(
        self, outcome: RolloutOutcome, why: str, kind: str, *, callbacks: bool = True
    ) -> None:
        conclusion = Conclusion(outcome, why, stage=self.stage, failure=Failure(kind, why))
        self._conclude(conclusion, callbacks=callbacks)

    def _called(self, invoked: Invoke) -> None:
        if self._last_callbacks and self._last_callbacks[0] == invoked:
            del self._last_callbacks[0]
