"""Reading recorded trajectories: what is wrong is named with its line and member."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_client.traces.recording import (
    RecordedStep,
    Recording,
    TraceError,
    parse_lines,
    read_trace,
    resample,
)

STEP = {"think_s": 2.0, "dur_s": 1.5, "cpu_pct_mean": 12.0, "family": "bash:test", "tool": "bash"}


def line(**changes: Any) -> str:
    return json.dumps({"id": "t1", "mem_mb_peak": 100.0, "steps": [STEP], **changes})


def a_recording(name: str) -> Recording:
    return Recording(name, (RecordedStep(0.0, 1.0, 0.1, ""),), 0)


def test_trace_becomes_recordings(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f"{line()}\n\n{line(id='t2')}\n")

    first, second = read_trace(path)

    assert first == Recording("t1", (RecordedStep(2.0, 1.5, 0.12, "bash:test"),), 100 * 1024 * 1024)
    assert second.id == "t2"


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        ("{", "x.jsonl:3: not JSON"),
        ("[]", "x.jsonl:3: a trajectory is a JSON object"),
        (line(steps=[]), "x.jsonl:3: steps must be a list"),
        (line(steps=None), "x.jsonl:3: steps must be a list"),
        (line(steps=[STEP, 7]), r"x.jsonl:3: steps\[1\] is not a JSON object"),
        (line(steps=[{**STEP, "dur_s": -1}]), r"x.jsonl:3: steps\[0\].dur_s must be a number ≥ 0"),
        (line(steps=[{**STEP, "dur_s": "1"}]), r"steps\[0\].dur_s must be .*not '1'"),
        (line(steps=[{**STEP, "dur_s": True}]), r"steps\[0\].dur_s"),
        (line(steps=[{**STEP, "think_s": float("nan")}]), r"steps\[0\].think_s"),
        (line(steps=[{"think_s": 1}]), r"steps\[0\].dur_s must be .*not None"),
        (line(mem_mb_peak=float("inf")), "x.jsonl:3.mem_mb_peak"),
    ],
)
def test_fault_is_named_with_line_and_member(bad: str, where: str) -> None:
    with pytest.raises(TraceError, match=where):
        parse_lines([line(), "", bad], "x.jsonl")


def test_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n")

    with pytest.raises(TraceError, match="holds no trajectory"):
        read_trace(path)


def test_trace_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(path)


@given(recorded=st.integers(1, 20), count=st.integers(1, 100), seed=st.integers(0, 2**32))
def test_resampling_uses_each_recording_equally_often(recorded: int, count: int, seed: int) -> None:
    recordings = [a_recording(f"t{number}") for number in range(recorded)]

    chosen = resample(recordings, count, seed=seed)

    times = Counter(recording.id for recording in chosen)
    assert len(chosen) == count
    assert max(times.values()) - min(times[r.id] for r in recordings) <= 1
    assert chosen == resample(recordings, count, seed=seed)


def test_another_seed_plays_in_another_order() -> None:
    recordings = [a_recording(f"t{number}") for number in range(20)]

    assert resample(recordings, 20, seed=1) != resample(recordings, 20, seed=2)
