"""Counters and histograms over the journal, from the first entry that was folded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import msgspec

from domain.action import Outcome, Timing
from domain.allocation import Allocation, UsedResources
from domain.decisions import Finish, FinishRollout
from domain.fleets import TokenUsage
from domain.resources import MILLI

#: Upper bounds of durations in seconds, 5 ms … 1000 s: the range of tool calls.
BOUNDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0,
    1000.0,
)  # fmt: skip
#: Upper bounds of peak memory in bytes: 1 MiB … 64 GiB.
MEMORY_BOUNDS: Final = tuple(2**20 * 4**power for power in range(9))
#: A restore before a grant: it started; a call used the service that it had loaded.
BROUGHT, MET = "brought", "met"
#: A call whose service was in memory on its chunk, so that a restore was avoided, or was not.
CACHED, RESTORED = "cached", "restored"
PROMPT, RESPONSE = "prompt", "response"
#: Tokens of a generation.
SAMPLED = "sampled"
#: Time of a stage: waiting for its lease; with it, less the waits of its actions.
QUEUED, ACTIVE = "queued", "active"
PHASES: Final = ("queue", "overhead", "execution")


class Histogram(msgspec.Struct):
    """Durations by bucket, not cumulated; the last bucket has no upper bound."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum_seconds += seconds


