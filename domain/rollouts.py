"""Rollouts: runs of an agent on an instance, as trajectories with the stages INIT, RUN and EVAL.

A rollout is accepted once, assigned to one rollout worker at a time, and finished once. Each of its stages is one
lease on ``stage:init``, ``stage:run`` or ``stage:eval``. The lease of RUN takes a seat of ``llm:POOL`` with it, unless the
model is a fleet: then each call of the model is a generation of its own, and no seat is taken.
What a stage does is actions of the trajectory that has the rollout's name.

Rules
1. These structs carry facts only: the instance, prompts, tokens and artefacts are records of the rollout's log
   beside Redis, whose first record is the request. They never enter Redis or the journal.
2. ``attempt`` counts the assignments of a rollout. Reports and records of an earlier attempt are ignored: the
   worker that sends them has lost the rollout.
3. A reward exists for `RolloutOutcome.COMPLETED` alone (I2), and there it may be missing, with the reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NewType

import msgspec

from domain.fleets import fleet_name

#: ``rol_`` and 28 hexadecimal digits; sorts by creation time.
RolloutId = NewType("RolloutId", str)


def new_rollout_id(epoch_milliseconds: int, entropy: bytes) -> RolloutId:
    """Return a new id: ``rol_``, 12 hexadecimal digits of time, 16 of ``entropy`` (8 random bytes)."""
    return RolloutId(f"rol_{epoch_milliseconds:012x}{entropy.hex()}")


class Stage(StrEnum):
    """A stage of a rollout, in their order."""

    INIT = "init"  # prepares the environment
    RUN = "run"  # the agent loop, with a seat of the language model
    EVAL = "eval"  # the reward


STAGES: Final = (Stage.INIT, Stage.RUN, Stage.EVAL)


class RolloutState(StrEnum):
    """State of a rollout. All states survive a restart."""

    WAITING = "waiting"  # for a rollout worker
    ASSIGNED = "assigned"  # to a worker: `RolloutProgress` has its stage
    PARKED = "parked"  # kept without a lease until it is resumed
    FINISHED = "finished"


class RolloutOutcome(StrEnum):
    """Outcome of a finished rollout; set once, never changed."""

    COMPLETED = "completed"  # it ran to its end; the reward is data
    FAILED = "failed"  # the handler or the agent raised
    TIMEOUT = "timeout"  # a stage, or all together, took longer than its limit
    CANCELLED = "cancelled"
    INFRA_FAILED = "infra_failed"  # stopped by a failure of Tangram, its nodes or all backends


class StageLimits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits on the time with the lease of a stage, less the waits of its actions (I9); in seconds."""

    init_seconds: float = 600.0
    run_seconds: float = 3600.0
    eval_seconds: float = 1800.0
    #: Of all stages together; None: no limit of its own.
    total_seconds: float | None = None

    def of(self, stage: Stage) -> float:
        """Return the limit of ``stage``."""
        return {
            Stage.INIT: self.init_seconds,
            Stage.RUN: self.run_seconds,
            Stage.EVAL: self.eval_seconds,
        }[stage]


class Rollout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One accepted rollout. Immutable."""

    id: RolloutId
    project: str
    task: str
    #: Name of its `AgentHandler`.
    handler: str
    #: Name of the instance that the trainer chose.
    instance: str = ""
    #: Samples of one instance share a group.
    group: str | None = None
    #: Number of the sample in its group.
    sample: int = 0
    #: Its language model: a pool of backends (``llm:POOL``), or ``fleet:NAME``; empty: the handler calls none.
    llm: str = ""
    #: Rollouts that are trained on together, for the placement of a fleet, and how many there are; empty, 0: not known.
    batch: str = ""
    batch_size: int = 0
    #: Higher is assigned first; equal priorities in order of arrival.
    priority: int = 0
    limits: StageLimits = StageLimits()
    #: Most weights versions by which the tokens of one rollout may differ; None: any number.
    max_version_span: int | None = None
    #: Resources of its stages, as declared when it was accepted: a stage without one takes no lease.
    stages: tuple[Stage, ...] = STAGES
    metadata: dict[str, Any] = {}
    #: Facade that it was submitted through; empty: the native API.
    door: str = ""

    @property
    def fleet(self) -> str:
        """Name of the fleet that its model is; empty: it is none."""
        return fleet_name(self.llm) or ""

    @property
    def pool(self) -> str:
        """Pool of backends whose seat RUN takes; empty: it takes none."""
        return "" if self.fleet else self.llm


class StageTimes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Time of one stage, over all of its attempts; in seconds."""

    stage: Stage
    #: Waiting for the lease.
    queued_seconds: float = 0.0
    #: With the lease, less the waits of inner actions.
    active_seconds: float = 0.0
    attempts: int = 0


class RolloutProgress(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a rollout worker reports of a rollout that it runs."""

    #: None: between two stages.
    stage: Stage | None = None
    #: It waits for the lease of ``stage``.
    queued: bool = False
    turns: int = 0
    tokens: int = 0
    #: Action that it awaits, empty: none.
    awaited: str = ""


class RolloutResult(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """End of a rollout. Everything large is in its log."""

    outcome: RolloutOutcome
    reward: float | None = None
    #: Why there is no reward, or why the rollout did not complete.
    reason: str = ""
    times: tuple[StageTimes, ...] = ()
    turns: int = 0
    #: Of all segments: prompts and responses.
    prompt_tokens: int = 0
    response_tokens: int = 0
    #: Weights versions of its first and its last token.
    weights_versions: tuple[int, int] | None = None
