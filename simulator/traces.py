"""Recorded trajectories as input of a simulation: read strictly, or made up.

The format is that of `tangram_client.traces.recording`, one JSON object per line. A replay ignores what
it does not know; a simulation that is to be believed does not. Refused, naming file and line: what
is not JSON (a truncated last line is not), unknown members, numbers that are NaN or negative, steps
that are not in the order of their time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tangram_client.traces.generator import generate
from tangram_client.traces.recording import Recording, TraceError, parse_recording, read_file

TRAJECTORY_MEMBERS: Final = frozenset(
    "id image_mb mem_mb_peak model setup_s steps task wall_s".split()
)
STEP_MEMBERS: Final = frozenset(
    "cpu_pct_max cpu_pct_mean dur_s family mem_mb_max output_chars start_s think_s tool".split()
)


def read_recordings(path: Path) -> list[Recording]:
    """Read a trace. Raises TraceError: one line that names the file, the line and what is wrong."""
    return parse_recordings(read_file(path), str(path))


def parse_recordings(content: bytes, source: str) -> list[Recording]:
    """Read the content of a trace, which errors call ``source``; raises as `read_recordings`."""
    recordings = [
        parse_line(line, f"{source}:{number}")
        for number, line in enumerate(content.split(b"\n"), start=1)
        if line.strip()
    ]
    if not recordings:
        raise TraceError(f"{source}:1: holds no trajectory")
    return recordings


def make_recordings(count: int, seed: int) -> list[Recording]:
    """Make ``count`` trajectories up (see `tangram_client.traces.generator` for their distributions)."""
    return [parse_recording(body, "generated") for body in generate(count, seed)]


def parse_line(line: bytes, where: str) -> Recording:
    """Read one line of a trace. Raises TraceError starting with ``where``."""
    try:
        body = json.loads(line.decode())
    except UnicodeDecodeError:
        raise TraceError(f"{where}: not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON, or cut off ({error})") from None
    if isinstance(body, Mapping):
        for problem in _problems(body):
            raise TraceError(f"{where}: {problem}")
    return parse_recording(body, where)


def _problems(body: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown(body, TRAJECTORY_MEMBERS, "")
    steps = body.get("steps")
    if not isinstance(steps, list):
        return
    steps = [step for step in steps if isinstance(step, Mapping)]
    for index, step in enumerate(steps):
        yield from _unknown(step, STEP_MEMBERS, f"steps[{index}].")
    starts = [step.get("start_s", 0.0) for step in steps]
    for index, start in enumerate(starts):
        if isinstance(start, bool) or not isinstance(start, (int, float)) or not 0 <= start < 1e12:
            yield f"steps[{index}].start_s must be a number ≥ 0, not {start!r}"
    for index, (before, after) in enumerate(pairwise(starts), start=1):
        if after < before:
            yield f"steps[{index}] starts at {after:g} s, before the step above it ({before:g} s)"


def _unknown(body: Mapping[str, Any], known: frozenset[str], where: str) -> Iterator[str]:
    for name in sorted(body.keys() - known):
        yield f"unknown member {where}{name}; known are {', '.join(sorted(known))}"
