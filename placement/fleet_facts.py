"""What a fleet knows: workers and their loads, trajectories, tools, batches, and how right predictions were.

It is what policies read (`FleetView`). A trajectory's place is counted in the loads with each change of its facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from placement.busy_times import BusyTimes, PromptLoad
from placement.facts import ArrangedGroup, Prediction, TrajectoryFacts, WorkerFacts, WorkerLoad
from placement.fleet_state import Measurement, PredictionMark
from placement.gathering import Gathering
from placement.policies.protocol import WorkerTimes
from placement.priorities import RankCorrelation
from placement.worker_loads import WorkerLoads, usable

#: Weight of the newest generation in the mean of their seconds.
_NEWEST: Final = 0.05
#: Finished trajectories after which the correlation is measured again: it takes a millisecond.
_MEASURED_EVERY: Final = 16
#: Marks of one trajectory; of more, every second one is kept.
_MOST_MARKS: Final = 16


class FleetFacts:
    """Facts of one fleet; the `FleetView` of its policy."""

    def __init__(self, times: WorkerTimes) -> None:
        self.now = 0.0
        self.times = times
        self.busy_times: WorkerTimes = times
        self._prompts = PromptLoad()
        self.workers = WorkerLoads()
        self.batches = Gathering()
        self.trajectories: dict[str, TrajectoryFacts] = {}
        #: Ordered by time.
        self.in_tools: dict[str, float] = {}
        #: Trajectories that arrived so far.
        self.arrivals = 0
        #: By worker: trajectories whose cache it has.
        self._residents: dict[int, dict[str, None]] = {}
        #: Mean seconds of a generation; 0: none has ended.
        self.mean_generation_seconds = 0.0
        self._measured = RankCorrelation()
        #: Of the samples when they were measured last, and those that were added since.
        self.measurement = Measurement()

    @property
    def loads(self) -> Sequence[WorkerLoad]:
        """All workers by number."""
        return self.workers.views

    @property
    def usable_workers(self) -> list[WorkerFacts]:
        """Workers that take generations."""
        return [load.facts for load in usable(self.workers.views)]

    def load(self, worker: int) -> WorkerLoad | None:
        """Return one worker; None: the fleet does not have it."""
        return self.workers.of(worker)

    def groups(self, batch: str) -> Sequence[ArrangedGroup]:
        """Return the groups of a batch as they were arranged, longest first."""
        known = self.batches.get(batch)
        return () if known is None else known.groups

    def remaining(self, batch: str) -> int:
        """Return the trajectories of a batch that have begun and are not finished."""
        known = self.batches.get(batch)
        return 0 if known is None else known.members

    def residents(self, worker: int) -> Collection[str]:
        """Return the trajectories whose cache is on a worker."""
        return self._residents.get(worker, ())

    def generation_seconds(self) -> float:
        """Return the mean seconds of a generation on its worker, recent ones most; 0 before any has ended."""
        return self.mean_generation_seconds

    def generation_took(self, seconds: float, computed_tokens: int, sampled_tokens: int) -> None:
        """Count a generation that ended: its seconds, the tokens of its prompt that were computed, and those it sampled."""
        mean = self.mean_generation_seconds
        self.mean_generation_seconds = mean + _NEWEST * (seconds - mean) if mean else seconds
        self.prompts = self._prompts.with_ended(computed_tokens, sampled_tokens)

    @property
    def prompts(self) -> PromptLoad:
        """What generations have computed of their prompts."""
        return self._prompts

    @prompts.setter
    def prompts(self, prompts: PromptLoad) -> None:
        self._prompts = prompts
        self.busy_times = BusyTimes(self.times, prompts)

    def correlation(self) -> float:
        """Return the measured rank correlation of predicted and true remaining seconds; 1 without samples."""
        return self.measurement.correlation

    def typical_seconds(self) -> float:
        """Return the median of true remaining seconds; 0 without samples."""
        return self.measurement.typical_seconds

    def _compare(self, pairs: Sequence[tuple[float, float]]) -> None:
        """Add a sample; measure again after each of the first ones, then after some."""
        self._measured.add(pairs)
        since = self.measurement.since + 1
        if since < _MEASURED_EVERY <= len(self._measured):
            self.measurement = replace(self.measurement, since=since)
        else:
            measured = self._measured
            self.measurement = Measurement(measured.value, measured.typical_seconds)

    def arrive(self, new: TrajectoryFacts) -> TrajectoryFacts:
        """Add a trajectory; its `order` is set."""
        self.arrivals += 1
        facts = self.trajectories[new.key] = replace(new, order=self.arrivals)
        return facts

    def return_from_tool(
        self, key: str, prompt_tokens: int, priority: int, marks: list[PredictionMark]
    ) -> TrajectoryFacts:
        """Note the next request of a trajectory, and the tool seconds before it.

        A prediction is of what is left after the tool that ran when it was made, so ``marks`` of that time count it as used.
        """
        facts = self.trajectories[key]
        since = self.in_tools.pop(key, None)
        if since is not None:
            used = facts.tool_seconds + self.now - since
            for place, mark in enumerate(marks):
                if mark.sampled_tokens == facts.sampled_tokens:
                    marks[place] = replace(mark, tool_seconds=used)
        return self.change(
            key,
            priority=priority,
            context_tokens=prompt_tokens or facts.context_tokens,
            tool_seconds=facts.tool_seconds + (0.0 if since is None else self.now - since),
        )

    def enter_tool(self, key: str) -> None:
        """Note that a trajectory has no generation from now on."""
        self.in_tools.pop(key, None)
        self.in_tools[key] = self.now

    def change(self, key: str, **changes: Any) -> TrajectoryFacts:
        """Change members of a trajectory's facts, and the loads of its workers; return its facts."""
        before = self.trajectories[key]
        after = self.trajectories[key] = replace(before, **changes)
        if before.worker != after.worker:
            self._leave_worker(before)
            self._join_worker(after)
        elif after.worker is not None and before.context_tokens != after.context_tokens:
            grown = after.context_tokens - before.context_tokens
            self.workers.add(after.worker, context_tokens=grown)
        return after

    def _join_worker(self, facts: TrajectoryFacts) -> None:
        if facts.worker is not None:
            self.workers.add(facts.worker, trajectories=1, context_tokens=facts.context_tokens)
            self._residents.setdefault(facts.worker, {})[facts.key] = None

    def _leave_worker(self, facts: TrajectoryFacts) -> None:
        if facts.worker is not None:
            self.workers.add(facts.worker, trajectories=-1, context_tokens=-facts.context_tokens)
            residents = self._residents[facts.worker]
            del residents[facts.key]
            if not residents:
                del self._residents[facts.worker]

    def predict(self, key: str, prediction: Prediction, marks: list[PredictionMark]) -> None:
        """Replace the prediction of a trajectory, and mark it to be compared with the truth."""
        facts = self.trajectories[key]
        marks.append(
            PredictionMark(
                facts.sampled_tokens, facts.tool_seconds, prediction.tokens, prediction.tool_seconds
            )
        )
        if len(marks) > _MOST_MARKS:
            del marks[1::2]
        total = facts.sampled_tokens + prediction.tokens
        self.change(key, prediction=prediction, total_tokens=total)

    def leave(self, key: str, marks: Sequence[PredictionMark] = ()) -> TrajectoryFacts:
        """Remove and return a trajectory; its ``marks`` are compared with what it took."""
        facts = self.trajectories.pop(key)
        self.in_tools.pop(key, None)
        self._leave_worker(facts)
        if facts.batch:
            self.batches.leave(facts.batch, key)
        if marks and facts.steps:
            self._compare(self._pairs(facts, marks))
        return facts

    def _pairs(
        self, facts: TrajectoryFacts, marks: Iterable[PredictionMark]
    ) -> list[tuple[float, float]]:
        """Return predicted and true remaining seconds at each mark, with one time per token for both."""
        load = self.workers.of(facts.worker)
        # A lost worker's trajectory has the times of another: the profile may have its degree alone.
        degrees = (
            [each.degree for each in self.workers.facts] if load is None else [load.facts.degree]
        )
        if not degrees:
            return []
        token_seconds = self.times.token_seconds(degrees[0], 1, facts.context_tokens)
        return [
            (
                mark.tokens_left * token_seconds + mark.tool_seconds_left,
                (facts.sampled_tokens - mark.sampled_tokens) * token_seconds
                + (facts.tool_seconds - mark.tool_seconds),
            )
            for mark in marks
        ]

    def first_predictions(self) -> list[tuple[float, float]]:
        """Return predicted and true remaining seconds at the first prediction of the trajectories that finished last, oldest first."""
        return [pairs[0] for pairs in self._measured.remember()]

    def remember_correlation(self) -> list[list[tuple[float, float]]]:
        """Return the samples of the correlation, oldest first."""
        return self._measured.remember()

    def recall(
        self,
        trajectories: Iterable[TrajectoryFacts],
        in_tools: Mapping[str, float],
        correlation: Iterable[Iterable[tuple[float, float]]],
        measurement: Measurement,
    ) -> None:
        """Add the facts of a snapshot to empty ones."""
        for facts in trajectories:
            self.trajectories[facts.key] = facts
            self._join_worker(facts)
        self.in_tools.update(in_tools)
        self._measured.recall(correlation)
        self.measurement = measurement
