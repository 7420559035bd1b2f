"""Settings of a simulated fleet, and what its rollout of one batch gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from managers.llm.fake.engine_spec import MODELLED, EngineSpec


@dataclass(frozen=True)
class FoldRule:
    """Narrow workers sleep and a wide one wakes on their GPUs once so many of a batch are left.

    Caches of narrow workers are void: the wide one computes each prompt again.
    """

    #: Part of the batch.
    left: float
    degree: int = 8
    #: From the order to wake until it serves; assumed.
    wake_seconds: float = 5.0
    #: Generations that run are cut, and go on at the wide worker with the tokens that they have. Else they end where they are.
    cuts: bool = False


@dataclass(frozen=True)
class FleetSetting:
    """One fleet. Slots are those of each worker, whatever its degree (Heddle §7.1: 100)."""

    policy: str
    degrees: tuple[int, ...]
    predictor: str = ""
    slots: int = 100
    spec: EngineSpec = field(default_factory=lambda: MODELLED["14B"])
    #: Algorithm 1 interrupts what runs; without it priorities order the queue alone.
    preempts: bool = False
    fold: FoldRule | None = None
    #: Priorities are sent as 32 buckets, as engines get them.
    buckets: bool = False
    seed: int = 0


@dataclass(frozen=True)
class FleetResult:
    """What came out; seconds are virtual."""

    makespan: float
    #: Sampled.
    tokens: int
    #: Moment at which each trajectory ended, in that order.
    ends: tuple[float, ...]
    #: Of the trajectory with the most tokens: its end, and its time in queues.
    longest_end: float
    longest_queue: float
    #: Mean over trajectories.
    queue: float
    computed_tokens: int
    cached_tokens: int
    preempted: int
    moves: int
    moved_tokens: int
    folded_at: float | None

    @property
    def throughput(self) -> float:
        """Sampled tokens per second."""
        return self.tokens / self.makespan

    def active(self, at: float) -> int:
        """Return the trajectories that are not finished at a moment."""
        return sum(end > at for end in self.ends)
