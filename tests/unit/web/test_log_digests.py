"""Digests of logs: what a page shows of any log is bounded, and says what it leaves out."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from rollout.ports import Record
from scheduler.runtime.rollouts.result_documents import last_generation
from tangram_web.rollouts.log_digest import (
    ASKED,
    CALLS_OF_TURN,
    MESSAGE,
    OUTPUT,
    PREVIEW_BYTES,
    TURNS,
    LogDigest,
    excerpt,
)


def digest_of(*records: Record, first: int = 0) -> LogDigest:
    digest = LogDigest(first)
    for record in records:
        digest.add(record)
    return digest


def clock(stage: str = "run", attempt: int = 1, queued: float = 0.5, active: float = 2.0) -> Any:
    return [stage, attempt, queued, active, "act_lease"]


def turn(number: int = 0, text: object = "hi", **fields: Any) -> Record:
    logprobs = fields.pop("logprobs", None)
    arrays = {} if logprobs is None else {"logprobs": array("f", logprobs).tobytes()}
    header = {
        "message": {"content": text, **fields.pop("message", {})}, "weights_version": 3,
        "backend": "b1", "prompt_tokens": 10, "response_tokens": 4,
        "extra": {"finish": "stop", "follows": number - 1 if number else None}, "clock": clock(),
    }  # fmt: skip
    return Record("turn", {**header, **fields}, arrays)


def call(name: str = "0", stage: str = "run", **members: Any) -> Record:
    given = {"kind": "exec", "exec": {"command": ["pytest", "-q"]}, **members}
    key = f"rol_1/0/{stage}/{name}"
    header = {"key": key, "trajectory": "rol_1-run", "members": given, "clock": clock(stage)}
    return Record("call", header)


def observation(name: str = "0", stage: str = "run", **result: Any) -> Record:
    end = {
        "id": "act_1", "outcome": "completed", "result": {"exit_code": 0, **result}, "reward": None,
        "detail": "", "queue_seconds": 0.1, "execution_seconds": 1.5,
    }  # fmt: skip
    return Record("observation", {"key": f"rol_1/0/{stage}/{name}", "end": end})


def test_a_turn_has_its_tokens_its_version_and_its_calls_with_their_actions() -> None:
    asked = {"tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "ls"}'}}]}
    digest = digest_of(
        turn(0, message=asked, logprobs=[-0.5, -1.5, -0.25, -0.75]),
        call(),
        observation(stdout="two files"),
        turn(1),
    )
    first, second = digest.window

    assert (first.context, first.sampled, first.version, first.backend) == (10, 4, 3, "b1")
    assert (first.follows, second.follows, first.finish) == (None, 0, "stop")
    assert (first.mean_logprob, first.least_logprob) == (-0.75, -1.5)
    assert first.shades == [-0.5, -1.5, -0.25, -0.75]
    assert second.mean_logprob is None
    [tool], [action] = first.tools, first.calls
    assert (tool.name, tool.arguments.text) == ("bash", '{"command": "ls"}')
    assert (action.action, action.outcome, action.exit_code) == ("act_1", "completed", 0)
    assert (action.does.text, action.output.text) == ("pytest -q", "two files")
    assert (action.execution_seconds, second.calls) == (1.5, [])


def test_an_observation_of_ten_megabytes_is_cut_and_says_by_how_much() -> None:
    digest = digest_of(turn(0, "m" * 10_000_000), call(), observation(stdout="x" * 10_000_000))
    [shown] = digest.window

    assert len(shown.message.text) + len(shown.message.end) <= MESSAGE
    assert shown.message.left_out == 10_000_000 - MESSAGE
    output = shown.calls[0].output
    assert len(output.text) + len(output.end) <= OUTPUT
    assert output.left_out == 10_000_000 - OUTPUT


def test_texts_of_turns_outside_of_the_window_are_not_kept() -> None:
    log = [
        part
        for n in range(50)
        for part in (turn(n, f"turn {n}"), call(str(n)), observation(str(n)))
    ]
    digest = digest_of(*log, first=TURNS)

    assert len(digest.turns) == 50
    assert [each.number for each in digest.window] == list(range(TURNS, 2 * TURNS))
    assert [len(each.calls) for each in digest.window] == [1] * TURNS
    assert digest.pending == {}


def test_more_calls_than_a_page_shows_are_counted() -> None:
    calls = [call(str(number)) for number in range(CALLS_OF_TURN + 5)]
    [shown] = digest_of(turn(), *calls).window

    assert (len(shown.calls), shown.more_calls) == (CALLS_OF_TURN, 5)


def test_calls_of_init_and_eval_are_apart_from_turns() -> None:
    digest = digest_of(
        call(stage="init"), observation(stage="init"), turn(), call("t", "eval"),
        observation("t", "eval", stdout="2 passed"),
    )  # fmt: skip

    assert [each.action for each in digest.calls["init"]] == ["act_1"]
    assert digest.window[0].calls == []
    assert digest.calls["eval"][0].output.text == "2 passed"


def test_a_lost_environment_takes_its_turns_and_is_named() -> None:
    digest = digest_of(
        turn(), Record("artefact", {"name": "a"}), Record("lost", {"reason": "n1"}), turn()
    )

    assert [tuple(each) for each in digest.lost] == [("n1", 1)]
    assert (len(digest.turns), digest.artefacts, digest.generation) == (1, {}, 1)


def test_an_evaluation_that_was_lost_takes_what_eval_stored_and_leaves_what_run_stored() -> None:
    stored = [
        turn(),
        Record("artefact", {"name": "patch", "clock": clock("run")}),
        Record("artefact", {"name": "tests", "clock": clock("eval")}, {"content": b"{}"}),
        call("t", "eval"),
        Record("eval_again", {"reason": "unknown", "prepared": True, "clock": clock("eval")}),
    ]
    digest = digest_of(*stored)

    assert (digest.evaluations, digest.lost, len(digest.turns)) == (["unknown"], [], 1)
    assert (list(digest.artefacts), digest.tests) == (["patch"], None)
    assert (digest.calls["eval"], digest.pending) == ([], {})
    assert [record.kind for record in last_generation(stored)] == ["turn", "artefact"]


def test_times_are_those_of_the_last_record_of_each_stage() -> None:
    digest = digest_of(
        Record("prepared", {"value": {"a": 1}, "stage": "init", "clock": clock("init", 1, 0.1, 1.0)}),
        turn(clock=clock(attempt=1, active=1.0)), turn(clock=clock(attempt=2, active=5.0)),
    )  # fmt: skip

    assert [(t.stage.value, t.queued_seconds, t.active_seconds, t.attempts) for t in digest.times()] == [
        ("init", 0.1, 1.0, 1), ("run", 0.5, 5.0, 2)
    ]  # fmt: skip
    assert digest.attempts() == 2
    assert digest.values["init"].text == '{"a":1}'


def test_a_digest_stays_small_whatever_request_and_handler_store() -> None:
    """A web process keeps some of them, and encodes what they have at each refresh of a page."""
    long = "x" * 500_000
    digest = digest_of(
        Record("request", {"instance": {"id": "i", "files": long}, "options": {"k": [long]}}),
        Record("lost", {"reason": long}),
        *(
            Record("artefact", {"name": f"a{n}", "facts": {"said": long}}, {"content": b"\0"})
            for n in range(10)
        ),
        call(stage="eval"),
        Record("observation", {"key": "rol_1/0/eval/0", "end": {"detail": long}}),
        Record(
            "result",
            {
                "detail": {f"d{n}": long for n in range(60)},
                "error": {"type": "ValueError", "stage": "eval", "traceback": long, "said": long},
            },
        ),
    )

    assert sum(len(repr(value)) for value in vars(digest).values()) < 400_000
    assert digest.request["instance"].text.startswith('{"id":"i"')
    assert digest.request["instance"].left_out > 400_000
    assert (len(digest.detail), len(digest.error["traceback"])) == (50, 20_000)


def test_the_verdict_of_many_tests_is_read_from_the_whole_artefact() -> None:
    tests = {f"tests/test_it.py::test_{n:050}": "failed" for n in range(5000)}
    said = json.dumps({"count": 6000, "passed": 1000, "tests": tests}).encode()
    digest = digest_of(Record("artefact", {"name": "tests"}, {"content": said}))

    assert len(said) > PREVIEW_BYTES
    assert digest.tests is not None
    assert (digest.tests.total, digest.tests.passed, digest.tests.more) == (6000, 1000, 4900)
    assert len(repr(digest.artefacts)) < 20_000


def test_a_patch_has_a_preview_and_other_files_have_none() -> None:
    patch = b"diff --git a/x b/x\n" + b"+y\n" * 200_000
    digest = digest_of(
        Record("artefact", {"name": "change.patch", "facts": {"files": 1}}, {"content": patch}),
        Record("artefact", {"name": "model.bin"}, {"content": b"\0" * 10}),
    )

    shown = digest.artefacts["change.patch"]
    assert shown.preview is not None
    assert (shown.size_bytes, len(shown.preview)) == (len(patch), PREVIEW_BYTES)
    assert digest.artefacts["model.bin"].preview is None


@pytest.mark.parametrize(
    "odd",
    [
        Record("turn", {"message": None, "extra": 7, "prompt_tokens": "x", "clock": "late"}),
        Record("turn", {}, {"logprobs": b"abc"}),
        Record("call", {"key": 5, "members": []}),
        Record("observation", {"key": None, "end": 3}),
        Record("result", {"result": None, "detail": [], "error": "x"}),
        Record("of-a-later-version", {"clock": [1]}),
        Record("prepared", {"value": object}),
    ],
)
def test_a_record_of_another_shape_breaks_no_page(odd: Record) -> None:
    assert digest_of(odd, turn()).records == 2


def test_a_text_that_fits_is_whole_and_a_long_one_keeps_both_ends() -> None:
    assert excerpt("short", 10) == ("short", 0, "")
    cut = excerpt("a" * 50 + "b" * 50, 20)
    assert (cut.text, cut.left_out, cut.end) == ("a" * 15, 80, "b" * 5)
    assert excerpt({"k": 1}, 100).text == '{"k":1}'


def test_the_messages_before_a_response_are_shown_and_bounded() -> None:
    asked = [{"role": "tool", "content": "y" * 10_000}] * 20
    [shown] = digest_of(turn(asked=asked)).window

    assert (len(shown.asked), shown.more_asked, shown.asked[0].role) == (ASKED, 20 - ASKED, "tool")
    assert shown.asked[0].text.left_out == 10_000 - OUTPUT
    assert digest_of(turn(asked="odd")).window[0].asked == []
    assert digest_of(turn(asked=[5])).window[0].asked[0].role == ""


def test_what_a_command_did_not_write_is_no_output() -> None:
    silent: dict[str, Any] = {
        "truncated": False,
        "used": None,
        "stdout_bytes": 0,
        "session": "idle",
    }
    quiet = digest_of(turn(), call(), observation(**silent)).window[0].calls[0]
    answer = digest_of(turn(), call(), observation(**silent, status=200)).window[0].calls[0]

    assert quiet.output.text == ""
    assert answer.output.text == '{"status":200}'
