"""Drawings of rollouts: places add up, masks have colours, and a sample without a reward is no reward of 0."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from domain.rollouts import Stage, StageTimes
from tangram_web.records.models import RolloutRecord
from tangram_web.rollouts.drawings import (
    MOST_TURNS,
    patch_view,
    reward_bars,
    spread,
    stage_rows,
    token_strip,
    turn_strip,
)
from tangram_web.rollouts.groups import group_of
from tangram_web.rollouts.log_digest import TurnFacts, TurnShown
from tangram_web.rollouts.verdicts import LISTED, cure_of, verdict_of_tests

AT = datetime(2026, 1, 2, tzinfo=UTC)


def row(number: int = 0, **fields: Any) -> RolloutRecord:
    ended = "outcome" in fields
    given = {"state": "finished" if ended else "assigned", "submitted_at": AT, **fields}
    return RolloutRecord(id=f"rol_{number}", project="p", task="t", sample=number, **given)


def test_parts_of_a_rollout_follow_each_other_and_add_up() -> None:
    record = row(began_at=AT + timedelta(seconds=1))
    times = [StageTimes(Stage.INIT, 1.0, 2.0, 1), StageTimes(Stage.RUN, 2.0, 4.0, 2)]
    rows = stage_rows(record, times, AT)
    parts = [part for each in rows for part in each.parts]

    assert [each.name for each in rows] == ["worker", "INIT", "RUN"]
    assert [part.start for part in parts] == [0.0, 10.0, 20.0, 40.0, 60.0]
    assert sum(part.width for part in parts) == 100.0


def test_a_rollout_that_waits_has_waited_until_now() -> None:
    [waits] = stage_rows(row(), [], AT + timedelta(seconds=7))

    assert waits.queued_seconds == 7.0


def test_tokens_have_the_colours_of_their_masks() -> None:
    turns = [TurnFacts(0, 30, 10, 1), TurnFacts(1, 40, 20, 1, follows=0)]

    parts = token_strip(turns)

    assert [(part.name, part.width) for part in parts] == [
        ("prompt", 30.0), ("sampled", 10.0), ("context", 40.0), ("sampled", 20.0)
    ]  # fmt: skip
    assert token_strip([]) == []


def test_a_thousand_turns_are_a_bounded_drawing() -> None:
    turns = [TurnFacts(number, 5, 5, 1, number - 1 or None) for number in range(1000)]

    parts = token_strip(turns)

    assert len(parts) <= 2 * MOST_TURNS
    assert abs(sum(part.width for part in parts) - 100) < 0.5


def test_unlikely_tokens_are_paler() -> None:
    turn = TurnShown(0, 10, 10, 1, follows=None, shades=[-0.01, -5.0])

    assert [part.name for part in turn_strip(turn)] == [
        "prompt", "sampled shade-0", "sampled shade-4"
    ]  # fmt: skip


def test_a_failed_sample_is_no_reward_of_zero() -> None:
    samples = [
        row(0, outcome="completed", reward=1.0), row(1, outcome="completed", reward=0.0),
        row(2, outcome="infra_failed"), row(3),
    ]  # fmt: skip

    bars = reward_bars(samples)

    assert [bar.name for bar in bars] == ["reward", "reward", "failed", "unfinished"]
    assert bars[0].height > bars[1].height > 0
    assert bars[2].title == "sample 2: infra failed"


def test_a_group_with_equal_rewards_is_wasted_only_once_it_is_complete() -> None:
    ended = [row(n, outcome="completed", reward=1.0) for n in range(2)]

    assert group_of("p", "t", "g", [*ended, row(2)]).kind == "unfinished"
    assert group_of("p", "t", "g", [*ended, row(2, outcome="failed")]).kind == "wasted"
    differs = group_of("p", "t", "g", [*ended, row(2, outcome="completed", reward=0.0)])
    assert (differs.kind, differs.failed, differs.rewards) == (
        "informative", 0, "rewards 1, 1, 0"
    )  # fmt: skip


def test_a_sample_is_carried_once_it_was_parked_and_resumed() -> None:
    group = group_of("p", "t", "g", [
        row(0, parked_times=1, outcome="completed", reward=1.0), row(1, parked_times=1, state="parked"),
        row(2, parked_times=2), row(3),
    ])  # fmt: skip

    assert (group.carried, group.parked) == (2, 1)


def test_the_iteration_is_what_the_client_wrote() -> None:
    of_client = group_of("p", "t", "g", [row(0, metadata={"dapo": {"iteration": 3}})])
    other = group_of("p", "t", "g", [row(0, metadata={"step": 7})])
    nonsense = group_of("p", "t", "g", [row(0, metadata={"dapo": [1], "step": {"x": 1}})])

    assert (of_client.iteration, other.iteration, nonsense.iteration) == ("3", "7", "")


def test_a_column_is_stacked_from_the_bottom() -> None:
    parts = spread([("informative", 1), ("wasted", 0), ("unfinished", 3)], 4)

    assert [(part.name, part.start, part.width) for part in parts] == [
        ("informative", 75.0, 25.0), ("unfinished", 0.0, 75.0)
    ]  # fmt: skip


def test_lines_of_a_patch_have_their_meaning_and_a_bound() -> None:
    text = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same\n"
    view = patch_view(text, len(text))

    assert [line.kind for line in view.lines] == [
        "file", "file", "file", "hunk", "del", "add", "same"
    ]  # fmt: skip
    assert (view.added, view.removed, view.cut) == (1, 1, False)
    assert patch_view(b"+x\n" * 5000, 15_000).cut
    assert patch_view(b"+" + b"x" * 5000, 5001).cut
    assert patch_view(b"\xff\xfe+", 3).lines[0].kind == "same"


def test_each_end_without_a_reward_says_what_to_do() -> None:
    for outcome in ("completed", "failed", "timeout", "cancelled", "infra_failed"):
        cure = cure_of(row(0, outcome=outcome, handler="swe", instance="it's"))
        assert cure is not None
        assert cure.cause
        assert cure.step
    again = cure_of(row(0, outcome="failed", handler="swe", instance="it's", llm="policy"))
    assert again is not None
    assert again.line.endswith("--instance 'it'\"'\"'s' --llm policy")
    backends = cure_of(row(0, outcome="infra_failed", reason="no backend answers"))
    assert backends is not None
    assert backends.page == "rollouts:backends"
    assert cure_of(row(0, outcome="completed", reward=0.0)) is None
    assert cure_of(row()) is None


def test_tests_that_did_not_pass_are_listed_with_how_they_ended() -> None:
    said = verdict_of_tests(
        b'{"count": 5, "passed": 3, "tests": {"t::a": "failed"}, "unloaded": ["t::b"]}'
    )
    assert said is not None
    assert (said.total, said.passed) == (5, 3)
    assert said.others == [("t::a", "failed"), ("t::b", "not loaded")]
    many = verdict_of_tests(
        b'{"tests": {%s}}' % b", ".join(b'"t%d": "failed"' % n for n in range(150))
    )
    assert many is not None
    assert (len(many.others), many.more) == (LISTED, 50)


@pytest.mark.parametrize(
    "content", [None, b"", b"[1]", b"{", b'{"other": 1}', b"\xff", b"[" * 5000]
)
def test_a_report_of_another_shape_is_no_verdict(content: bytes | None) -> None:
    assert verdict_of_tests(content) is None
