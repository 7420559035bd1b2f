"""The figures of a trace: counts, spans, percentiles, families of commands, burstiness. No figure is simulated.

**Burstiness** of requests: the variation of gaps (standard deviation over mean; 1 for random arrivals) and the busiest
window over the mean one, for windows of 1, 10 and 60 s. Recordings have no arrivals: theirs is the number of tools that
act at once when all trajectories begin together and no tool waits: its mean over time, what it passes in one hundredth
of the time, and the most (first calls come together).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from simulator.foreign.trace import Trace
from simulator.llm_trace import LlmRequest
from simulator.result import Spread, spread
from tangram_client.traces.recording import RecordedStep, Recording

#: Seconds of the windows in which requests are counted.
WINDOWS: Final = (1, 10, 60)


class RequestFigures(msgspec.Struct, frozen=True):
    """The figures of timed requests."""

    requests: int
    span_seconds: float
    per_second: float
    input_tokens: Spread
    output_tokens: Spread
    gap_seconds: Spread
    #: Standard deviation of the gaps over their mean.
    gap_variation: float
    #: The shortest gap above 0: clocks of some traces tick only every few seconds.
    tick_seconds: float
    #: Seconds of a window → requests in the busiest one over those in the mean one; windows shorter than a
    #: tick are left out.
    busiest_window: dict[int, float]


class FamilyFigures(msgspec.Struct, frozen=True):
    """The tool calls of one family."""

    family: str
    calls: int
    call_share: float
    time_share: float
    seconds: Spread


class ActingAtOnce(msgspec.Struct, frozen=True):
    """Number of tools that act at once, over time, until the last trajectory ends."""

    mean: float
    p99: int
    most: int


class RecordingFigures(msgspec.Struct, frozen=True):
    """The figures of recorded trajectories."""

    trajectories: int
    tool_calls: int
    #: Sum over trajectories.
    recorded_seconds: float
    #: Share of that in which a tool acts.
    acting_share: float
    trajectory_seconds: Spread
    calls_per_trajectory: Spread
    think_seconds: Spread
    tool_seconds: Spread
    cpu_cores: Spread
    output_characters: Spread
    memory_bytes: Spread
    families: list[FamilyFigures]
    acting_at_once: ActingAtOnce


class TraceSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `tangram trace describe` says."""

    source: str
    format: str
    kind: str
    assumed: tuple[str, ...] = ()
    skipped: int = 0
    complaints: tuple[str, ...] = ()
    requests: RequestFigures | None = None
    recordings: RecordingFigures | None = None


def summarise(trace: Trace) -> TraceSummary:
    """Return the figures of a trace, which holds something."""
    return TraceSummary(
        source=trace.source,
        format=trace.format,
        kind=str(trace.kind),
        assumed=trace.assumed,
        skipped=trace.skipped,
        complaints=trace.complaints,
        requests=_of_requests(trace.requests) if trace.requests else None,
        recordings=_of_recordings(trace.recordings) if trace.recordings else None,
    )


def _spread(values: Sequence[float]) -> Spread:
    return spread(np.asarray(values, dtype=np.float64))


def _of_requests(requests: Sequence[LlmRequest]) -> RequestFigures:
    times = [each.at_seconds for each in requests]
    gaps = [after - before for before, after in pairwise(times)]
    span = times[-1] - times[0]
    mean = span / len(gaps) if gaps else 0.0
    tick = min((gap for gap in gaps if gap > 0), default=0.0)
    return RequestFigures(
        requests=len(requests),
        span_seconds=span,
        per_second=len(gaps) / span if span else 0.0,
        input_tokens=_spread([each.input_tokens for each in requests]),
        output_tokens=_spread([each.output_tokens for each in requests]),
        gap_seconds=_spread(gaps),
        gap_variation=float(np.std(gaps)) / mean if mean else 0.0,
        tick_seconds=tick,
        busiest_window={
            seconds: _busiest(times, seconds) for seconds in WINDOWS if tick <= seconds < span
        },
    )


def _busiest(times: Sequence[float], seconds: int) -> float:
    """Return the count of the fullest window over the mean count; the last window may be cut short."""
    counts = Counter(int((at - times[0]) // seconds) for at in times)
    mean = len(times) * seconds / max(times[-1] - times[0], seconds)
    return max(counts.values()) / mean


def _of_recordings(recordings: Sequence[Recording]) -> RecordingFigures:
    steps = [step for recording in recordings for step in recording.steps]
    lengths = [_seconds(recording.steps) for recording in recordings]
    acting = sum(step.duration_seconds for step in steps)
    whole = sum(lengths)
    return RecordingFigures(
        trajectories=len(recordings),
        tool_calls=len(steps),
        recorded_seconds=whole,
        acting_share=acting / whole if whole else 0.0,
        trajectory_seconds=_spread(lengths),
        calls_per_trajectory=_spread([len(recording.steps) for recording in recordings]),
        think_seconds=_spread([step.think_seconds for step in steps]),
        tool_seconds=_spread([step.duration_seconds for step in steps]),
        cpu_cores=_spread([step.cpu_cores for step in steps]),
        output_characters=_spread([step.output_characters for step in steps]),
        memory_bytes=_spread([recording.memory_bytes for recording in recordings]),
        families=list(_families(steps, acting)),
        acting_at_once=acting_at_once(recordings),
    )


def _seconds(steps: Sequence[RecordedStep]) -> float:
    return sum(step.think_seconds + step.duration_seconds for step in steps)


def _families(steps: Sequence[RecordedStep], acting: float) -> Iterator[FamilyFigures]:
    by_family = defaultdict[str, list[float]](list)
    for step in steps:
        by_family[step.family].append(step.duration_seconds)
    for name, seconds in sorted(by_family.items(), key=lambda item: (-len(item[1]), item[0])):
        yield FamilyFigures(
            family=name,
            calls=len(seconds),
            call_share=len(seconds) / len(steps),
            time_share=sum(seconds) / acting if acting else 0.0,
            seconds=_spread(seconds),
        )


def acting_at_once(recordings: Sequence[Recording]) -> ActingAtOnce:
    """Return how many tools act at once when all trajectories begin together."""
    changes: list[tuple[float, int]] = []
    for recording in recordings:
        at = 0.0
        for step in recording.steps:
            changes.append((at + step.think_seconds, 1))
            at += step.think_seconds + step.duration_seconds
            changes.append((at, -1))
    # At one instant, ends come before begins.
    times, deltas = np.asarray(sorted(changes)).T
    acting, lengths = np.cumsum(deltas)[:-1], np.diff(times, prepend=0.0)[1:]
    first_think = float(times[0])
    whole = first_think + float(lengths.sum())
    if not whole:
        return ActingAtOnce(0.0, 0, 0)
    order = np.argsort(acting, kind="stable")
    until = first_think + np.cumsum(lengths[order])
    at_p99 = order[min(int(np.searchsorted(until, 0.99 * whole)), len(order) - 1)]
    mean = float((acting * lengths).sum()) / whole
    return ActingAtOnce(mean, int(acting[at_p99]), int(acting.max()))
