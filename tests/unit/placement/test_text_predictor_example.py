"""The example of a predictor reads the text, and is found as an installed package would be."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from placement.predictions import GuardedPredictor
from placement.predictors import GROUP, Predictor, load
from tests.architecture.tree import ROOT
from tests.unit.placement.trajectories import a_trajectory, features_after, known

EXAMPLE: Path = ROOT / "examples" / "text_predictor"
PLAN = "Plan:\n1. read\n2. edit\n3. test\n"


@pytest.fixture
def predictor(monkeypatch) -> Iterator[Predictor]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    places = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    registry = load([EntryPoint(name, place, GROUP) for name, place in places[GROUP].items()])
    assert registry.problems == ()
    yield registry.make("plan")
    sys.modules.pop("plan_predictor", None)


def test_the_plan_in_the_text_says_how_many_steps_are_left(predictor):
    guarded = GuardedPredictor(predictor)
    for _ in range(5):  # two steps for each of three items
        guarded.observe(
            a_trajectory(6, tokens=100, tool_seconds=2), ["fix the bug\n", PLAN, "done"]
        )
    fitted = guarded.refit(seed=1)
    assert fitted
    guarded.use(fitted)

    long = PLAN + "4. measure\n5. write\n"
    found = [
        known(guarded.predict("t-1", features_after(a_trajectory(20), 2), text)).tokens
        for text in (PLAN, long)
    ]

    assert found == [pytest.approx(400), pytest.approx(800)]
    assert guarded.unused == {}


def test_without_a_plan_history_stands_in(predictor):
    guarded = GuardedPredictor(predictor)
    guarded.observe(a_trajectory(6))

    prediction = known(guarded.predict("t-1", features_after(a_trajectory(20), 2), "no plan"))

    assert prediction.source == "history"
    assert guarded.unused == {"silent": 1}


def test_what_the_example_learnt_survives_a_restart(predictor):
    for _ in range(5):
        predictor.observe(a_trajectory(6), ["", PLAN])
    again = type(predictor)()

    again.recall(predictor.remember())

    assert again.predict(features_after(a_trajectory(9), 1), PLAN) is not None
    assert again.remember() == predictor.remember()
