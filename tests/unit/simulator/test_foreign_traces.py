"""Traces of other systems are found by their content; bad lines are errors with file, line and field, or are skipped."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.foreign import lines
from simulator.foreign import requests as requests_module
from simulator.foreign.reading import FORMATS, detect, read_sources, recordings_of, requests_of
from simulator.foreign.trace import TraceKind
from simulator.llm_trace import LlmRequest
from tangram_client.traces.recording import TraceError
from tests.unit.simulator.foreign_samples import (
    AZURE,
    BAILIAN,
    MOONCAKE,
    STEP,
    VERL,
    a_file,
    a_trajectory,
    changed,
)


def test_mooncake_has_milliseconds_from_the_beginning(tmp_path: Path) -> None:
    path = a_file(tmp_path, "m.jsonl", MOONCAKE, changed(MOONCAKE, timestamp=30482))

    trace = read_sources([path])

    assert (trace.format, trace.kind) == ("mooncake", TraceKind.REQUESTS)
    assert trace.requests == (LlmRequest(0.0, 6955, 52), LlmRequest(3.0, 6955, 52))
    assert trace.assumed == ("hash_ids are not read: simulations share no prefixes of prompts",)


def test_bailian_looks_like_mooncake_and_has_seconds(tmp_path: Path) -> None:
    path = a_file(tmp_path, "b.jsonl", BAILIAN, changed(BAILIAN, timestamp=62.114))

    trace = read_sources([path])

    assert trace.format == "bailian"
    assert [each.at_seconds for each in trace.requests] == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690", 4.314579),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-11 00:00:00.009930+00:00", 86_400.0),
        ("2024-05-10 00:00:00Z", "2024-05-10 02:00:01+02:00", 1.0),
    ],
    ids=["2023: seven digits", "2024: with a zone", "two zones"],
)
def test_azure_has_instants(tmp_path: Path, first: str, second: str, gap: float) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(f"\ufeff{AZURE}{first},374,44\r\n{second},396,109\r\n".encode())

    trace = read_sources([path])

    assert trace.format == "azure"
    assert [(each.input_tokens, each.output_tokens) for each in trace.requests] == [
        (374, 44),
        (396, 109),
    ]
    assert trace.requests[1].at_seconds == pytest.approx(gap, abs=1e-5)


def test_azure_columns_are_found_by_their_names(tmp_path: Path) -> None:
    path = a_file(
        tmp_path, "multimodal.csv", "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
        "2024-10-01 00:00:00,3,1200,9",
    )  # fmt: skip

    assert read_sources([path]).requests == (LlmRequest(0.0, 1200, 9),)


def test_requests_that_are_not_in_order_are_sorted_and_said_to_be(tmp_path: Path) -> None:
    late, early = "2023-11-16 18:15:47,2,2", "2023-11-16 18:15:46,1,1"
    trace = read_sources([a_file(tmp_path, "azure.csv", AZURE.strip(), late, early)])

    assert [each.input_tokens for each in trace.requests] == [1, 2]
    assert trace.assumed == (
        "1 requests came before the line above them; requests are sorted by time",
    )


def test_our_own_formats_are_known(tmp_path: Path) -> None:
    step = {"start_s": 0.0, "think_s": 1.0, "dur_s": 0.5, "family": "test"}
    recordings = a_file(tmp_path, "ours.jsonl", {"id": "t1", "steps": [step]})
    requests = a_file(tmp_path, "ours.csv", "t_ms,input_tokens,output_tokens,more", "500,7,1,x")

    assert detect(recordings).name == "tangram"
    assert read_sources([requests]).requests == (LlmRequest(0.5, 7, 1),)


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("mooncake", changed(MOONCAKE, timestamp=-1), "timestamp must be a number from 0"),
        ("mooncake", changed(MOONCAKE, timestamp=float("nan")), "timestamp must be a number from 0 to 1e+12, not nan"),
        ("mooncake", changed(MOONCAKE, timestamp=True), "timestamp must be a number"),
        ("mooncake", changed(MOONCAKE, input_length="7"), "input_length must be a number from 0 to 1e+12, not '7'"),
        ("mooncake", changed(MOONCAKE, output_length=1.5), "output_length must be a whole number up to 100000000, not 1.5"),
        ("mooncake", changed(MOONCAKE, output_length=10**400), "output_length must be a number from 0 to 1e+12, not a huge number"),
        ("mooncake", changed(MOONCAKE, output_length=...), "output_length must be a number from 0 to 1e+12, not None"),
        ("mooncake", '{"timestamp": 1, "input_len', "not JSON, or cut off"),
        ("mooncake", "[1, 2]", "must be a JSON object, not list"),
        ("mooncake", "[" * 100_000, "not JSON, or cut off"),
        ("mooncake", "\udcff", "not UTF-8 (byte 0xed at 1)"),
        ("azure", "yesterday,1,2", "TIMESTAMP must be a time like"),
        ("azure", "0001-01-01 00:00:00+23:59,1,2", "TIMESTAMP must be a time like"),
        ("azure", "2023-11-16 18:15:46,1", "2 fields, not 3; cut off?"),
        ("azure", "2023-11-16 18:15:46,-1,2", "ContextTokens must be a number from 0"),
        ("azure", "2023-11-16 18:15:46,1,inf", "GeneratedTokens must be a number from 0"),
        ("azure", "2023-11-16 18:15:46,1," + "9" * 200_000, "GeneratedTokens must be a number"),
        ("verl", changed(VERL, output=None), "output must be a text, not None"),
        ("verl", changed(VERL, input=[1]), "input must be a text, not list"),
        ("verl", changed(VERL, step=-3), "step must be a number from 0"),
        ("swe-agent", {"trajectory": []}, "trajectory must be a list with at least one step"),
        ("swe-agent", {"trajectory": [3]}, "trajectory[0] must be a JSON object, not 3"),
        ("swe-agent", {"trajectory": [changed(STEP, execution_time=-0.1)]}, "trajectory[0]: execution_time must be a number from 0"),
        ("swe-agent", {"trajectory": [changed(STEP, action=7)]}, "trajectory[0]: action must be a text, not 7"),
        ("swe-agent", {"trajectory": [changed(STEP, action=" ")]}, "trajectory has no step with an action"),
        ("swe-agent", {"trajectory": [STEP], "info": {"model_stats": {"tokens_received": "x"}}}, "info.model_stats: tokens_received must be a number"),
        ("journal", {"seq": 1, "at": -1, "events": 3}, "not a journal entry"),
    ],
)  # fmt: skip
def test_a_bad_line_is_named_with_its_field_or_skipped(
    tmp_path: Path, name: str, row: Any, said: str
) -> None:
    good = {"mooncake": MOONCAKE, "azure": AZURE.strip(), "verl": VERL, "journal": "",
            "swe-agent": {"trajectory": [STEP]}}[name]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    text = row if isinstance(row, str) else json.dumps(row)
    first = good if isinstance(good, str) else json.dumps(good)
    path.write_text(f"{first}\n{text}\n2023-11-16 18:15:46,5,5\n", errors="surrogatepass")

    with pytest.raises(TraceError) as caught:
        read_sources([path], format_name=name)

    assert str(caught.value).startswith(f"{path}:2: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    if name != "journal":
        skipped = read_sources([path], format_name=name, skip_bad=True)
        assert skipped.skipped == (1 if name == "azure" else 2)
        assert len(skipped.recordings or skipped.requests) == 1
        assert said in skipped.notes()[-1]


def test_a_trace_of_bad_lines_alone_is_an_error(tmp_path: Path) -> None:
    path = a_file(tmp_path, "m.jsonl", changed(MOONCAKE, timestamp=-1))

    with pytest.raises(TraceError, match="holds no request of format mooncake; 1 bad lines, as"):
        read_sources([path], skip_bad=True)


def test_a_line_that_is_too_long_is_bad_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_LINE_BYTES", 1000)
    path = a_file(tmp_path, "m.jsonl", MOONCAKE, changed(MOONCAKE, hash_ids=[7] * 9000), MOONCAKE)

    with pytest.raises(TraceError, match=r"m\.jsonl:2: the line has more than"):
        read_sources([path])
    trace = read_sources([path], skip_bad=True)
    assert (trace.skipped, len(trace.requests)) == (1, 2)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"x"), "is compressed; give what gunzip makes of it"),
        (json.dumps(MOONCAKE).encode("utf-16"), "is UTF-16, not UTF-8; give what iconv makes"),
        (b"a,b\n1,2\n", "unknown format; known are tangram (steps); requests (t_ms,"),
        (b"", "unknown format"),
        (b"\x00" * 5000, "unknown format"),
    ],
    ids=["gzip", "UTF-16", "another CSV", "empty", "zeros"],
)
def test_a_file_of_no_known_format_is_refused_with_the_cure(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)

    with pytest.raises(TraceError) as caught:
        read_sources([path])

    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_files_that_are_too_large_or_no_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST_FILE_BYTES", 10)
    with pytest.raises(TraceError, match="at most 0; give a part"):
        read_sources([a_file(tmp_path, "m.jsonl", MOONCAKE)])
    with pytest.raises(TraceError, match="is no regular file"):
        read_sources([Path("/dev/null")])
    with pytest.raises(TraceError, match="missing: No such file"):
        read_sources([tmp_path / "missing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no file that ends in"):
        read_sources([tmp_path / "empty"])


def test_more_requests_than_memory_has_room_for_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "MOST_REQUESTS", 2)
    read_sources([a_file(tmp_path, "2.jsonl", MOONCAKE, MOONCAKE)])

    with pytest.raises(TraceError, match=r"3\.jsonl: there are over 2 requests; give a part"):
        read_sources([a_file(tmp_path, "3.jsonl", MOONCAKE, MOONCAKE, MOONCAKE)])


def test_sources_of_two_formats_are_refused(tmp_path: Path) -> None:
    first = a_file(tmp_path, "m.jsonl", MOONCAKE)
    second = a_file(tmp_path, "v.jsonl", VERL)

    with pytest.raises(TraceError, match=r"v\.jsonl: is verl, but .*m\.jsonl is mooncake"):
        read_sources([first, second])


def test_requests_of_several_files_are_merged_by_time(tmp_path: Path) -> None:
    early = a_file(tmp_path, "1.csv", AZURE.strip(), "2024-05-10 00:00:00,1,1")
    late = a_file(tmp_path, "2.csv", AZURE.strip(), "2024-05-10 00:00:09,2,2")

    trace = read_sources([late, early])

    assert [(each.at_seconds, each.input_tokens) for each in trace.requests] == [(0, 1), (9, 2)]
    assert "requests of 2 files are merged by time" in trace.assumed


def test_a_simulation_refuses_the_other_kind_and_a_single_request(tmp_path: Path) -> None:
    requests = a_file(tmp_path, "m.jsonl", MOONCAKE, MOONCAKE)
    with pytest.raises(TraceError, match=r"holds LLM requests, not recorded trajectories"):
        recordings_of(requests)
    with pytest.raises(TraceError, match=r"holds recorded trajectories, not LLM requests"):
        requests_of(a_trajectory(tmp_path, STEP))
    with pytest.raises(TraceError, match="holds one request"):
        requests_of(a_file(tmp_path, "one.jsonl", MOONCAKE))


def test_every_format_is_recognised_by_what_it_has() -> None:
    names = {each.has: name for name, each in FORMATS.items()}

    assert len(names) == len(FORMATS)
    assert msgspec.json.encode([each.says() for each in FORMATS.values()]).isascii()


@settings(max_examples=30)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**6)
        ),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_mooncake_keeps_every_request_and_its_gaps(
    rows: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = a_file(
        tmp_path_factory.getbasetemp(), "drawn.jsonl",
        *(
            {"timestamp": at, "input_length": given, "output_length": made, "hash_ids": []}
            for at, given, made in rows
        ),
    )  # fmt: skip

    requests = read_sources([path]).requests

    first = min(at for at, _, _ in rows)
    assert sorted(
        (round(each.at_seconds * 1000), each.input_tokens, each.output_tokens) for each in requests
    ) == sorted((at - first, given, made) for at, given, made in rows)
    assert [each.at_seconds for each in requests] == sorted(each.at_seconds for each in requests)


@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused_in_one_line(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)

    said = [_refusal(path, name) for name in (None, *FORMATS)]

    assert all("\n" not in each and len(each) < 2000 for each in said)


def _refusal(path: Path, name: str | None) -> str:
    try:
        read_sources([path], format_name=name, skip_bad=True)
    except TraceError as error:
        return str(error)
    return ""
