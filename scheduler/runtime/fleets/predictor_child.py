"""Process of one predictor: answers the messages of its keeper, one after the other, until the connection ends.

    python -m scheduler.runtime.fleets.predictor_child FILE_DESCRIPTOR

Whatever a predictor does, it does it here: the keeper waits for nothing. What raises is answered as such. What a package prints
goes to the standard error. The process dies with its keeper.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import BinaryIO, Final

from placement.facts import Prediction
from placement.predictions import NOT_A_PREDICTION, RAISED
from placement.predictors import Predictor, load
from scheduler.runtime.fleets.predictor_messages import (
    LENGTH,
    AskMemory,
    AskPrediction,
    FitPredictor,
    FittedPredictor,
    FromPredictor,
    MakePredictor,
    ObserveTrajectory,
    PredictorAnswer,
    PredictorFailed,
    PredictorNote,
    RecallMemory,
    Remembered,
    ToPredictor,
    UseFit,
    decode_request,
    frame,
)

_PR_SET_PDEATHSIG: Final = 1
#: Decisions of the loop and requests come first.
_NICENESS: Final = 5


def main(descriptor: int) -> None:
    """Serve the keeper at a socket that the process inherited."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(_NICENESS)
    os.dup2(2, 1)
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rb") as asked:
        first = _read(asked)
        if not isinstance(first, MakePredictor):
            return
        try:
            predictor = load().make(first.name)
        except Exception as error:  # any error of a foreign module
            connection.sendall(frame(PredictorFailed(str(error), final=True)))
            return
        connection.sendall(frame(PredictorNote(_note(predictor))))
        while (message := _read(asked)) is not None:
            answer = _answer(predictor, message)
            if answer is not None:
                connection.sendall(frame(answer))


def _read(asked: BinaryIO) -> ToPredictor | None:
    head = asked.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = asked.read(length)
    return decode_request(data) if len(data) == length else None


def _answer(predictor: Predictor, message: ToPredictor) -> FromPredictor | None:
    """Do what a message says; return the answer."""
    if isinstance(message, AskPrediction):
        return _predicted(predictor, message)
    if isinstance(message, FitPredictor):
        try:
            return FittedPredictor(bytes(predictor.refit(message.seed)))
        except Exception as error:  # any error of a foreign predictor, here and below
            return FittedPredictor(failed=_text(error))
    try:
        if isinstance(message, ObserveTrajectory):
            predictor.observe(message.finished)
        elif isinstance(message, UseFit):
            predictor.use(message.fitted)
            return PredictorNote(_note(predictor), fitted=True)
        elif isinstance(message, AskMemory):
            return Remembered(bytes(predictor.remember()))
        elif isinstance(message, RecallMemory):
            predictor.recall(message.memory)
    except Exception as error:
        if isinstance(message, AskMemory):
            return Remembered(b"")
        verb = "uses a fit" if isinstance(message, UseFit) else "learns"
        return PredictorFailed(f"raises when it {verb}: {_text(error)}")
    return None


def _predicted(predictor: Predictor, asked: AskPrediction) -> PredictorAnswer:
    key, features = asked.trajectory, asked.features
    try:
        said: object = predictor.predict(features)
    except Exception as error:
        what = f"raises after step {features.steps} of {key}: {_text(error)}"
        return PredictorAnswer(key, features.steps, reason=RAISED, what=what)
    if said is None:
        return PredictorAnswer(key, features.steps)
    numbers = (
        (said.tokens, said.tool_seconds, said.sigma) if isinstance(said, Prediction) else ("",)
    )
    if not all(isinstance(each, (int, float)) for each in numbers):
        what = f"answers a {type(said).__name__} after step {features.steps} of {key}, not a Prediction of numbers"
        return PredictorAnswer(key, features.steps, reason=NOT_A_PREDICTION, what=what)
    tokens, tool_seconds, sigma = (float(each) for each in numbers)
    source = str(getattr(said, "source", "") or predictor.name)
    return PredictorAnswer(key, features.steps, (tokens, tool_seconds, sigma), source)


def _note(predictor: Predictor) -> str:
    """Return what a predictor says of itself; members beyond the protocol are its own."""
    return str(getattr(predictor, "problem", None) or "")


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
