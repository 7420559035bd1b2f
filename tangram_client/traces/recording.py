"""Recorded trajectories: one JSON object per line.

    {"id": "t1", "mem_mb_peak": 190.0, "steps": [
        {"think_s": 2.9, "dur_s": 1.446, "cpu_pct_mean": 12.8, "family": "bash:test",
         "mem_mb_max": 166.0}]}

``think_s`` is the model's time before the call, ``dur_s`` the call's own, ``cpu_pct_mean`` its CPU
(100 is one core). Other members are ignored. `workload.generate` makes the same format.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEBIBYTE = 1024 * 1024
#: What compressed files begin with.
GZIP = b"\x1f\x8b"
#: No figure of a trace is larger: what is, has another unit or is broken.
MOST = 1e12


class TraceError(ValueError):
    """A line of a trace is not a recorded trajectory."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded tool call."""

    think_seconds: float
    duration_seconds: float
    #: Cores kept busy on average; 1.0 is one core.
    cpu_cores: float
    family: str
    #: Length of what the call returned.
    output_characters: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded trajectory."""

    id: str
    steps: tuple[RecordedStep, ...]
    memory_bytes: int


def read_file(path: Path) -> bytes:
    """Return the content of a trace. Raises TraceError when it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    if content.startswith(GZIP):
        raise TraceError(f"{path}: is compressed; give what gunzip makes of it")
    return content


def read_trace(path: Path) -> list[Recording]:
    """Read a trace. Raises TraceError naming the line and the member at fault."""
    try:
        recordings = parse_lines(read_file(path).decode().split("\n"), str(path))
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8") from None
    if not recordings:
        raise TraceError(f"{path}: holds no trajectory")
    return recordings


def parse_lines(lines: Iterable[str], source: str) -> list[Recording]:
    """Parse lines; empty ones are skipped."""
    recordings = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{source}:{number}"
            try:
                body = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{where}: not JSON ({error})") from None
            recordings.append(parse_recording(body, where))
    return recordings


def parse_recording(body: Any, where: str) -> Recording:
    """Turn one JSON object into a recording. Raises TraceError starting with ``where``."""
    if not isinstance(body, Mapping):
        raise TraceError(f"{where}: a trajectory is a JSON object")
    steps = body.get("steps")
    if not isinstance(steps, list) or not steps:
        raise TraceError(f"{where}: steps must be a list with at least one step")
    return Recording(
        id=str(body.get("id", where)),
        steps=tuple(_step(step, f"{where}: steps[{index}]") for index, step in enumerate(steps)),
        memory_bytes=round(_number(body, "mem_mb_peak", where, default=0.0) * MEBIBYTE),
    )


def _step(body: Any, where: str) -> RecordedStep:
    if not isinstance(body, Mapping):
        raise TraceError(f"{where} is not a JSON object")
    return RecordedStep(
        think_seconds=_number(body, "think_s", where, default=0.0),
        duration_seconds=_number(body, "dur_s", where),
        cpu_cores=_number(body, "cpu_pct_mean", where, default=0.0) / 100,
        family=str(body.get("family", "")),
        output_characters=round(_number(body, "output_chars", where, default=0.0)),
    )


def _number(
    body: Mapping[str, Any], name: str, where: str, *, default: float | None = None
) -> float:
    value = body.get(name, default)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not value >= 0:
        raise TraceError(f"{where}.{name} must be a number ≥ 0, not {value!r}")
    if value > MOST:
        raise TraceError(f"{where}.{name} must be a number ≥ 0 and below {MOST:g}")
    return float(value)


def resample(recordings: Sequence[Recording], count: int, *, seed: int) -> list[Recording]:
    """Return ``count`` recordings: each as often as the others, give or take one, shuffled."""
    chooser = random.Random(seed)
    copies, rest = divmod(count, len(recordings))
    chosen = [*recordings] * copies + chooser.sample(recordings, rest)
    chooser.shuffle(chosen)
    return chosen
