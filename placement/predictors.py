"""Predictors of what is left of a trajectory: the protocol, and the registry of the built-in and installed ones.

A package registers a class, or another callable without arguments, under the entry-point group ``tangram.predictors``; a fleet
names it. A broken entry point costs only itself: it is reported and left out. A name that a built-in predictor has, or
an earlier package by name, stays with it.

Rules of a predictor
1. `observe` gets each finished trajectory once, in the order of their ends, with its texts when the fleet gives them: the
   context after step k is the first k + 1 of them.
2. `refit` runs off the loop, in a thread beside the other calls: it reads what was observed and changes nothing. Its bytes
   are for `use`, also after a restart and in another process.
3. `predict` runs while the trajectory is in a tool. Its text is the conversation so far, when the fleet gives it; a predictor
   that needs none ignores it. None: it knows nothing.
4. It may be wrong, late, or raise: `placement.predictions` then keeps the last value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol, runtime_checkable

from domain.errors import InvalidRequest
from placement.boosted import BoostedPredictor
from placement.facts import Prediction
from placement.features import Features, FinishedTrajectory
from placement.history import History

GROUP: Final = "tangram.predictors"


@runtime_checkable
class Predictor(Protocol):
    """Predicts remaining tokens and tool seconds."""

    name: str

    def observe(self, finished: FinishedTrajectory, texts: Sequence[str] = ()) -> None:
        """Learn from a finished trajectory; ``texts``: its prompt, then what each step added."""
        ...

    def refit(self, seed: int) -> bytes:
        """Return what `use` takes, fitted to what was observed; nothing when there is nothing to fit."""
        ...

    def use(self, fitted: bytes) -> None:
        """Predict by what `refit` returned from now on."""
        ...

    def predict(self, features: Features, text: str | None = None) -> Prediction | None:
        """Return what is left of a trajectory; None: unknown."""
        ...

    def remember(self) -> bytes:
        """Return the state, for a restart."""
        ...

    def recall(self, memory: bytes) -> None:
        """Restore what `remember` returned."""
        ...


PredictorFactory = Callable[[], Predictor]

BUILT_IN: Final[Mapping[str, PredictorFactory]] = {
    BoostedPredictor.name: BoostedPredictor,
    History.name: History,
}


@dataclass(frozen=True)
class PredictorRegistry:
    """Predictors by name, and the problems of those that were left out."""

    factories: Mapping[str, PredictorFactory]
    #: One sentence for each entry point that was left out.
    problems: tuple[str, ...] = ()

    def make(self, name: str) -> Predictor:
        """Make the predictor ``name``. Raises InvalidRequest: unknown, or its package fails."""
        factory = self.factories.get(name)
        if factory is None:
            known = ", ".join(sorted(self.factories))
            raise InvalidRequest(f"predictor {name!r} is not installed; there are {known}")
        try:
            made = factory()
        except Exception as error:  # any error of a foreign module
            raise InvalidRequest(
                f"predictor {name!r} cannot be made: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(made, Predictor):
            missing = [each for each in _MEMBERS if not hasattr(made, each)]
            raise InvalidRequest(f"predictor {name!r} has no {', '.join(missing)}")
        return made


_MEMBERS: Final = ("name", "observe", "refit", "use", "predict", "remember", "recall")


def load(found: Iterable[EntryPoint] | None = None) -> PredictorRegistry:
    """Collect the built-in predictors and those of ``found`` (default: all installed packages)."""
    points = entry_points(group=GROUP) if found is None else found
    factories, problems = dict(BUILT_IN), list[str]()
    origins = dict.fromkeys(factories, "the built-in predictor")
    for point in sorted(points, key=lambda each: (each.name, each.value)):
        origin = f"{point.name} = {point.value}"
        factory = _resolve(point, origin, problems)
        if factory is None or factories.get(point.name) is factory:
            continue
        if point.name in factories:
            problems.append(
                f"two predictors {point.name!r}: {origins[point.name]} (kept) and {origin}; uninstall one of them"
            )
            continue
        factories[point.name], origins[point.name] = factory, origin
    return PredictorRegistry(factories, tuple(problems))


def _resolve(point: EntryPoint, origin: str, problems: list[str]) -> PredictorFactory | None:
    try:
        loaded = point.load()
    except Exception as error:  # whatever a foreign module does on import
        problems.append(f"{origin} cannot be loaded: {type(error).__name__}: {error}")
        return None
    if not callable(loaded):
        problems.append(
            f"{origin} is a {type(loaded).__name__}, not a class or a callable that makes a predictor"
        )
        return None
    factory: PredictorFactory = loaded
    return factory
