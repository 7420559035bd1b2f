"""History: means by group, task and of all, of the trajectories that reached a step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest, Unreadable
from placement import history as history_module
from placement.features import FinishedTrajectory, TrajectoryStep, rows
from placement.history import PULL, UNKNOWN_SIGMA, History, observation
from tests.unit.placement.trajectories import a_trajectory, features_after, known

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def tokens_left(history: History, steps: int = 0, task: str = "grpo", group: str = "") -> float:
    found = history.estimate(task, group, steps)
    assert found is not None
    return math.expm1(found.tokens)


def fed(*trajectories: FinishedTrajectory, decay: float = 1.0) -> History:
    history = History(decay=decay)
    for each in trajectories:
        history.observe(each)
    return history


def test_without_trajectories_nothing_is_predicted():
    assert History().estimate("grpo", "p-1", 0) is None
    assert History().predict(features_after(a_trajectory(3), 1)) is None


def test_a_trajectory_without_steps_teaches_nothing():
    assert fed(a_trajectory(0)).estimate("grpo", "", 0) is None


def test_one_trajectory_predicts_its_like():
    history = fed(a_trajectory(8, tokens=100, tool_seconds=2))

    prediction = history.predict(features_after(a_trajectory(8), 2))

    assert prediction is not None
    assert prediction.tokens == pytest.approx(600)
    assert prediction.tool_seconds == pytest.approx(12)
    assert prediction.sigma == pytest.approx(UNKNOWN_SIGMA)
    assert prediction.source == history.name


def test_only_trajectories_that_reached_a_step_count_there():
    history = fed(a_trajectory(2), a_trajectory(2), a_trajectory(40))

    assert tokens_left(history, 0) < 1000
    assert tokens_left(history, 16) == pytest.approx(2400)


def test_between_steps_of_the_grid_the_estimate_is_between():
    history = fed(a_trajectory(40))

    assert tokens_left(history, 22) < tokens_left(history, 19) < tokens_left(history, 16)


def test_beyond_the_longest_trajectory_its_last_estimate_stays():
    history = fed(a_trajectory(12, tokens=100))

    assert tokens_left(history, 5000) == tokens_left(history, 11) == pytest.approx(100)


def test_a_task_is_shrunk_to_all_and_a_group_to_its_task():
    long = [a_trajectory(30, task="long") for _ in range(50)]
    history = fed(*long, a_trajectory(2, task="short"), a_trajectory(2, task="long", group="p-1"))

    logs = {task: math.log1p(tokens_left(history, task=task)) for task in ("long", "short", "new")}
    overall = (50 * math.log1p(3000) + 2 * math.log1p(200)) / 52
    assert logs["new"] == pytest.approx(overall)
    assert logs["short"] == pytest.approx((math.log1p(200) + PULL * overall) / (1 + PULL))
    of_group = math.log1p(tokens_left(history, task="long", group="p-1"))
    assert of_group == pytest.approx((math.log1p(200) + PULL * logs["long"]) / (1 + PULL))


def test_many_siblings_outweigh_their_task():
    siblings = [a_trajectory(2, group="p-1") for _ in range(100)]
    history = fed(*(a_trajectory(30) for _ in range(100)), *siblings)

    assert tokens_left(history, group="p-1") == pytest.approx(200, rel=0.05)
    assert known(history.estimate("grpo", "p-1", 0)).siblings == 100
    assert known(history.estimate("grpo", "p-1", 2)).siblings == 0


def test_groups_of_two_tasks_with_one_name_are_two():
    history = fed(a_trajectory(30, task="a", group="p-1"), a_trajectory(2, task="b", group="p-1"))

    assert tokens_left(history, task="a", group="p-1") > tokens_left(history, task="b", group="p-1")


def test_sigma_is_the_spread_of_trajectories():
    alike = fed(*(a_trajectory(10) for _ in range(60)))
    unlike = fed(*(a_trajectory(steps) for steps in (2, 20) * 30))

    assert known(alike.estimate("grpo", "", 0)).sigma < 0.3
    logs = [math.log1p(each) for each in (200, 2000)]
    assert known(unlike.estimate("grpo", "", 0)).sigma == pytest.approx(np.std(logs), rel=0.05)


def test_later_trajectories_weigh_more():
    """The policy is trained: what it did long ago says less."""
    before, after = [a_trajectory(30)] * 100, [a_trajectory(3)] * 100

    forgetting = fed(*before, *after, decay=0.98)
    keeping = fed(*before, *after)

    assert tokens_left(forgetting) < 500 < tokens_left(keeping)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(history_module, "MOST_GROUPS", 3)
    monkeypatch.setattr(history_module, "MOST_TASKS", 2)
    history = fed(*(a_trajectory(2, task=f"t-{n}", group=f"g-{n}") for n in range(10)))

    assert len(history._groups) == 3
    assert len(history._tasks) == 2
    assert ("t-9", "g-9") in history._groups


def test_a_group_in_use_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(history_module, "MOST_GROUPS", 2)
    history = fed(*(a_trajectory(2, group=group) for group in ("a", "b", "a", "c")))

    assert [group for _, group in history._groups] == ["a", "c"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_trajectory_with_an_unusable_number_is_refused_and_changes_nothing(bad):
    history = fed(a_trajectory(5))
    before = history.remember()

    with pytest.raises(InvalidRequest, match=r"steps\[1\].tokens"):
        history.observe(FinishedTrajectory("grpo", (TrajectoryStep(1.0), TrajectoryStep(bad))))

    assert history.remember() == before


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 11))
def test_leaving_a_trajectory_out_is_never_having_seen_it(lengths, left_out):
    left_out = min(left_out, len(lengths) - 1)
    every = [
        a_trajectory(steps, task=f"t-{steps % 2}", group=f"p-{steps % 3}") for steps in lengths
    ]
    one = every[left_out]

    without = fed(*every).profile(
        one.task, one.group, without=observation(one.task, one.group, rows(one))
    )
    never = fed(*every[:left_out], *every[left_out + 1 :]).profile(one.task, one.group)

    assert (without is None) == (never is None)
    if without is not None and never is not None:
        np.testing.assert_allclose(without, never, atol=1e-6)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 300))
def test_predictions_are_always_usable(lengths, steps):
    found = fed(*(a_trajectory(each) for each in lengths)).estimate("grpo", "p-1", steps)

    assert found is not None
    assert all(math.isfinite(each) and each >= 0 for each in found)


def test_what_was_learnt_survives_a_restart():
    history = fed(*(a_trajectory(n, task=f"t-{n % 3}", group=f"p-{n}") for n in range(1, 30)))
    restarted = History()

    restarted.recall(history.remember())

    assert restarted.remember() == history.remember()
    assert restarted.estimate("t-1", "p-4", 2) == history.estimate("t-1", "p-4", 2)


@pytest.mark.parametrize("memory", [b"", b"\xc1", History().remember()[:-5], b"\x90"])
def test_a_damaged_memory_is_refused_and_changes_nothing(memory):
    history = fed(a_trajectory(4))

    with pytest.raises(Unreadable, match="history of trajectories"):
        history.recall(memory)

    assert tokens_left(history) == pytest.approx(400)


def test_history_has_nothing_to_fit():
    history = fed(a_trajectory(4))

    history.use(history.refit(seed=1))

    assert history.refit(seed=1) == b""
