"""PlacementPolicy: the questions that a fleet asks, and the times that it may use to answer them.

A policy decides from what is passed to it: it keeps nothing that the fleet's facts do not determine, but for what `remember` returns.
The same protocol is implemented by the rivals of the benchmarks (round robin, least load, cache-aware, hybrid; FCFS, Autellix).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from placement.facts import (
    ArrangedGroup,
    BatchArrangement,
    Move,
    Prediction,
    TrajectoryFacts,
    WorkerFacts,
    WorkerLoad,
)


class WorkerTimes(Protocol):
    """Times of one engine and model, as measured (`placement.profiles`)."""

    def token_seconds(self, degree: int, batch: int, context_tokens: float) -> float:
        """Return seconds per token of each of ``batch`` sequences that have ``context_tokens`` each."""
        ...

    def prefill_seconds(self, degree: int, tokens: int) -> float:
        """Return the seconds that a prompt of so many uncached tokens takes."""
        ...

    def transfer_seconds(self, tokens: int) -> float:
        """Return the seconds that a cache of so many tokens takes between two workers; inf: no transfer."""
        ...

    def kv_tokens(self, degree: int) -> float:
        """Return the tokens of cache that fit on a worker."""
        ...


class FleetView(Protocol):
    """What a policy may read of its fleet."""

    @property
    def now(self) -> float:
        """Journal seconds."""
        ...

    @property
    def times(self) -> WorkerTimes: ...

    @property
    def busy_times(self) -> WorkerTimes:
        """`times` with what prompts take between tokens: what estimates of a rest are made with."""
        ...

    @property
    def loads(self) -> Sequence[WorkerLoad]:
        """Return all workers by number, the unusable ones too."""
        ...

    @property
    def trajectories(self) -> Mapping[str, TrajectoryFacts]:
        """Return all trajectories that are not finished."""
        ...

    @property
    def in_tools(self) -> Mapping[str, float]:
        """Return trajectories without a generation, and since when."""
        ...

    def load(self, worker: int) -> WorkerLoad | None:
        """Return one worker; None: the fleet does not have it."""
        ...

    def groups(self, batch: str) -> Sequence[ArrangedGroup]:
        """Return the groups of a batch as they were arranged, longest first; none without an arrangement."""
        ...

    def remaining(self, batch: str) -> int:
        """Return the trajectories of a batch that have begun and are not finished."""
        ...

    def residents(self, worker: int) -> Collection[str]:
        """Return the trajectories whose cache is on a worker."""
        ...

    def generation_seconds(self) -> float:
        """Return the mean seconds of a generation on its worker, recent ones most; 0 before any has ended."""
        ...

    def correlation(self) -> float:
        """Return the measured rank correlation of predicted and true remaining seconds; 1 without samples."""
        ...

    def typical_seconds(self) -> float:
        """Return the median of true remaining seconds; 0 without samples."""
        ...


class PlacementPolicy(Protocol):
    """Order, worker, arrangement and moves of a fleet's trajectories."""

    name: str
    #: Whether batches wait for their members, and `arrange` is asked.
    arranges: bool
    #: Whether the last trajectories of a batch fold onto a wide worker where that ends sooner (`placement.fold`).
    folds: bool

    def rank(self, trajectory: TrajectoryFacts, fleet: FleetView) -> float:
        """Return the rank of its next generation, which goes to ``trajectory.worker``; greater is served first."""
        ...

    def choose(self, trajectory: TrajectoryFacts, fleet: FleetView) -> tuple[int, str] | None:
        """Return worker and reason of its next generation; None: no worker is usable."""
        ...

    def arrange(
        self, batch: Sequence[TrajectoryFacts], workers: Sequence[WorkerFacts], fleet: FleetView
    ) -> BatchArrangement | None:
        """Return the workers of a batch that begins; None: `choose` decides one by one. Changes nothing."""
        ...

    def move(self, trajectory: TrajectoryFacts, fleet: FleetView) -> Move | None:
        """Return where the cache of ``trajectory``, which is in a tool, is better; None: where it is.

        Asked when a prediction of it arrives, and again just before the transfer starts.
        """
        ...

    def predicted(self, trajectory: TrajectoryFacts, prediction: Prediction) -> None:
        """Take note of a new prediction of ``trajectory``, before it replaces the former one."""
        ...

    def left(self, trajectory: TrajectoryFacts) -> None:
        """Take note that ``trajectory`` is finished."""
        ...

    def remember(self) -> bytes:
        """Return the state that the fleet's facts do not determine."""
        ...

    def recall(self, memory: bytes, trajectories: Mapping[str, TrajectoryFacts]) -> None:
        """Restore what `remember` returned, in a fleet that has these trajectories."""
        ...
