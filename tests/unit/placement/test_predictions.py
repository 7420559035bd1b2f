"""Whatever a predictor does, a trajectory keeps its last usable prediction; what was not used is counted and named."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.facts import Prediction
from placement.features import Features, FinishedTrajectory, TrajectoryStep
from placement.history import History
from placement.predictions import GuardedPredictor, why_unusable
from tests.unit.placement.trajectories import a_trajectory, features_after, known

GOOD = Prediction(700.0, 5.0, 0.2, "scripted")
LONG = a_trajectory(30, group="p-1")


class ScriptedPredictor(History):
    """Answers what a test gives it, and raises it when it is an error."""

    name = "scripted"

    def __init__(self, *answers: object) -> None:
        super().__init__()
        self.answers = list(answers)
        self.texts: list[str | None] = []
        self.broken = False

    def observe(self, finished: FinishedTrajectory, texts: Sequence[str] = ()) -> None:
        """Raise when the test says so."""
        if self.broken:
            raise RuntimeError("no memory")
        super().observe(finished)

    def predict(self, features: Features, text: str | None = None) -> Prediction | None:
        """Return the next answer."""
        self.texts.append(text)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]  # a predictor of others returns anything


BAD = [
    pytest.param(Prediction(math.nan), "not_a_number", id="NaN"),
    pytest.param(Prediction(5, tool_seconds=math.nan), "not_a_number", id="NaN tools"),
    pytest.param(Prediction(5, sigma=math.nan), "not_a_number", id="NaN sigma"),
    pytest.param(Prediction(-1), "negative", id="negative"),
    pytest.param(Prediction(5, tool_seconds=-1), "negative", id="negative tools"),
    pytest.param(Prediction(math.inf), "infinite", id="infinite"),
    pytest.param(700.0, "not_a_prediction", id="a number"),
    pytest.param(Prediction("many"), "not_a_prediction", id="text"),  # type: ignore[arg-type]
    pytest.param(ValueError("no such token"), "raised", id="raises"),
    pytest.param(None, "silent", id="silent"),
]


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_the_last_usable_prediction_stays_and_the_reason_is_counted(answer, reason):
    guarded = GuardedPredictor(ScriptedPredictor(GOOD, answer))
    guarded.predict("t-1", features_after(LONG, 1))

    used = guarded.predict("t-1", features_after(LONG, 2))

    assert used == GOOD
    assert guarded.unused == {reason: 1}
    assert guarded.problem is not None
    assert guarded.problem.startswith("predictor scripted ")


@pytest.mark.parametrize(("answer", "reason"), BAD)
def test_without_a_usable_prediction_history_stands_in(answer, reason):
    guarded = GuardedPredictor(ScriptedPredictor(answer, answer))
    assert guarded.predict("t-1", features_after(LONG, 1)) is None

    guarded.observe(a_trajectory(12))
    used = guarded.predict("t-1", features_after(LONG, 2))

    assert used is not None
    assert used.source == "history"
    assert used.tokens == pytest.approx(1000)
    assert guarded.unused == {reason: 2}


def test_what_history_says_follows_the_steps_until_the_predictor_answers():
    guarded = GuardedPredictor(ScriptedPredictor(None, None, GOOD))
    guarded.observe(a_trajectory(12))

    used = [known(guarded.predict("t-1", features_after(LONG, step))).tokens for step in (0, 4, 5)]

    assert used == [pytest.approx(1200), pytest.approx(800), 700.0]


def test_an_answer_that_arrives_after_the_trajectory_went_on_is_late():
    guarded = GuardedPredictor(ScriptedPredictor())
    guarded.ended("t-1", features_after(LONG, 1))
    guarded.went_on("t-1")

    assert guarded.arrived("t-1", 1, GOOD) is None
    assert guarded.unused == {"late": 1}
    assert "t-1 has gone on since step 1" in str(guarded.problem)


def test_an_answer_for_an_earlier_step_is_late():
    guarded = GuardedPredictor(ScriptedPredictor())
    guarded.ended("t-1", features_after(LONG, 1))
    guarded.ended("t-1", features_after(LONG, 2))

    guarded.arrived("t-1", 1, GOOD)

    assert guarded.unused == {"late": 1}
    assert guarded.arrived("t-1", 2, GOOD) == GOOD


def test_an_answer_for_a_finished_trajectory_is_late_and_keeps_nothing():
    guarded = GuardedPredictor(ScriptedPredictor(GOOD))
    guarded.predict("t-1", features_after(LONG, 1))
    guarded.forget("t-1")

    guarded.arrived("t-1", 1, GOOD)

    assert guarded.latest("t-1") is None
    assert guarded.unused == {"late": 1}


def test_a_predictor_receives_the_text():
    predictor = ScriptedPredictor(GOOD)

    GuardedPredictor(predictor).predict("t-1", features_after(LONG, 1), "1. read 2. edit 3. test")

    assert predictor.texts == ["1. read 2. edit 3. test"]


def test_a_predictor_that_cannot_learn_leaves_history_learning():
    predictor = ScriptedPredictor(None)
    predictor.broken = True
    guarded = GuardedPredictor(predictor)

    guarded.observe(a_trajectory(12))

    assert guarded.unused == {"raised": 1}
    assert known(guarded.predict("t-1", features_after(LONG, 0))).source == "history"


def test_a_finished_trajectory_with_an_unusable_number_is_fed_to_none():
    predictor = ScriptedPredictor()
    guarded = GuardedPredictor(predictor)

    guarded.observe(FinishedTrajectory("grpo", (TrajectoryStep(math.nan),)))

    assert guarded.unused == {"bad_steps": 1}
    assert "steps[0].tokens is nan" in str(guarded.problem)
    assert guarded.ended("t-1", features_after(LONG, 0)) is None


def test_a_fit_that_raises_or_is_refused_changes_nothing(monkeypatch):
    def fail(*_: object) -> bytes:
        raise MemoryError("too many rows")

    predictor = ScriptedPredictor(GOOD)
    monkeypatch.setattr(predictor, "refit", fail)
    monkeypatch.setattr(predictor, "use", fail)
    guarded = GuardedPredictor(predictor)

    assert guarded.refit(seed=1) is None
    guarded.use(b"damaged")

    assert guarded.unused == {"raised": 2}
    assert guarded.predict("t-1", features_after(LONG, 1)) == GOOD


@given(
    st.lists(
        st.one_of(
            st.builds(Prediction, st.floats(), st.floats(), st.floats()),
            st.sampled_from([None, 7, "long", ValueError("x")]),
        ),
        max_size=20,
    )
)
def test_what_is_used_is_always_usable(answers):
    guarded = GuardedPredictor(ScriptedPredictor(*answers))
    usable = None

    for step, answer in enumerate(answers):
        used = guarded.predict("t-1", features_after(LONG, step))
        usable = answer if why_unusable(answer) is None else usable
        assert used is usable

    refused = [each for each in answers if why_unusable(each) is not None]
    assert sum(guarded.unused.values()) == len(refused)
