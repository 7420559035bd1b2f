"""`tangram trace` converts, describes and samples; `tangram sim` takes traces of other systems as they are."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.evaluation.inputs import read_inputs
from domain.errors import InvalidRequest
from simulator.cli import verbs as simulator_verbs
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.foreign.reading import read_sources
from simulator.llm_trace import LlmRequest, make_requests, parse_requests
from simulator.overheads import NONE
from simulator.trace_cli import verbs
from simulator.trace_files import (
    RUN,
    recording_lines,
    request_lines,
    sampled_recordings,
    sampled_requests,
)
from simulator.trace_summary import acting_at_once, summarise
from simulator.traces import make_recordings, parse_recordings
from simulator.workloads.program import Think
from simulator.workloads.recorded import JournalWriter
from tangram_client.traces.recording import RecordedStep, Recording
from tests.unit.simulator.scripts import act, script

MOONCAKE = '{"timestamp": %d, "input_length": 600, "output_length": 30, "hash_ids": [1, 2]}'
TRAJECTORY = {
    "trajectory": [
        {"action": "ls", "observation": "setup.py", "response": "x" * 240, "execution_time": 0.5},
        {"action": "pytest", "observation": "ok", "response": "", "execution_time": 4.0},
    ],
    "info": {"exit_status": "submitted"},
}


def trace(*arguments: object) -> Result:
    return CliRunner().invoke(verbs, [str(each) for each in arguments])


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("".join(f"{MOONCAKE % at}\n" for at in (0, 0, 3000, 30_000)))
    return path


@pytest.fixture
def trajectory(tmp_path: Path) -> Path:
    path = tmp_path / "a__b-1.traj"
    path.write_text(json.dumps(TRAJECTORY))
    return path


def test_requests_are_converted_to_our_csv(mooncake: Path, tmp_path: Path) -> None:
    to = tmp_path / "ours.csv"

    done = trace("convert", mooncake, "--to", to)

    assert done.exit_code == 0
    assert done.stdout == f"{to}: 4 LLM requests from format mooncake\n"
    assert "hash_ids are not read" in done.stderr
    assert to.read_text().splitlines()[:2] == ["t_ms,input_tokens,output_tokens", "0,600,30"]
    assert parse_requests(to.read_bytes(), "ours") == list(read_sources([mooncake]).requests)


def test_trajectories_are_converted_to_our_lines(trajectory: Path, tmp_path: Path) -> None:
    to = tmp_path / "ours.jsonl"

    assert trace("convert", trajectory, "--to", to, "--tokens-per-second", 30).exit_code == 0

    (recording,) = parse_recordings(to.read_bytes(), "ours")
    assert recording.id == "a__b-1"
    assert [step.duration_seconds for step in recording.steps] == [0.5, 4.0]
    assert [step.think_seconds for step in recording.steps] == [2.0, 0.0]
    assert [step["start_s"] for step in json.loads(to.read_text())["steps"]] == [2.0, 2.5]


def test_a_description_has_counts_spans_and_families(trajectory: Path, mooncake: Path) -> None:
    shown, figures = trace("describe", trajectory), trace("describe", mooncake, "--json")

    assert "swe-agent" in shown.stdout
    assert "test" in shown.stdout
    assert "think times are modelled" in shown.stderr
    found = json.loads(figures.stdout)
    assert (found["kind"], found["format"]) == ("requests", "mooncake")
    assert found["requests"]["span_seconds"] == 30.0
    assert found["requests"]["per_second"] == 0.1
    assert found["requests"]["tick_seconds"] == 3.0
    # Of four requests in 30 s, three come in the first 10 s; 1 s is shorter than a tick.
    assert found["requests"]["busiest_window"] == {"10": 3 / (4 / 3)}


def test_bad_lines_are_an_error_or_counted(mooncake: Path, tmp_path: Path) -> None:
    with mooncake.open("a") as file:
        file.write(MOONCAKE % -5 + "\n")

    refused = trace("describe", mooncake)
    counted = trace("describe", mooncake, "--skip-bad")

    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"tangram trace: {mooncake}:5: timestamp must be a number")
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""
    assert counted.exit_code == 0
    assert "bad lines skipped" in counted.stdout
    assert f"1 bad line was skipped, as {mooncake}:5" in counted.stderr


def test_a_named_format_is_used(mooncake: Path) -> None:
    done = trace("describe", mooncake, "--format", "verl")

    assert done.exit_code == 2
    assert "mooncake.jsonl:1: input must be a text" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("convert", "{source}", "--to", "{source}"), "is the source; give another file"),
        (("convert", "{source}", "--to", "{folder}/no/file"), "No such file"),
        (("sample", "{source}", "--count", "9", "--to", "{folder}/s"), "--count lies between 1"),
        (("sample", "{source}", "--count", "0", "--to", "{folder}/s"), "--count lies between 1"),
    ],
    ids=["onto itself", "no folder", "too many", "none"],
)
def test_a_file_that_cannot_be_made_is_one_line(
    mooncake: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    before = mooncake.read_bytes()

    done = trace(*(each.format(source=mooncake, folder=tmp_path) for each in arguments))

    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]
    assert mooncake.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mooncake.jsonl"]


def test_a_sample_has_whole_trajectories_of_all_lengths(tmp_path: Path) -> None:
    recordings = make_recordings(60, 0)
    source, to = tmp_path / "all.jsonl", tmp_path / "few.jsonl"
    source.write_text("".join(recording_lines(recordings)))

    assert trace("sample", source, "--count", 6, "--seed", 4, "--to", to).exit_code == 0

    chosen = parse_recordings(to.read_bytes(), "few")
    ranks = sorted(range(60), key=lambda at: summarised_seconds(recordings[at]))
    places = [[each.id for each in recordings].index(each.id) for each in chosen]
    assert places == sorted(places)
    assert sorted(ranks.index(place) // 10 for place in places) == [0, 1, 2, 3, 4, 5]


def summarised_seconds(recording: Recording) -> float:
    return sum(step.think_seconds + step.duration_seconds for step in recording.steps)


@settings(max_examples=40)
@given(total=st.integers(1, 400), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_sample_of_requests_has_recorded_gaps(total: int, share: float, seed: int) -> None:
    # Squares: every gap is another one, so each says where it is from.
    requests = [LlmRequest(float(at * at), at, at) for at in range(total)]
    count = max(1, round(total * share))

    chosen = sampled_requests(requests, count, seed)

    places = [each.input_tokens for each in chosen]
    assert len(set(places)) == count
    assert places == sorted(places)
    assert chosen[0].at_seconds == 0.0
    for before, after in pairwise(chosen):
        assert after.at_seconds - before.at_seconds == 2 * after.input_tokens - 1
    runs = 1 + sum(after > before + 1 for before, after in pairwise(places))
    assert runs <= -(-count // RUN)
    assert chosen == sampled_requests(requests, count, seed)


@settings(max_examples=20)
@given(total=st.integers(1, 40), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_sample_of_trajectories_has_each_at_most_once(
    total: int, share: float, seed: int
) -> None:
    recordings = [
        Recording(f"t{at}", (RecordedStep(0.0, at % 7, 0.0, ""),), 0) for at in range(total)
    ]
    count = max(1, round(total * share))

    chosen = sampled_recordings(recordings, count, seed)

    assert len({each.id for each in chosen}) == len(chosen) == count
    assert set(chosen) <= set(recordings)


_seconds = st.floats(0, 1e6, allow_nan=False)
_steps = st.builds(
    RecordedStep, _seconds, _seconds, st.floats(0, 64), st.text(max_size=8), st.integers(0, 10**9)
)


@settings(max_examples=30)
@given(
    recordings=st.lists(
        st.builds(
            Recording,
            st.text(max_size=9),
            st.lists(_steps, min_size=1, max_size=3).map(tuple),
            st.integers(0, 2**40),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_written_recordings_are_read_as_they_were(recordings: list[Recording]) -> None:
    again = parse_recordings("".join(recording_lines(recordings)).encode(), "x")

    assert [(each.id, each.memory_bytes) for each in again] == [
        (each.id, each.memory_bytes) for each in recordings
    ]
    for before, after in zip(recordings, again, strict=True):
        for one, other in zip(before.steps, after.steps, strict=True):
            assert (one.family, one.output_characters) == (other.family, other.output_characters)
            assert other.think_seconds == pytest.approx(one.think_seconds, abs=1e-6)
            assert other.duration_seconds == pytest.approx(one.duration_seconds, abs=1e-6)
            assert other.cpu_cores == pytest.approx(one.cpu_cores, abs=1e-6)


def test_written_requests_are_read_as_they_were() -> None:
    requests = make_requests(50, 1)

    again = parse_requests("".join(request_lines(requests)).encode(), "x")

    assert [each.at_seconds for each in again] == pytest.approx(
        [each.at_seconds for each in requests], abs=1e-7
    )
    assert [each.input_tokens for each in again] == [each.input_tokens for each in requests]


def test_tools_that_act_at_once_are_counted_over_time() -> None:
    def recording(*steps: tuple[float, float]) -> Recording:
        return Recording("t", tuple(RecordedStep(*each, 0.0, "") for each in steps), 0)

    # The first acts in [2, 6) and [6, 8), the second in [4, 10).
    found = acting_at_once([recording((2, 4), (0, 2)), recording((4, 6))])

    assert (found.mean, found.p99, found.most) == (1.2, 2, 2)
    assert acting_at_once([recording((0, 0))]).most == 0


def test_a_journal_becomes_recordings(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    first, second = (act(name, 2.0, trajectory="s0-t0") for name in "ab")
    reward = act("d", 60.0, trajectory="s0-t0", family="reward")
    other = act("c", 1.0, cost={"api:search": 1}, trajectory="s0-t1")
    with journal.open("wb") as file:
        played = script([Think(3.0), first, Think(4.0), second, reward], [other])
        cluster = Cluster(1, 4, GIB, apis={"api:search": 1})
        run(Scene(played, cluster, NONE), "minimum", watch=JournalWriter(file))

    found = read_sources([journal])

    assert found.format == "journal"
    (recording,) = found.recordings
    assert recording.id == "s0-t0"
    assert [step.think_seconds for step in recording.steps] == pytest.approx([0.0, 4.0], abs=0.01)
    assert [step.duration_seconds for step in recording.steps] == [2.0, 2.0]
    assert any(said.startswith("1 actions did not run") for said in found.assumed)
    assert any(said.startswith("1 rewards are left out") for said in found.assumed)


def test_a_foreign_trajectory_is_simulated_as_it_is(trajectory: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours.jsonl"
    trace("convert", trajectory, "--to", ours)
    small = ("--batch", "2", "--nodes", "1", "--cores", "2", "--json")

    foreign = CliRunner().invoke(simulator_verbs, ["run", str(trajectory), *small])
    own = CliRunner().invoke(simulator_verbs, ["run", str(ours), *small])

    assert foreign.exit_code == own.exit_code == 0
    assert foreign.stdout == own.stdout
    assert "tangram sim: assumed of the trace: all think times are modelled" in foreign.stderr
    assert own.stderr == ""


def test_a_report_takes_either_kind_and_names_what_was_assumed(
    trajectory: Path, mooncake: Path
) -> None:
    inputs, assumed = read_inputs(mooncake, None)
    both, _ = read_inputs(trajectory, mooncake)

    assert len(inputs.requests) == len(both.requests) == 4
    assert len(inputs.recordings) == 116
    assert len(both.recordings) == 1
    assert inputs.source.startswith("trajectories made up, LLM requests mooncake.jsonl (format")
    assert "hash_ids are not read" in inputs.source
    assert assumed == ("hash_ids are not read: simulations share no prefixes of prompts",)
    with pytest.raises(InvalidRequest, match=r"holds LLM requests, as .* does; give one of each"):
        read_inputs(mooncake, mooncake)


def test_figures_of_one_request_and_of_one_instant_are_numbers(mooncake: Path) -> None:
    mooncake.write_text(f"{MOONCAKE % 7}\n" * 2)

    figures = summarise(read_sources([mooncake])).requests

    assert figures is not None
    assert (figures.span_seconds, figures.per_second, figures.gap_variation) == (0.0, 0.0, 0.0)
    assert figures.busiest_window == {}
