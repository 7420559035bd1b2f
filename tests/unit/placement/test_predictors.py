"""Predictors of other packages are found; a broken one costs only itself."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from domain.errors import InvalidRequest
from placement.boosted import BoostedPredictor
from placement.history import History
from placement.predictors import GROUP, Predictor, load


class LabPredictor(History):
    """A predictor of another package."""

    name = "lab"


class OtherLabPredictor(History):
    """Another one of the same name."""

    name = "lab"


class HalfPredictor:
    """It cannot predict."""

    name = "half"

    def observe(self, finished: object) -> None:
        """Learn nothing."""


def failing() -> Predictor:
    raise RuntimeError("no licence")


NOT_CALLABLE = "text"


def an_entry(name: str, attribute: str, module: str = __name__) -> EntryPoint:
    return EntryPoint(name, f"{module}:{attribute}", GROUP)


def test_built_in_predictors_need_no_installation():
    registry = load(())

    assert isinstance(registry.make("boosted"), BoostedPredictor)
    assert isinstance(registry.make("history"), History)
    assert {"boosted", "history"} <= set(load().factories)


def test_each_fleet_gets_a_predictor_of_its_own():
    registry = load(())

    assert registry.make("history") is not registry.make("history")


def test_a_predictor_of_another_package_is_found():
    registry = load([an_entry("lab", "LabPredictor")])

    assert isinstance(registry.make("lab"), LabPredictor)
    assert registry.problems == ()


def test_an_entry_point_that_cannot_be_loaded_is_reported_and_left_out():
    registry = load([an_entry("ghost", "P", "no_such_module"), an_entry("lab", "LabPredictor")])

    assert "ghost = no_such_module:P cannot be loaded: ModuleNotFoundError" in registry.problems[0]
    assert isinstance(registry.make("lab"), LabPredictor)


def test_an_entry_point_that_makes_nothing_is_reported():
    registry = load([an_entry("text", "NOT_CALLABLE")])

    assert "is a str, not a class" in registry.problems[0]
    assert "text" not in registry.factories


def test_two_predictors_of_one_name_are_both_named_and_the_first_stays():
    registry = load([an_entry("lab", "OtherLabPredictor"), an_entry("lab", "LabPredictor")])

    assert isinstance(registry.make("lab"), LabPredictor)
    assert "LabPredictor (kept)" in registry.problems[0]
    assert "OtherLabPredictor" in registry.problems[0]


def test_a_built_in_predictor_cannot_be_replaced():
    registry = load([an_entry("boosted", "LabPredictor")])

    assert isinstance(registry.make("boosted"), BoostedPredictor)
    assert "the built-in predictor (kept)" in registry.problems[0]


def test_an_unknown_name_is_refused_with_those_that_are_installed():
    with pytest.raises(
        InvalidRequest, match="'ghost' is not installed; there are boosted, history"
    ):
        load(()).make("ghost")


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        ("failing", "cannot be made: RuntimeError: no licence"),
        ("HalfPredictor", "has no refit, use, predict, remember, recall"),
    ],
)
def test_a_predictor_that_cannot_be_made_is_refused_with_the_reason(attribute, reason):
    with pytest.raises(InvalidRequest, match=reason):
        load([an_entry("lab", attribute)]).make("lab")
