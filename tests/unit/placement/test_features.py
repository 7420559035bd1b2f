"""Features after step k are of the first k steps; unusable numbers never enter."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from placement.features import (
    GRID,
    MOST,
    MOST_KINDS,
    NAMES,
    OTHER,
    Features,
    FinishedTrajectory,
    KindUse,
    Progress,
    TrajectoryStep,
    check,
    remaining,
    rows,
    scale,
    unscale,
)

NUMBERS = st.floats(0, 1e9)
STEPS = st.lists(
    st.builds(TrajectoryStep, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "read", "test"])),
    max_size=40,
)


def numbers(features: Features) -> dict[str, float]:
    return dict(zip(NAMES, features.numbers, strict=True))


def after(*steps: TrajectoryStep, prompt_tokens: float = 0.0) -> Features:
    progress = Progress("grpo", "p-1", prompt_tokens)
    for step in steps:
        progress.add(step)
    return progress.features()


def test_before_the_first_step_only_the_prompt_is_known():
    found = numbers(after(prompt_tokens=700))

    assert {name: value for name, value in found.items() if value} == {
        "prompt_tokens": 700,
        "context_tokens": 700,
        "context_growth": 700,
    }


def test_sums_means_and_the_latest_steps_are_separate():
    steps = [TrajectoryStep(10.0 * n, 1.0 * n, 100.0 * n) for n in range(1, 11)]

    found = numbers(after(*steps))

    assert found["steps"] == 10
    assert found["sampled_tokens"] == 550
    assert found["tokens_a_step"] == 55
    assert found["tokens_last"] == found["tokens_most"] == 100
    assert found["tokens_of_last_3"] == 90
    assert found["tokens_of_last_8"] == 65
    assert found["tool_seconds"] == 55
    assert found["tool_seconds_of_last_3"] == 9
    assert found["context_tokens"] == 1000
    assert found["context_growth"] == 100


def test_a_compacted_context_has_no_growth():
    assert (
        numbers(after(TrajectoryStep(1, 0, 5000), TrajectoryStep(1, 0, 800)))["context_growth"] == 0
    )


def test_kinds_of_tools_are_counted_with_the_steps_since():
    found = after(
        TrajectoryStep(1, kind="read"),
        TrajectoryStep(1, kind="test"),
        TrajectoryStep(1),
        TrajectoryStep(1, kind="read"),
    )

    assert found.kinds == (KindUse("read", 2, 0), KindUse("test", 1, 2))


def test_kinds_beyond_the_bound_count_together():
    found = after(*(TrajectoryStep(1, kind=f"kind-{number}") for number in range(MOST_KINDS + 5)))

    assert len(found.kinds) == MOST_KINDS + 1
    assert found.kinds[-1] == KindUse(OTHER, 5, 0)


@given(STEPS, st.integers(0, 39))
def test_nothing_that_is_later_enters(steps, taken):
    taken = min(taken, len(steps))
    finished = FinishedTrajectory("grpo", tuple(steps), "p-1", 50.0)

    found = {row.features.steps: row.features for row in rows(finished, at=range(40))}

    if taken < len(steps):
        assert found[taken] == after(*steps[:taken], prompt_tokens=50.0)


@given(STEPS)
def test_what_is_left_is_the_sum_of_the_later_steps(steps):
    left = remaining(steps)

    assert len(left) == len(steps) + 1
    for index, (tokens, seconds) in enumerate(left):
        assert tokens == pytest.approx(math.fsum(step.tokens for step in steps[index:]))
        assert seconds == pytest.approx(math.fsum(step.tool_seconds for step in steps[index:]))


def test_rows_end_before_the_last_step_and_are_at_the_grid():
    finished = FinishedTrajectory("grpo", tuple(TrajectoryStep(5, 2) for _ in range(17)))

    found = rows(finished)

    assert [row.features.steps for row in found] == [step for step in GRID if step < 17]
    assert [(row.tokens, row.tool_seconds) for row in found][-1] == (5, 2)
    assert rows(FinishedTrajectory("grpo", ())) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 2 * MOST, "7", None, True])
@pytest.mark.parametrize("member", ["tokens", "tool_seconds", "context_tokens"])
def test_a_number_that_is_not_one_is_refused_by_name(bad, member):
    step = TrajectoryStep(**{"tokens": 1.0, member: bad})

    with pytest.raises(InvalidRequest, match=rf"steps\[1\]\.{member} is "):
        after(TrajectoryStep(1.0), step)
    with pytest.raises(InvalidRequest, match=rf"steps\[1\]\.{member} is "):
        check(FinishedTrajectory("grpo", (TrajectoryStep(1.0), step)))


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_prompt_of_unusable_length_is_refused(bad):
    with pytest.raises(InvalidRequest, match="prompt_tokens is "):
        Progress("grpo", prompt_tokens=bad)
    with pytest.raises(InvalidRequest, match="prompt_tokens is "):
        check(FinishedTrajectory("grpo", (), prompt_tokens=bad))


def test_a_refused_step_changes_nothing():
    progress = Progress("grpo")
    progress.add(TrajectoryStep(3.0, kind="read"))
    before = progress.features()

    with pytest.raises(InvalidRequest):
        progress.add(TrajectoryStep(5.0, tool_seconds=math.nan, kind="test"))

    assert progress.features() == before


@given(st.floats(0, 1e12))
def test_the_scale_of_predictors_is_undone(value):
    assert unscale(scale(value)) == pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("value", [-5.0, 1e9, -1e300, 1e300])
def test_no_correction_leads_out_of_the_range_of_lengths(value):
    assert 0 <= unscale(value) <= MOST * 1.001
