"""A trajectory is drawn as nested frames: its steps, their actions, the actions' phases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tangram_web.dashboard.flame_graph import ROW, FlameGraph, flame_of, rows_of
from tests.unit.dashboard.lives import OPENED, at, finished, trajectory


def places(flame: FlameGraph) -> list[tuple[str, str, float, float, int]]:
    return [
        (one.kind, one.name, round(one.start, 6), round(one.width, 6), one.top // ROW)
        for one in flame.frames
    ]


def test_frames_are_nested_in_their_parents() -> None:
    actions = [
        finished(1, 1, 0, 2, "a", step=1, family="test"), finished(5, 0, 1, 4, "b", step=1),
    ]  # fmt: skip

    flame = flame_of(trajectory(ended=10), actions, at(99))

    assert places(flame) == [
        ("trajectory", "t", 0, 100, 0), ("step", "step 1", 10, 90, 1),
        ("action", "test", 10, 30, 2), ("queue", "queue", 10, 10, 3),
        ("execution", "execution", 20, 20, 3), ("action", "exec", 50, 50, 2),
        ("overhead", "overhead", 50, 10, 3), ("execution", "execution", 60, 40, 3),
    ]  # fmt: skip
    assert flame.height == 4 * ROW


def test_overlapping_frames_are_in_separate_rows() -> None:
    actions = [finished(0, 0, 0, 4, "a", step=1), finished(2, 0, 0, 4, "b", step=2)]

    frames = flame_of(trajectory(), actions, at(9)).frames

    assert [one.top // ROW for one in frames if one.kind == "step"] == [1, 2]
    assert [one.top // ROW for one in frames if one.kind == "action"] == [3, 5]


def test_actions_without_a_step_are_below_the_trajectory() -> None:
    flame = flame_of(trajectory(), [finished(0, 0, 0, 4, "a")], at(9))

    assert [(one.kind, one.top // ROW) for one in flame.frames] == [
        ("trajectory", 0), ("action", 1), ("execution", 2),
    ]  # fmt: skip


def test_an_empty_trajectory_is_one_frame() -> None:
    flame = flame_of(trajectory(), [], OPENED)

    assert [one.kind for one in flame.frames] == ["trajectory"]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20))
def test_nothing_in_one_row_overlaps(lives: list[tuple[float, float]]) -> None:
    spans = sorted((begin, begin + seconds) for begin, seconds in lives)

    until: dict[int, float] = {}
    for (begin, end), row in zip(spans, rows_of(spans), strict=True):
        assert begin >= until.get(row, 0.0)
        until[row] = end
