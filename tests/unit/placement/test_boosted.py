"""Predictor boosted: trees correct history once they have proved to; without LightGBM history alone predicts."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from statistics import mean

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest, Unreadable
from placement import boosted
from placement.boosted import LEAST_GROUPS, BoostedPredictor, unavailable
from placement.features import FinishedTrajectory, TrajectoryStep, remaining
from tests.unit.placement.trajectories import a_trajectory, features_after, known, slow_and_quick

needs_lightgbm = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
#: A fit takes some tenths of a second.
fits = pytest.mark.cpu_seconds(4)


def fed(count: int = 60, samples: int = 1) -> BoostedPredictor:
    predictor = BoostedPredictor()
    for each in slow_and_quick(count, samples=samples):
        predictor.observe(each)
    return predictor


@pytest.fixture(scope="module")
def fitted() -> BoostedPredictor:
    predictor = fed()
    predictor.use(predictor.refit(seed=1))
    return predictor


@pytest.fixture
def without_lightgbm(monkeypatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    unavailable.cache_clear()
    yield
    monkeypatch.undo()
    unavailable.cache_clear()


def error(predictor: BoostedPredictor, finished: FinishedTrajectory, steps: int) -> float:
    prediction = known(predictor.predict(features_after(finished, steps)))
    return abs(math.log1p(prediction.tokens) - math.log1p(remaining(finished.steps)[steps][0]))


@needs_lightgbm
@fits
def test_trees_see_what_history_cannot(fitted):
    """After one step, its tokens show whether a new trajectory is slow; history knows the mean of both kinds alone."""
    history, new = fed(), slow_and_quick(30, seed=99)

    ours = mean(error(fitted, each, 1) for each in new)
    plain = mean(error(history, each, 1) for each in new)

    assert history.problem is not None
    assert fitted.problem is None
    assert ours < 0.5 * plain


@needs_lightgbm
@fits
def test_before_the_first_step_nothing_corrects_history(fitted):
    """Prompts do not show the kind: out-of-fold errors measure it, so the weight is small."""
    new = a_trajectory(5, group="new")
    by_history = fitted.history.predict(features_after(new, 0))
    prediction = fitted.predict(features_after(new, 0))

    assert prediction.source == "boosted"
    assert prediction.tokens == pytest.approx(by_history.tokens, rel=0.35)


@needs_lightgbm
@fits
def test_sigma_falls_with_the_steps(fitted):
    new = slow_and_quick(1, seed=5)[0]
    first, second = (fitted.predict(features_after(new, steps)).sigma for steps in (0, 3))

    assert 0 < second < 0.6 * first


@needs_lightgbm
@fits
def test_tool_seconds_are_predicted_too(fitted):
    slow = next(each for each in slow_and_quick(20, seed=7) if len(each.steps) > 20)
    quick = next(each for each in slow_and_quick(20, seed=7) if len(each.steps) < 9)

    seconds = [fitted.predict(features_after(each, 2)).tool_seconds for each in (slow, quick)]

    assert seconds[0] > 2 * seconds[1]


@needs_lightgbm
@given(
    st.lists(
        st.builds(TrajectoryStep, *[st.floats(0, 1e12)] * 3, st.sampled_from(["read", "new", ""])),
        max_size=400,
    )
)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_predictions_are_usable_whatever_a_trajectory_did(fitted, steps):
    finished = FinishedTrajectory("grpo", tuple(steps), "p-1")

    assert known(fitted.predict(features_after(finished, len(steps)))).usable


@needs_lightgbm
@fits
def test_a_fit_is_a_function_of_observations_and_seed():
    predictor = fed(30)

    assert predictor.refit(seed=3) == fed(30).refit(seed=3)
    assert predictor.refit(seed=3) != predictor.refit(seed=4)


@needs_lightgbm
@fits
def test_a_refit_changes_nothing_until_it_is_used():
    predictor = fed(30)
    before = known(predictor.predict(features_after(a_trajectory(9), 3)))

    trees = predictor.refit(seed=3)

    assert known(predictor.predict(features_after(a_trajectory(9), 3))) == before
    assert before.source == "history"
    predictor.use(trees)
    assert known(predictor.predict(features_after(a_trajectory(9), 3))).source == "boosted"


@needs_lightgbm
@fits
def test_groups_are_fitted_with_and_without_their_siblings():
    predictor = fed(30, samples=4)
    fit = boosted._decode_fitted(predictor.refit(seed=3))

    assert fit.trajectories == 120
    assert fit.token_weights.alone != fit.token_weights.siblings
    # Siblings are alike here: with them, history misses less.
    assert fit.sigma.siblings[0] < 0.7 * fit.sigma.alone[0]


@needs_lightgbm
@fits
def test_what_was_learnt_survives_a_restart(fitted):
    restarted = BoostedPredictor()

    restarted.recall(fitted.remember())

    asked = features_after(slow_and_quick(1, seed=8)[0], 2)
    assert restarted.predict(asked) == fitted.predict(asked)
    assert restarted.refit(seed=6) == fitted.refit(seed=6)


@needs_lightgbm
@fits
@pytest.mark.parametrize("damage", [b"x", b"\x90", None], ids=["no msgpack", "empty", "no trees"])
def test_a_damaged_fit_is_refused_and_the_former_stays(damage, fitted):
    asked = features_after(slow_and_quick(1, seed=8)[0], 2)
    before = fitted.predict(asked)
    if damage is None:
        fit = boosted._decode_fitted(fitted.refit(seed=1))
        damage = boosted._encode(msgspec.structs.replace(fit, tokens=["no tree"]))

    with pytest.raises(Unreadable):
        fitted.use(damage)

    assert fitted.predict(asked) == before


def test_too_few_groups_are_not_fitted():
    predictor = BoostedPredictor()
    for number in range(200):
        predictor.observe(a_trajectory(5, group=f"p-{number % (LEAST_GROUPS - 1)}"))

    assert predictor.refit(seed=1) == b""
    predictor.use(b"")
    assert str(LEAST_GROUPS) in str(predictor.problem) or "LightGBM" in str(predictor.problem)


def test_without_lightgbm_history_predicts_and_the_problem_says_so(without_lightgbm):
    predictor = fed(40)

    assert predictor.refit(seed=1) == b""
    prediction = known(predictor.predict(features_after(a_trajectory(5), 1)))

    assert prediction.source == "history"
    assert "pip install tangram[predict]" in str(predictor.problem)


def test_trees_of_another_machine_are_left_alone_without_lightgbm(without_lightgbm):
    predictor = fed(40)

    predictor.use(b"trees")

    assert known(predictor.predict(features_after(a_trajectory(5), 1))).source == "history"


def test_a_missing_library_of_the_system_is_named(monkeypatch):
    def load(name: str) -> None:
        raise OSError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(boosted, "import_module", load)
    unavailable.cache_clear()
    try:
        assert "libgomp1" in str(unavailable())
    finally:
        unavailable.cache_clear()


def test_lightgbm_is_not_imported_until_something_is_fitted():
    """The scheduler's loop imports placement: hundreds of milliseconds and an OpenMP runtime are not for it."""
    source = importlib.util.find_spec("placement.boosted").loader.get_source("placement.boosted")  # type: ignore[union-attr]

    assert "import lightgbm" not in source
    assert "from lightgbm" not in source


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_an_unusable_number_is_refused_and_teaches_nothing(bad):
    predictor = fed(3)
    before = predictor.remember()

    with pytest.raises(InvalidRequest):
        predictor.observe(FinishedTrajectory("grpo", (TrajectoryStep(bad),)))

    assert predictor.remember() == before
