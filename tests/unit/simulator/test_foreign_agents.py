"""Trajectories of other agents become recordings; what their files lack is modelled and said to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.foreign.modelled import Modelled, family_of
from simulator.foreign.reading import read_sources
from tangram_client.traces.recording import TraceError
from tests.unit.simulator.foreign_samples import (
    CALL,
    INFO,
    STEP,
    VERL,
    a_file,
    a_trajectory,
    changed,
)


def test_a_trajectory_of_swe_agent_keeps_its_durations(tmp_path: Path) -> None:
    trace = read_sources([a_trajectory(tmp_path, STEP, changed(STEP, action="ls -F\n"))])
    (recording,) = trace.recordings

    assert (trace.format, recording.id) == ("swe-agent", "a__b-1")
    assert [step.duration_seconds for step in recording.steps] == [2.5, 2.5]
    assert [step.family for step in recording.steps] == ["test", "search"]
    # 120 tokens for two responses of the same length, at 60 a second.
    assert [step.think_seconds for step in recording.steps] == [1.0, 1.0]
    assert recording.steps[0].output_characters == len("1 passed")
    assert "think times are modelled" in trace.assumed[0]
    assert "durations" not in " ".join(trace.assumed)


def test_durations_that_swe_agent_did_not_write_are_modelled_and_said_to_be(tmp_path: Path) -> None:
    path = a_trajectory(tmp_path, changed(STEP, execution_time=...), STEP)

    first, second = read_sources([path]), read_sources([path])

    assert first == second
    assert any("1 of 2 durations of tool calls are modelled" in said for said in first.assumed)
    assert first.recordings[0].steps[0].duration_seconds > 0
    other = read_sources([path], modelled=Modelled(seed=1)).recordings[0]
    assert other.steps[0].duration_seconds != first.recordings[0].steps[0].duration_seconds
    assert other.steps[1].duration_seconds == 2.5


def test_an_answer_without_a_call_is_thinking_before_the_next(tmp_path: Path) -> None:
    path = a_trajectory(tmp_path, changed(STEP, action=""), STEP)

    (recording,) = read_sources([path]).recordings

    assert [step.think_seconds for step in recording.steps] == [2.0]


def test_one_trajectory_of_swe_agent_a_line_is_read(tmp_path: Path) -> None:
    row = {"instance_id": "a__b-2", "trajectory": [changed(STEP, thought=..., response=...)]}

    trace = read_sources([a_file(tmp_path, "all.jsonl", row)])

    assert (trace.format, trace.recordings[0].id) == ("swe-agent", "a__b-2")
    assert trace.recordings[0].steps[0].think_seconds == 0.0


def an_answer(at: float | None, *commands: str, tokens: int | None = 60) -> dict[str, Any]:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens, "prompt_tokens": 9}}
    actions = [{"command": each, "tool_call_id": "call_1"} for each in commands]
    extra = {"actions": actions, "response": usage, "cost": 0.1, "timestamp": at}
    return {"role": "assistant", "content": "Look.", "tool_calls": [], "extra": extra}


def an_output(at: float | None, text: str = "ok") -> dict[str, Any]:
    return {
        "role": "tool",
        "content": f"<output>{text}",
        "extra": {"raw_output": text, "timestamp": at},
    }


def a_mini_trajectory(folder: Path, *messages: dict[str, Any], version: str = "1.1") -> Path:
    path = folder / "a__b-3.traj.json"
    task = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Fix it."}]
    body = {
        "info": INFO,
        "messages": [*task, *messages],
        "trajectory_format": f"mini-swe-agent-{version}",
    }
    path.write_text(json.dumps(body, indent=2))
    return path


def test_times_of_mini_swe_agent_are_differences(tmp_path: Path) -> None:
    path = a_mini_trajectory(
        tmp_path,
        an_answer(1000.0, "pytest -q"), an_output(1004.0),
        an_answer(1006.5, "ls", "cat a.py"), an_output(1007.5, "a"), an_output(1007.5, "bbb"),
        an_answer(1010.0), an_output(1010.1, "No tool calls found"),
        an_answer(1012.5, "echo done"), {"role": "exit", "content": "", "extra": {}},
    )  # fmt: skip

    trace = read_sources([path])
    (recording,) = trace.recordings
    last = recording.steps[-1]

    assert (trace.format, recording.id) == ("mini-swe-agent", "a__b-3")
    assert [step.family for step in recording.steps] == ["test", "search", "file", "file"]
    # Nothing says when the first answer began: 60 tokens at 60 a second.
    assert [step.think_seconds for step in recording.steps] == [1.0, 2.5, 0.0, 5.0]
    assert [step.duration_seconds for step in recording.steps[:3]] == [4.0, 0.5, 0.5]
    assert [step.output_characters for step in recording.steps] == [2, 1, 3, 0]
    assert 0 < last.duration_seconds < 10
    assert trace.assumed[:2] == (
        "1 of 4 think times are modelled: tokens of the answer at 60 a second",
        "1 of 4 durations of tool calls are modelled by the family of the command",
    )
    assert "2 commands shared an answer: its time is divided evenly among them" in trace.assumed


def test_mini_swe_agent_without_times_is_modelled(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "x" * 220 + "\n```bash\nls -la\n```\n"}
    observed = {"role": "user", "content": "a.py"}

    trace = read_sources([a_mini_trajectory(tmp_path, answer, observed, answer, version="1")])

    (recording,) = trace.recordings
    assert [step.family for step in recording.steps] == ["search", "search"]
    assert [step.think_seconds for step in recording.steps] == [1.0, 1.0]
    assert [step.output_characters for step in recording.steps] == [4, 0]
    assert trace.assumed[0].startswith("all think times are modelled")
    assert "all trajectories have no counts of tokens" in trace.assumed[2]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((an_answer(5.0, "ls"), an_output(4.0)), "timestamp of answer 0 is before what it follows, by 1 s"),
        ((an_answer(float("nan"), "ls"),), "messages[2].extra: timestamp must be a number"),
        ((an_answer(1.0, "ls", tokens=-1),), "messages[2]: completion_tokens must be a number"),
        ((changed(an_answer(1.0), extra={"actions": [3]}),), "messages[2].extra.actions: command must be a text"),
        (([3],), "messages[2] must be a JSON object, not list"),
        ((an_answer(1.0),), "messages have no command"),
    ],
    ids=["backwards", "NaN", "tokens", "action", "message", "no command"],
)  # fmt: skip
def test_a_bad_trajectory_of_mini_swe_agent_is_named(
    tmp_path: Path, messages: Any, said: str
) -> None:
    path = a_mini_trajectory(tmp_path, *messages)

    with pytest.raises(TraceError) as caught:
        read_sources([path])

    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_a_folder_of_trajectories_is_one_trace(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    a_trajectory(tmp_path / "run", STEP, name="b-10.traj")
    a_trajectory(tmp_path / "run", STEP, name="b-9.traj")
    a_file(tmp_path, "run.log", "not a trace")

    assert [each.id for each in read_sources([tmp_path]).recordings] == ["b-9", "b-10"]


def test_samples_of_verl_with_tool_calls_are_recordings(tmp_path: Path) -> None:
    output = (
        f"{'x' * 240}{CALL}\nuser\n<tool_response>\nfound\n</tool_response>\nassistant\nyes{CALL}"
    )
    path = a_file(tmp_path, "12.jsonl", changed(VERL, output=output), VERL)

    trace = read_sources([path])
    (recording,) = trace.recordings

    assert (trace.format, recording.id) == ("verl", "step-12-00000")
    assert [step.family for step in recording.steps] == ["search", "search"]
    assert [step.output_characters for step in recording.steps] == [5, 0]
    call = len(CALL) - len("<tool_call></tool_call>")
    assert recording.steps[0].think_seconds == (240 + len("<tool_call>") + call) / 4 / 60
    assert "1 of 2 samples call no tool and are left out" in trace.assumed
    assert "all durations of tool calls are modelled by the family of the command" in trace.assumed


def test_calls_of_one_answer_come_before_their_responses(tmp_path: Path) -> None:
    responses = f"<tool_response>{'y' * 9_000}</tool_response>\n<tool_response>zz</tool_response>"
    output = f"{CALL}\n{CALL}\nuser\n{responses}\nassistant\n{CALL}"

    (recording,) = read_sources(
        [a_file(tmp_path, "1.jsonl", changed(VERL, output=output))]
    ).recordings

    assert [step.output_characters for step in recording.steps] == [9_000, 2, 0]
    # The 9,000 characters of the response are not thinking.
    assert recording.steps[2].think_seconds < 2


def test_marks_that_never_end_are_read_in_linear_time(tmp_path: Path) -> None:
    output = CALL + "<tool_response>" * 20_000 + "<tool_call>" * 20_000
    path = a_file(tmp_path, "1.jsonl", changed(VERL, output=output))

    assert len(read_sources([path]).recordings[0].steps) == 1


@pytest.mark.parametrize(
    "output",
    ["<tool_call>{}", "no tag", "</tool_call><tool_call>"],
    ids=["cut off", "none", "reversed"],
)
def test_samples_of_verl_without_a_call_are_requests(tmp_path: Path, output: str) -> None:
    a_file(tmp_path, "10.jsonl", changed(VERL, step=10, input="x" * 400, output=output))
    a_file(tmp_path, "9.jsonl", changed(VERL, step=9, input="y" * 40))

    trace = read_sources([tmp_path])

    assert [each.input_tokens for each in trace.requests] == [10, 100]
    assert trace.requests[0].at_seconds == 0.0 < trace.requests[1].at_seconds
    assert "there are no times" in trace.assumed[0]


@pytest.mark.parametrize(
    "call", ["no JSON", "[]", '{"name": 7}', '{"arguments": "ls"}', "[" * 9_000]
)
def test_a_call_of_verl_that_is_not_readable_is_still_a_call(tmp_path: Path, call: str) -> None:
    path = a_file(tmp_path, "1.jsonl", changed(VERL, output=f"<tool_call>{call}</tool_call>"))

    assert read_sources([path]).recordings[0].steps[0].family == "python"


@pytest.mark.parametrize(
    ("command", "family"),
    [
        ("cd /testbed && python -m pytest -x tests/", "test"),
        ("PYTHONPATH=. timeout 60 ./tests/runtests.py admin", "test"),
        ("python tests/run_tests.py", "test"),
        ("make test", "test"),
        ("pip install -e .", "install"),
        ("python3 -m pip install x", "install"),
        ("/usr/bin/grep -rn foo src", "search"),
        ("str_replace_editor view /testbed/setup.py", "file"),
        ("edit 12:14", "file"),
        ("python reproduce.py", "python"),
        ("./configure && make", "python"),
        ("", "python"),
    ],
)
def test_families_follow_the_first_word_of_a_command(command: str, family: str) -> None:
    assert family_of(command) == family


def test_a_broken_trajectory_is_named_with_its_line(tmp_path: Path) -> None:
    path = a_trajectory(tmp_path, STEP)
    path.write_text(path.read_text()[:-40])

    with pytest.raises(TraceError, match=r"a__b-1\.traj:\d+: not JSON, or cut off"):
        read_sources([path])