class PeakMemory(msgspec.Struct):
    """Peak memory by bucket, not cumulated; the last bucket has no upper bound."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(MEMORY_BOUNDS) + 1))
    sum_bytes: int = 0

    def add(self, peak_bytes: int) -> None:
        """Count one action."""
        self.counts[bisect_left(MEMORY_BOUNDS, peak_bytes)] += 1
        self.sum_bytes += peak_bytes


#: Ends of a move.
MOVED: Final = "moved"
STAYED: Final = "stayed"


class Totals(msgspec.Struct):
    """Totals up to one position of the journal. Keys are label values in a fixed order."""

    #: Stream id of the last entry that is counted.
    position: str = "0-0"
    #: (project, pool, kind)
    submitted: dict[tuple[str, str, str], int] = {}
    #: (project, pool, kind, outcome)
    finished: dict[tuple[str, str, str, str], int] = {}
    #: (pool, kind)
    completion: dict[tuple[str, str], Histogram] = {}
    #: (pool, phase)
    phases: dict[tuple[str, str], Histogram] = {}
    #: (pool,)
    requeued: dict[tuple[str], int] = {}
    resized: dict[tuple[str], int] = {}
    #: Moves of environments that have ended, (pool, `MOVED` or `STAYED`).
    moves: dict[tuple[str, str], int] = {}
    #: Of actions whose use is measured, (pool,): core seconds granted and used, seconds throttled.
    granted_cpu_seconds: dict[tuple[str], float] = {}
    used_cpu_seconds: dict[tuple[str], float] = {}
    throttled_seconds: dict[tuple[str], float] = {}
    #: (pool,) → actions by peak memory, and the sum of the peaks.
    peak_memory: dict[tuple[str], PeakMemory] = {}
    #: Grants of chunks to calls of services, (pool, `CACHED` or `RESTORED`).
    service_calls: dict[tuple[str, str], int] = {}
    #: Services that were evicted from GPU memory, (pool,).
    evictions: dict[tuple[str], int] = {}
    #: Durations of restores with the evictions before them, (pool,).
    restores: dict[tuple[str], Histogram] = {}
    #: Restores before a grant of the chunk, (pool, `BROUGHT` or `MET`).
    ahead: dict[tuple[str, str], int] = {}
    #: (project,)
    rollouts_submitted: dict[tuple[str], int] = {}
    #: (project, outcome)
    rollouts_finished: dict[tuple[str, str], int] = {}
    #: Assignments of rollouts after the first one, (project,).
    rollouts_reassigned: dict[tuple[str], int] = {}
    #: Tokens of finished rollouts, (project, `PROMPT` or `RESPONSE`).
    rollout_tokens: dict[tuple[str, str], int] = {}
    #: Times of the stages of finished rollouts, (stage, `QUEUED` or `ACTIVE`).
    stages: dict[tuple[str, str], Histogram] = {}
    #: Finished generations, (fleet, outcome).
    generations: dict[tuple[str, str], int] = {}
    #: Their tokens as workers counted them, (fleet, `PROMPT`, `CACHED` or `SAMPLED`); cached ones are a part of the prompts.
    generation_tokens: dict[tuple[str, str], int] = {}

    def count_submitted(self, project: str, pool: str, kind: str) -> None:
        """Count an accepted action."""
        key = (project, pool, kind)
        self.submitted[key] = self.submitted.get(key, 0) + 1

    def count_finished(
        self, project: str, pool: str, kind: str, outcome: Outcome, timing: Timing
    ) -> None:
        """Count a finished action."""
        key = (project, pool, kind, str(outcome))
        self.finished[key] = self.finished.get(key, 0) + 1
        completion = self.completion.get((pool, kind)) or _of(self.completion, (pool, kind))
        completion.add(timing.act_seconds)
        phases = self.phases
        for phase, seconds in (
            ((pool, "queue"), timing.queue_seconds),
            ((pool, "overhead"), timing.overhead_seconds),
            ((pool, "execution"), timing.execution_seconds),
        ):
            histogram = phases.get(phase) or _of(phases, phase)
            # As `Histogram.add`, without a call for each phase of every action.
            histogram.counts[bisect_left(BOUNDS, seconds)] += 1
            histogram.sum_seconds += seconds

    def count_usage(self, pool: str, granted_cpu_seconds: float, used: UsedResources) -> None:
        """Count the CPU time that an action was granted, and what it used."""
        key = (pool,)
        for sums, seconds in (
            (self.granted_cpu_seconds, granted_cpu_seconds),
            (self.used_cpu_seconds, used.cpu_seconds),
            (self.throttled_seconds, used.throttled_seconds),
        ):
            sums[key] = sums.get(key, 0.0) + seconds
        self.peak_memory.setdefault(key, PeakMemory()).add(used.peak_memory_bytes)

    def count_service_grant(self, pool: str, allocations: Iterable[Allocation]) -> None:
        """Count whether the service of a call was in memory on its chunk, and evictions."""
        for hosting in (each.hosting for each in allocations):
            if hosting is None:
                continue
            if hosting.service:
                key = (pool, CACHED if hosting.cached else RESTORED)
                self.service_calls[key] = self.service_calls.get(key, 0) + 1
            if hosting.ahead:
                self.ahead[pool, MET] = self.ahead.get((pool, MET), 0) + 1
            if hosting.evicted:
                evictions = self.evictions.get((pool,), 0)
                self.evictions[(pool,)] = evictions + len(hosting.evicted)

    def count_restore_ahead(self, pool: str) -> None:
        """Count a restore before a grant of the chunk."""
        self.ahead[pool, BROUGHT] = self.ahead.get((pool, BROUGHT), 0) + 1

    def count_restore(self, pool: str, seconds: float) -> None:
        """Count a restore that a node has reported."""
        self.restores.setdefault((pool,), Histogram()).add(seconds)

    def count_rollout(self, finish: FinishRollout) -> None:
        """Count a finished rollout, its tokens and the times of its stages."""
        project, result = finish.project, finish.result
        end = (project, result.outcome.value)
        self.rollouts_finished[end] = self.rollouts_finished.get(end, 0) + 1
        for kind, tokens in ((PROMPT, result.prompt_tokens), (RESPONSE, result.response_tokens)):
            key = (project, kind)
            self.rollout_tokens[key] = self.rollout_tokens.get(key, 0) + tokens
        for times in result.times:
            _of(self.stages, (times.stage.value, QUEUED)).add(times.queued_seconds)
            _of(self.stages, (times.stage.value, ACTIVE)).add(times.active_seconds)

    def count_generation(self, fleet: str, outcome: Outcome, usage: TokenUsage | None) -> None:
        """Count a finished generation, and its tokens where its worker counted them."""
        end = (fleet, outcome.value)
        self.generations[end] = self.generations.get(end, 0) + 1
        counted = usage or TokenUsage()
        for kind, tokens in (
            (PROMPT, counted.prompt_tokens),
            (CACHED, counted.cached_tokens),
            (SAMPLED, counted.sampled_tokens),
        ):
            key = (fleet, kind)
            self.generation_tokens[key] = self.generation_tokens.get(key, 0) + tokens

    def count_rollout_submitted(self, project: str) -> None:
        """Count an accepted rollout."""
        self.rollouts_submitted[(project,)] = self.rollouts_submitted.get((project,), 0) + 1

    def count_rollout_assigned(self, project: str, attempt: int) -> None:
        """Count an assignment of a rollout, unless it is its first one."""
        if attempt > 1:
            again = self.rollouts_reassigned.get((project,), 0)
            self.rollouts_reassigned[(project,)] = again + 1

    def count_requeued(self, pool: str) -> None:
        """Count a requeued action."""
        self.requeued[(pool,)] = self.requeued.get((pool,), 0) + 1

    def count_move(self, pool: str, end: str) -> None:
        """Count the end of a move of an environment."""
        self.moves[pool, end] = self.moves.get((pool, end), 0) + 1

    def count_resized(self, pool: str) -> None:
        """Count a resize of a running action."""
        self.resized[(pool,)] = self.resized.get((pool,), 0) + 1


def _of(histograms: dict[tuple[str, str], Histogram], key: tuple[str, str]) -> Histogram:
    histogram = histograms.get(key)
    if histogram is None:
        histogram = histograms[key] = Histogram()
    return histogram


def granted_cpu_seconds(finish: Finish) -> float:
    """Return the core seconds that a finished action was granted while it ran.

    Of a resized action only the integral over the time it held its key resource is known.
    """
    cpus = [each.amount for each in finish.allocations if each.resource.startswith("cpu:")]
    if cpus and finish.resizes:
        return finish.key_milli_seconds / MILLI
    return sum(cpus) / MILLI * finish.timing.execution_seconds
