"""Facts that placement decides from: workers, trajectories, their lengths, and what is decided about them.

All are immutable. Numbers of workers are those that allocations name; keys of trajectories are opaque strings that sort by arrival
for nothing: `TrajectoryFacts.order` does. Seconds are journal seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

#: Parallelism degrees that a worker may have: GPUs that share one copy of the model.
DEGREES: Final = (1, 2, 4, 8)


class Prediction(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is expected to be left of a trajectory after its latest step."""

    #: Tokens still to be sampled, ≥ 0 and finite.
    tokens: float
    #: Seconds still to be spent in tools, ≥ 0 and finite.
    tool_seconds: float = 0.0
    #: Standard deviation of log(true / predicted) of this predictor at this step; 0: exact.
    sigma: float = 0.0
    #: Name of the predictor.
    source: str = ""

    @property
    def usable(self) -> bool:
        """Whether all numbers are finite and none is negative."""
        numbers = (self.tokens, self.tool_seconds, self.sigma)
        return all(math.isfinite(each) and each >= 0 for each in numbers)


class WorkerFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One worker of a fleet."""

    number: int
    #: Generations that it runs at once; the engine's `max_num_seqs`.
    slots: int
    #: GPUs that it has, one of `DEGREES`.
    degree: int = 1
    #: False while it is drained, unhealthy or asleep: it gets no further generation.
    usable: bool = True
    #: Counts its engine's weights; caches of another version are void.
    weights_version: int = 0


class TrajectoryFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One trajectory between two of its generations, or in one."""

    key: str
    #: Arrival: smaller is earlier; unique within the fleet.
    order: int
    #: Trajectories of one prompt.
    group: str = ""
    #: Trajectories that are trained on together; the slowest ends it.
    batch: str = ""
    #: Generations that have ended.
    steps: int = 0
    #: Tokens sampled for it so far: its *attained service*.
    sampled_tokens: int = 0
    #: Prompt and answer of its latest generation; its cache on ``worker``.
    context_tokens: int = 0
    #: Seconds of tools so far.
    tool_seconds: float = 0.0
    #: Where its cache is, or is made by the generation that was routed last.
    worker: int | None = None
    #: None: neither a predictor nor history says anything.
    prediction: Prediction | None = None
    #: Tokens that had been sampled when ``prediction`` was made, and those that it expects: the predicted total.
    total_tokens: float = 0.0
    #: The caller's priority; greater is served first, before any rank.
    priority: int = 0
    #: Pinned to a worker by an operator: it never moves.
    pinned: bool = False


class WorkerLoad(msgspec.Struct, frozen=True, gc=False):
    """What a worker has to do now."""

    facts: WorkerFacts
    #: Generations that run or are queued on it.
    generations: int
    #: Trajectories whose cache it has and that are in the fleet.
    trajectories: int
    #: Context tokens of those trajectories.
    context_tokens: int


class GenerationRoute(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Worker of a generation, its order there, and why."""

    worker: int
    #: Greater is served first, among equal priorities.
    rank: float
    #: Code of the reason, as pages show it; `placement.explanation` has the sentence of each.
    reason: str


class Move(msgspec.Struct, frozen=True, gc=False):
    """A transfer of a trajectory's cache while it is in a tool."""

    trajectory: str
    source: int
    target: int
    #: Tokens of cache.
    context_tokens: int
    #: Seconds by which the trajectory is expected to end sooner, with the transfer counted.
    gain_seconds: float
    #: Predicted length, in the unit that its policy compares: of several moves the longest trajectory's is first.
    length: float


class ArrangedGroup(msgspec.Struct, frozen=True, gc=False):
    """The part of a batch that an arrangement gives to one worker."""

    worker: int
    #: Trajectories.
    size: int
    #: Predicted length of its longest and of its shortest one, in the unit that the policy compares.
    longest: float
    shortest: float


class BatchArrangement(msgspec.Struct, frozen=True, gc=False):
    """Workers of the trajectories of a batch that begins."""

    #: By key of the trajectory.
    workers: Mapping[str, int]
    #: Longest first; without empty groups.
    groups: tuple[ArrangedGroup, ...]
