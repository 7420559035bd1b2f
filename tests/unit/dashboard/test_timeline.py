"""A trajectory's lanes say where its time went."""

from __future__ import annotations

from tangram_web.dashboard.timeline import LANE, lanes_of
from tests.unit.dashboard.lives import OPENED, action, at, finished, trajectory


def test_a_bar_is_drawn_at_the_time_of_its_phase() -> None:
    chart = lanes_of(trajectory(ended=10), [finished(1, 1, 0.5, 2.5)], at(99))
    places = [(one.name, round(one.start, 6), round(one.width, 6)) for one in chart.lanes[0].phases]
    assert places == [("queue", 10, 10), ("overhead", 20, 5), ("execution", 25, 25)]


def test_a_live_action_reaches_to_now() -> None:
    waiting = action(1, state="queued")
    running = action(2, state="running", granted_at=at(3), started_at=at(3))
    chart = lanes_of(trajectory(), [waiting, running], at(5))
    assert chart.seconds == 5
    assert [phase.name for phase in chart.lanes[0].phases] == ["queue"]
    assert [(phase.name, phase.seconds) for phase in chart.lanes[1].phases] == [
        ("queue", 1.0), ("execution", 2.0),
    ]  # fmt: skip
    assert chart.lanes[1].top == LANE


def test_a_trajectory_without_actions_has_an_empty_chart() -> None:
    chart = lanes_of(trajectory(), [], OPENED)
    assert chart.lanes == []
