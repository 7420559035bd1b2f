"""Steps of a rollout: what the stage machine asks its worker to do next, one at a time."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from domain.rollouts import RolloutResult, Stage
from rollout.core.results import Failure
from rollout.ports import Record


class Callback(StrEnum):
    """A method of an `AgentHandler`."""

    INIT = "init"
    RUN = "run"
    EVAL = "eval"
    INIT_EXCEPTION = "init_exception"
    RUN_EXCEPTION = "run_exception"
    EVAL_EXCEPTION = "eval_exception"
    FINAL_RESULT = "final_result"

    @classmethod
    def of(cls, stage: Stage) -> Callback:
        """Return the method that does a stage."""
        return cls(stage.value)

    @classmethod
    def exception_of(cls, stage: Stage) -> Callback:
        """Return the method that takes the error of a stage."""
        return cls(f"{stage.value}_exception")

    @property
    def is_stage(self) -> bool:
        """Whether it does a stage, and so may call actions."""
        return self in (Callback.INIT, Callback.RUN, Callback.EVAL)


class TakeLease(msgspec.Struct, frozen=True):
    """Wait for the lease of a stage; the timer does not count."""

    stage: Stage
    #: Counts the generations of the environment: a successor asks for the same lease.
    number: int


class PrepareTrajectory(msgspec.Struct, frozen=True):
    """Open the trajectory of a stage."""

    name: str
    #: Trajectory that it is a fork of; empty: it gets the environment of the request.
    source: str = ""


class Invoke(msgspec.Struct, frozen=True):
    """Call a method of the handler."""

    callback: Callback
    stage: Stage
    #: Of an exception callback.
    failure: Failure | None = None


class Store(msgspec.Struct, frozen=True):
    """Append a record to the log."""

    number: int
    record: Record


class CloseTrajectory(msgspec.Struct, frozen=True):
    """End a trajectory and remove its environment."""

    name: str


class ReleaseLease(msgspec.Struct, frozen=True):
    """Release the lease that is held."""

    stage: Stage


class ReportEnd(msgspec.Struct, frozen=True):
    """Report the end to the scheduler."""

    result: RolloutResult


Step = TakeLease | PrepareTrajectory | Invoke | Store | CloseTrajectory | ReleaseLease | ReportEnd
