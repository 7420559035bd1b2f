"""Traces as files: our recordings (JSON lines) and requests (CSV), written whole, and samples that keep their shape.

A sample of recordings takes whole trajectories: they are ordered by their total seconds, divided into as many equal
strata as are wanted, and one of each is drawn. So short and long ones keep their shares in a sample of ten.

A sample of requests takes runs of up to `RUN` consecutive requests, at one drawn place in each of equal parts of the
trace, and puts the runs one after the other. Drawing single requests would thin bursts out: the gaps of the sample are
recorded gaps, its rate is that of the trace, and its span is shorter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from domain.errors import InvalidRequest
from simulator.foreign.trace import Trace, TraceKind
from simulator.llm_trace import COLUMNS, LlmRequest
from tangram_client.traces.recording import MEBIBYTE, Recording

#: Consecutive requests of a sample.
RUN: Final = 64
#: Decimals of seconds and of milliseconds in a file: a microsecond, and a tenth of one.
_DECIMALS: Final = 6
_DECIMALS_OF_MS: Final = 4


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace in our format of its kind. The file is there once it is whole.

    Raises InvalidRequest when it cannot be written.
    """
    lines = recording_lines(trace.recordings) if trace.recordings else request_lines(trace.requests)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.writelines(lines)
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink()


def recording_lines(recordings: Iterable[Recording]) -> Iterator[str]:
    """Yield each trajectory as one line of `simulator.traces`; ``start_s`` follows from the steps before."""
    for recording in recordings:
        start, steps = 0.0, []
        for step in recording.steps:
            start += step.think_seconds
            steps.append(
                {
                    "start_s": round(start, _DECIMALS),
                    "think_s": round(step.think_seconds, _DECIMALS),
                    "dur_s": round(step.duration_seconds, _DECIMALS),
                    "family": step.family,
                    "cpu_pct_mean": round(100 * step.cpu_cores, _DECIMALS),
                    "output_chars": step.output_characters,
                }
            )
            start += step.duration_seconds
        body = {
            "id": recording.id,
            "wall_s": round(start, _DECIMALS),
            "mem_mb_peak": recording.memory_bytes / MEBIBYTE,
            "steps": steps,
        }
        # Escaped: a name may hold halves of characters, which no encoding can write.
        yield json.dumps(body) + "\n"


def request_lines(requests: Iterable[LlmRequest]) -> Iterator[str]:
    """Yield the header and one row for each request, as `simulator.llm_trace` reads them."""
    yield ",".join(COLUMNS) + "\n"
    for each in requests:
        at = f"{1000 * each.at_seconds:.{_DECIMALS_OF_MS}f}".rstrip("0").rstrip(".")
        yield f"{at},{each.input_tokens},{each.output_tokens}\n"


def sample(trace: Trace, count: int, seed: int) -> Trace:
    """Return ``count`` trajectories or requests of a trace, the same ones for the same seed.

    Raises InvalidRequest when it has fewer, or when ``count`` is below 1.
    """
    content: Sequence[object] = trace.recordings or trace.requests
    if not 1 <= count <= len(content):
        raise InvalidRequest(
            f"{trace.source}: holds {len(content):,} {trace.kind.plural}; --count lies between 1"
            f" and that, not at {count}"
        )
    if trace.kind is TraceKind.RECORDINGS:
        return replace(trace, recordings=sampled_recordings(trace.recordings, count, seed))
    return replace(trace, requests=sampled_requests(trace.requests, count, seed))


def sampled_recordings(
    recordings: Sequence[Recording], count: int, seed: int
) -> tuple[Recording, ...]:
    """Return one trajectory of each stratum of total seconds, in the order of the trace."""
    chooser = Random(f"sample/{seed}")
    by_seconds = sorted(range(len(recordings)), key=lambda at: (_seconds(recordings[at]), at))
    chosen = [
        by_seconds[chooser.randrange(begin, end)] for begin, end in _parts(len(recordings), count)
    ]
    return tuple(recordings[at] for at in sorted(chosen))


def _seconds(recording: Recording) -> float:
    return sum(step.think_seconds + step.duration_seconds for step in recording.steps)


def sampled_requests(
    requests: Sequence[LlmRequest], count: int, seed: int
) -> tuple[LlmRequest, ...]:
    """Return runs of consecutive requests, one after the other; the first request is at 0 s."""
    chooser = Random(f"sample/{seed}")
    sizes = [end - begin for begin, end in _parts(count, math.ceil(count / RUN))]
    chosen: list[LlmRequest] = []
    at_seconds = 0.0
    # What is left out is divided evenly among the runs; each run is moved within its share of that.
    left_out = _parts(len(requests) - count, len(sizes))
    taken = 0
    for size, (least, most) in zip(sizes, left_out, strict=True):
        first = taken + chooser.randint(least, most)
        taken += size
        for index in range(first, first + size):
            each = requests[index]
            if chosen:
                at_seconds += each.at_seconds - requests[index - 1].at_seconds
            chosen.append(LlmRequest(at_seconds, each.input_tokens, each.output_tokens))
    return tuple(chosen)


def _parts(length: int, count: int) -> list[tuple[int, int]]:
    """Divide ``length`` places into ``count`` parts of equal length, give or take one."""
    bounds = [length * index // count for index in range(count + 1)]
    return list(pairwise(bounds))
