"""The makespan of a trajectory, divided by what it waited for and ran on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_web.dashboard.critical_path import critical_path
from tests.unit.dashboard.lives import OPENED, action, at, finished, trajectory

CPU: dict[str, Any] = {"cost": {"cpu": [1]}}
API: dict[str, Any] = {"cost": {"api:search": [1]}}


def test_the_path_runs_from_the_opening_over_the_actions_to_the_end() -> None:
    actions = [finished(1, 1, 0.5, 2.5, "a", **CPU), finished(7, 0, 0, 1, "b", **API)]

    path = critical_path(trajectory(ended=10), actions, at(99))

    assert [(link.kind, link.action_id, link.at, link.seconds) for link in path.links] == [
        ("own", "", 0, 1), ("queue", "a", 1, 1), ("overhead", "a", 2, 0.5),
        ("execution", "a", 2.5, 2.5), ("own", "", 5, 2), ("execution", "b", 7, 1), ("own", "", 8, 2),
    ]  # fmt: skip
    assert [(one.resource, one.seconds) for one in path.shares] == [
        ("", 5), ("cpu", 4), ("api:search", 1),
    ]  # fmt: skip


def test_an_action_that_ran_beside_a_longer_one_is_not_on_the_path() -> None:
    actions = [finished(0, 0, 0, 8, "long", **CPU), finished(1, 0, 0, 2, "short", **API)]

    path = critical_path(trajectory(), actions, at(99))

    assert {link.action_id for link in path.links} == {"long"}
    assert path.seconds == 8


def test_the_predecessor_of_an_action_is_the_latest_to_end_before_it() -> None:
    actions = [
        finished(0, 0, 0, 4, "first", **CPU), finished(0, 0, 0, 5, "second", **CPU),
        finished(5.5, 0, 0, 1, "third", **CPU),
    ]  # fmt: skip

    path = critical_path(trajectory(), actions, at(99))

    assert [link.action_id for link in path.links] == ["second", "", "third"]


def test_a_waiting_action_reaches_to_now_and_names_its_request() -> None:
    waiting = action(1, state="queued", cost={"gpu": [2], "cpu": [1]})

    path = critical_path(trajectory(), [waiting], at(4))

    assert [(link.kind, link.resource, link.seconds) for link in path.links] == [
        ("own", "", 1), ("queue", "cpu + gpu", 3),
    ]  # fmt: skip


def test_a_trajectory_that_has_just_opened_has_no_path() -> None:
    path = critical_path(trajectory(), [], OPENED)

    assert (path.links, path.shares, path.seconds) == ([], [], 0.0)


def test_parallel_waits_count_once_in_the_shares_of_a_trajectory() -> None:
    """Five actions that wait and run at once take the time of the longest, not of all together."""
    actions = [finished(1, 5, 0, 3, f"a{number}", **API) for number in range(5)]

    path = critical_path(trajectory(ended=10), actions, at(99))

    assert (path.waited, path.ran, path.own) == pytest.approx((0.5, 0.3, 0.2))


def test_the_path_of_the_latest_actions_begins_with_the_first_of_them() -> None:
    """The time before is not the trainer's own: earlier actions were in it."""
    shown = trajectory(ended=110)
    shown.actions = 500

    path = critical_path(shown, [finished(100, 4, 0, 6, "late", **CPU)], at(999))

    assert path.seconds == 10
    assert (path.waited, path.ran, path.own) == pytest.approx((0.4, 0.6, 0.0))


SECONDS = st.floats(0, 50, allow_nan=False)
ACTIONS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS, SECONDS), max_size=6)


@given(ACTIONS, st.floats(0, 200))
def test_links_follow_each_other_without_gaps_and_add_up_to_the_makespan(
    lives: list[tuple[float, float, float, float]], ended: float
) -> None:
    actions = [finished(*life, name=f"a{number}", **CPU) for number, life in enumerate(lives)]

    path = critical_path(trajectory(ended=ended), actions, at(1000))

    until = 0.0
    for link in path.links:
        assert link.at == pytest.approx(until, abs=1e-5)
        until = link.at + link.seconds
    assert until == pytest.approx(path.seconds, abs=1e-5)
    if path.links:
        assert sum(one.share for one in path.shares) == pytest.approx(1, abs=1e-5)
        assert path.waited + path.ran + path.own == pytest.approx(1, abs=1e-5)
        own = sum(one.share for one in path.shares if not one.resource)
        assert path.own == pytest.approx(own)
