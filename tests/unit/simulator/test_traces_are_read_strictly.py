"""A trace that is not what it should be is one line with file and line number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.llm_trace import COLUMNS, read_requests
from simulator.traces import make_recordings, read_recordings
from simulator.workloads.recorded import read_journal
from tangram_client.traces.recording import TraceError, read_trace


def a_line(**members: Any) -> str:
    step = {"start_s": 1.0, "think_s": 1.0, "dur_s": 0.5, "cpu_pct_mean": 10.0, "family": "test"}
    steps = members.pop("steps", [step | members.pop("step", {})])
    return json.dumps({"id": "t1", "mem_mb_peak": 100.0, "steps": steps} | members)


def a_file(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_good_trace_is_read(tmp_path: Path):
    recordings = read_recordings(a_file(tmp_path, a_line(), "", a_line(id="t2"), ""))

    assert [recording.id for recording in recordings] == ["t1", "t2"]
    assert recordings[0].steps[0].duration_seconds == 0.5


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON, or cut off"),
        (a_line()[:-9], "not JSON, or cut off"),
        ("[]", "a trajectory is a JSON object"),
        (a_line(colour="red"), "unknown member colour; known are id,"),
        (a_line(step={"dur_ms": 3}), "unknown member steps[0].dur_ms; known are"),
        (a_line(step={"dur_s": float("nan")}), "steps[0].dur_s must be a number ≥ 0, not nan"),
        (a_line(step={"dur_s": -0.1}), "steps[0].dur_s must be a number ≥ 0, not -0.1"),
        (a_line(step={"think_s": "3"}), "steps[0].think_s must be a number ≥ 0, not '3'"),
        (a_line(step={"start_s": float("inf")}), "steps[0].start_s must be a number ≥ 0, not inf"),
        (a_line(step={"start_s": True}), "steps[0].start_s must be a number ≥ 0, not True"),
        (a_line(step={"dur_s": 10**400}), "steps[0].dur_s must be a number ≥ 0 and below 1e+12"),
        (a_line(mem_mb_peak=1e305), "mem_mb_peak must be a number ≥ 0 and below 1e+12"),
        ('{"steps": ' + "[" * 100_000, "not JSON, or cut off"),
        (a_line(mem_mb_peak=-1), "mem_mb_peak must be a number ≥ 0, not -1"),
        (a_line(steps=[]), "steps must be a list with at least one step"),
        (a_line(steps=[3]), "steps[0] is not a JSON object"),
        (
            a_line(steps=[{"start_s": 5, "dur_s": 1}, {"start_s": 4, "dur_s": 1}]),
            "steps[1] starts at 4 s, before the step above it (5 s)",
        ),
    ],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str):
    path = a_file(tmp_path, a_line(), "", line)

    with pytest.raises(TraceError) as caught:
        read_recordings(path)

    assert str(caught.value).startswith(f"{path}:3")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n"], ids=["nothing", "blank lines"])
def test_an_empty_trace_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=r"trace\.jsonl:1: holds no trajectory"):
        read_recordings(path)


def test_a_trace_that_is_not_text_is_refused(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(a_line().encode() + b"\n\xff\xfe\n")

    with pytest.raises(TraceError, match=r"trace\.jsonl:2: not UTF-8"):
        read_recordings(path)


@pytest.mark.parametrize("read", [read_recordings, read_requests, read_journal, read_trace])
def test_a_compressed_trace_is_refused_with_the_cure(tmp_path: Path, read: Any):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(a_line().encode()))

    with pytest.raises(
        TraceError, match=r"trace\.jsonl\.gz: is compressed; give what gunzip makes"
    ):
        read(path)


@pytest.mark.parametrize("line", [b"\xff", b'{"seq": "\xff"}', b'{"events": ' + b"[" * 100_000])
def test_a_line_that_is_no_entry_of_a_journal_is_named(tmp_path: Path, line: bytes):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\n" + line)

    with pytest.raises(TraceError, match=r"journal\.jsonl:2: not a journal entry"):
        read_journal(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1,2," + "3" * 200_000 + ",4", "output_tokens must be a number"),
        ('1,"2,3,4', "'\"2'"),
        ("1,2,3", "3 fields, not 4; cut off"),
        ("nan,2,3,4", "t_ms must be a number"),
    ],
)
def test_a_request_that_is_none_is_named(tmp_path: Path, line: str, said: str):
    path = tmp_path / "requests.csv"
    path.write_text(",".join([*COLUMNS, "others"]) + f"\n0,1,1,1\n{line}\n")

    with pytest.raises(TraceError, match=r"requests\.csv:3: ") as caught:
        read_requests(path)

    assert said in str(caught.value)


@pytest.mark.parametrize("others", ["", ",prefix_blocks_512", ",prefix_blocks_512,model"])
def test_columns_behind_the_tokens_are_not_read(tmp_path: Path, others: str):
    path, more = tmp_path / "requests.csv", others and ",x" * others.count(",")
    path.write_text(f"{','.join(COLUMNS)}{others}\n0,7,1{more}\n2000,8,1{more}\n")

    assert [(each.at_seconds, each.input_tokens) for each in read_requests(path)] == [
        (0, 7),
        (2, 8),
    ]


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(TraceError, match="No such file"):
        read_recordings(tmp_path / "missing.jsonl")


def test_made_up_trajectories_depend_on_the_seed_alone():
    assert make_recordings(3, 7) == make_recordings(4, 7)[:3]
    assert make_recordings(3, 7) != make_recordings(3, 8)
