"""A model corrects history only as far as it was right, by the step and by what the group shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.features import GRID
from placement.shrinking import PRIOR, FoldErrors, StepTable, sigmas, weights

CHANCE = np.random.default_rng(4)
NOTHING = StepTable([0.0] * len(GRID), [0.0] * len(GRID))


def errors(
    steps: int, missing: np.ndarray, correction: np.ndarray, siblings: float = 0.0
) -> FoldErrors:
    count = len(missing)
    return FoldErrors(np.full(count, steps), np.full(count, siblings), missing, correction)


def both(first: FoldErrors, second: FoldErrors) -> FoldErrors:
    names = ("steps", "siblings", "missing", "correction")
    return FoldErrors(
        *(np.concatenate([getattr(first, name), getattr(second, name)]) for name in names)
    )


def test_a_right_model_is_trusted_and_a_useless_one_is_not():
    truth, noise = CHANCE.normal(size=400), CHANCE.normal(size=400)

    assert weights(errors(11, truth, truth)).at(11, 0) == pytest.approx(400 / (400 + PRIOR))
    assert weights(errors(11, truth, noise)).at(11, 0) < 0.15


def test_a_model_that_is_wrong_on_purpose_is_not_used():
    truth = CHANCE.normal(size=400)

    assert weights(errors(11, truth, -truth)).at(11, 0) == 0


def test_a_model_is_never_trusted_beyond_what_it_says():
    truth = CHANCE.normal(size=400)

    assert weights(errors(11, truth, truth / 5)).at(11, 0) <= 1


def test_few_trajectories_change_little():
    truth = CHANCE.normal(size=5)

    assert weights(errors(11, truth, truth)).at(11, 0) == pytest.approx(5 / (5 + PRIOR))


def test_trust_follows_the_step():
    """Plain history beats a trained model until some ten steps."""
    truth, noise = CHANCE.normal(size=400), CHANCE.normal(size=400)
    found = weights(both(errors(0, truth, noise), errors(45, truth, truth)))

    assert found.at(0, 0) < 0.15
    assert found.at(45, 0) > 0.9


def test_where_no_row_is_history_stays():
    truth = CHANCE.normal(size=400)

    assert weights(errors(0, truth, truth)).at(256, 0) == 0


def test_groups_with_finished_siblings_have_a_table_of_their_own():
    truth, noise = CHANCE.normal(size=400), CHANCE.normal(size=400)
    found = weights(both(errors(11, truth, truth, 0), errors(11, truth, noise, siblings=8)))

    assert found.at(11, 0) > 0.9
    assert found.at(11, 8) < 0.15


def test_before_siblings_were_seen_groups_count_as_new():
    truth = CHANCE.normal(size=400)
    found = weights(errors(11, truth, truth, 0))

    assert found.at(11, 8) == found.at(11, 0)


def test_sigma_is_what_stays_missing():
    truth = 2 * CHANCE.normal(size=400)
    half = errors(11, truth, truth / 2)
    used = weights(half).at(11, 0)

    left, everything = sigmas(half, weights(half)), sigmas(half, NOTHING)

    assert left.at(11, 0) == pytest.approx(float(np.std(truth * (1 - used / 2))), rel=0.05)
    assert everything.at(11, 0) == pytest.approx(float(np.std(truth)), rel=0.05)


def test_where_no_row_is_sigma_is_that_of_the_steps_before():
    """An unknown spread is not a small one."""
    first, later = CHANCE.normal(size=400), 3 * CHANCE.normal(size=400)
    found = sigmas(both(errors(0, first, first), errors(45, later, later)), NOTHING)

    assert found.at(0, 0) == pytest.approx(1, rel=0.15)
    assert found.at(256, 0) == pytest.approx(found.at(45, 0), rel=0.05)
    assert found.at(45, 0) == pytest.approx(3, rel=0.15)


def test_one_row_says_little_about_a_spread():
    first, later = CHANCE.normal(size=400), np.array([0.001])
    found = sigmas(both(errors(0, first, first), errors(90, later, later)), NOTHING)

    assert found.at(90, 0) > 0.5 * found.at(0, 0)


@given(st.integers(1, 60), st.integers(0, 300), st.integers(0, 2**16))
def test_a_corrected_history_is_no_worse_than_history_on_what_was_seen(count, steps, seed):
    chance = np.random.default_rng(seed)
    missing, correction = chance.normal(size=count), chance.normal(size=count)
    weight = weights(errors(steps, missing, correction)).at(steps, 0)

    assert 0 <= weight <= 1
    assert np.sum((missing - weight * correction) ** 2) <= np.sum(missing**2) + 1e-9
