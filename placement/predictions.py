"""Predictions in use: the last usable one of each trajectory, and counts of those that were not used.

A `GuardedPredictor` stands between a fleet and its predictor. Whatever the predictor does, a trajectory has its last usable
prediction, else that of history, else none.

Rules
1. Not used are: answers that are late, that is for a step after which the trajectory has gone on; that have a number which is
   NaN, negative or infinite; that are no `Prediction`; and calls that raise.
2. What is not used is counted by reason, and the latest is described. A predictor without an answer (None) is counted too, as
   ``silent``.
3. A predictor that raises when it is fed or fitted keeps its former fit. A finished trajectory with an unusable number
   is fed to none, and counted as ``bad_steps``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from domain.errors import InvalidRequest
from placement.facts import Prediction
from placement.features import Features, FinishedTrajectory, check
from placement.history import History
from placement.predictors import Predictor

#: The reasons, as metrics and pages show them.
LATE: Final = "late"
NOT_A_NUMBER: Final = "not_a_number"
NEGATIVE: Final = "negative"
INFINITE: Final = "infinite"
NOT_A_PREDICTION: Final = "not_a_prediction"
RAISED: Final = "raised"
SILENT: Final = "silent"
BAD_STEPS: Final = "bad_steps"
#: Of a predictor in another process: it does not answer, or has ended.
HUNG: Final = "hung"
DIED: Final = "died"


def why_unusable(prediction: object) -> str | None:
    """Return the reason why a prediction must not be used; None when it may."""
    if not isinstance(prediction, Prediction):
        return NOT_A_PREDICTION
    numbers = (prediction.tokens, prediction.tool_seconds, prediction.sigma)
    if not all(isinstance(each, (int, float)) for each in numbers):
        return NOT_A_PREDICTION
    if any(map(math.isnan, numbers)):
        return NOT_A_NUMBER
    if any(each < 0 for each in numbers):
        return NEGATIVE
    return INFINITE if any(map(math.isinf, numbers)) else None


class GuardedPredictor:
    """A predictor that always leaves a usable value."""

    def __init__(self, predictor: Predictor, fallback: Predictor | None = None) -> None:
        self._predictor = predictor
        #: Fed beside it; asked where the predictor has no usable answer.
        self._fallback: Predictor = History() if fallback is None else fallback
        #: The predictor's last usable answers.
        self._latest: dict[str, Prediction] = {}
        #: What history says meanwhile.
        self._by_history: dict[str, Prediction] = {}
        #: Step after which a prediction is awaited; without those that have gone on.
        self._awaited: dict[str, int] = {}
        self._unused: Counter[str] = Counter()
        self._problem: str | None = None

    @property
    def name(self) -> str:
        """Name of the predictor."""
        return self._predictor.name

    @property
    def unused(self) -> Mapping[str, int]:
        """Answers that were not used, by reason."""
        return dict(self._unused)

    @property
    def problem(self) -> str | None:
        """The latest answer that was not used, in a sentence that names the predictor."""
        return self._problem

    def observe(self, finished: FinishedTrajectory, texts: Sequence[str] = ()) -> None:
        """Feed a finished trajectory to predictor and fallback; ``texts``: its prompt, then what each step added."""
        try:
            check(finished)
        except InvalidRequest as error:
            self._note(BAD_STEPS, f"is not fed a trajectory: {error}")
            return
        self._fallback.observe(finished)
        try:
            self._predictor.observe(finished, texts)
        except Exception as error:  # any error of a foreign predictor
            self._note(RAISED, f"raises for a finished trajectory: {_text(error)}")

    def refit(self, seed: int) -> bytes | None:
        """Return what the predictor fitted; None when it raises. Runs off the loop."""
        try:
            return self._predictor.refit(seed)
        except Exception as error:
            self._note(RAISED, f"cannot be fitted: {_text(error)}")
            return None

    def use(self, fitted: bytes) -> None:
        """Use what `refit` returned; the former fit stays when the predictor refuses it."""
        try:
            self._predictor.use(fitted)
        except Exception as error:
            self._note(RAISED, f"refuses its fit: {_text(error)}")

    def ended(self, key: str, features: Features) -> Prediction | None:
        """Await a prediction after the step that ended; return what is used until it arrives."""
        self._awaited[key] = features.steps
        if key not in self._latest:
            by_history = self._fallback.predict(features)
            if by_history is not None:
                self._by_history[key] = by_history
        return self.latest(key)

    def predict(self, key: str, features: Features, text: str | None = None) -> Prediction | None:
        """Ask the predictor after a step that ended; return what is used."""
        self.ended(key, features)
        try:
            answer = self._predictor.predict(features, text)
        except Exception as error:
            self._note(RAISED, f"raises after step {features.steps} of {key}: {_text(error)}")
            return self.latest(key)
        return self.arrived(key, features.steps, answer)

    def arrived(self, key: str, steps: int, answer: object) -> Prediction | None:
        """Take an answer for the step ``steps``; return what is used."""
        if self._awaited.get(key) != steps:
            self._note(LATE, f"is late: {key} has gone on since step {steps}")
        elif answer is None:
            self._note(SILENT, f"has no answer after step {steps} of {key}")
        elif (reason := why_unusable(answer)) is not None:
            shown = answer if isinstance(answer, Prediction) else f"a {type(answer).__name__}"
            self._note(reason, f"answers {shown} after step {steps} of {key}")
        else:
            assert isinstance(answer, Prediction)
            self._latest[key] = answer
            self._by_history.pop(key, None)
        return self.latest(key)

    def failed(self, reason: str, what: str) -> None:
        """Count what the caller found by itself; ``what``: a sentence that the predictor's name begins."""
        self._note(reason, what)

    def awaits(self, key: str, steps: int) -> bool:
        """Say whether a prediction after this step is still of use."""
        return self._awaited.get(key) == steps

    def went_on(self, key: str) -> None:
        """Await nothing for a trajectory whose next generation was submitted."""
        self._awaited.pop(key, None)

    def forget(self, key: str) -> None:
        """Forget a trajectory that has finished."""
        self.went_on(key)
        self._latest.pop(key, None)
        self._by_history.pop(key, None)

    def latest(self, key: str) -> Prediction | None:
        """Return what is used for a trajectory."""
        return self._latest.get(key) or self._by_history.get(key)

    def _note(self, reason: str, what: str) -> None:
        self._unused[reason] += 1
        self._problem = f"predictor {self._predictor.name} {what}"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
