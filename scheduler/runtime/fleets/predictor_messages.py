"""Messages between the keeper and the process of a predictor: msgpack, each behind its length in 4 bytes.

The keeper sends `ToPredictor` and gets `FromPredictor`, in the order of what it sent. `MakePredictor` is first, once.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from placement.features import Features, FinishedTrajectory

#: No message is longer: the memory of a predictor is the largest one.
MOST_BYTES: Final = 256 * 2**20
LENGTH: Final = struct.Struct("<I")


class _Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    pass


class MakePredictor(_Message, frozen=True):
    """Make the predictor ``name``."""

    name: str


class RecallMemory(_Message, frozen=True):
    """Restore what `Remembered` had."""

    memory: bytes


class ObserveTrajectory(_Message, frozen=True):
    """Learn from a finished trajectory."""

    finished: FinishedTrajectory


class AskPrediction(_Message, frozen=True):
    """Predict what is left; answered by `PredictorAnswer`."""

    trajectory: str
    features: Features


class AskMemory(_Message, frozen=True):
    """Return the state; answered by `Remembered`."""


class FitPredictor(_Message, frozen=True):
    """Fit; answered by `FittedPredictor`."""

    seed: int


class UseFit(_Message, frozen=True):
    """Predict by a fit from now on; answered by `PredictorNote`."""

    fitted: bytes


ToPredictor = (
    MakePredictor | RecallMemory | ObserveTrajectory | AskPrediction | AskMemory | FitPredictor | UseFit
)  # fmt: skip


class PredictorAnswer(_Message, frozen=True):
    """What a predictor said."""

    trajectory: str
    #: After which it was asked.
    steps: int
    #: Tokens, tool seconds, sigma; None: it has no answer, or ``reason`` says why there is none.
    numbers: tuple[float, float, float] | None = None
    source: str = ""
    #: Reason and sentence of an answer that is none (`placement.predictions`).
    reason: str = ""
    what: str = ""


class Remembered(_Message, frozen=True):
    """State of a predictor; empty: it has none, or raised."""

    memory: bytes


class FittedPredictor(_Message, frozen=True):
    """What was fitted."""

    fitted: bytes = b""
    #: Why nothing could be; empty: it was, though perhaps to nothing.
    failed: str = ""


class PredictorNote(_Message, frozen=True):
    """What a predictor says of itself, after a fit was taken into use or it was made."""

    note: str
    #: The fit is in use.
    fitted: bool = False


class PredictorFailed(_Message, frozen=True):
    """Something else than a prediction raised."""

    what: str
    #: It cannot be made: nothing else follows.
    final: bool = False


FromPredictor = PredictorAnswer | Remembered | FittedPredictor | PredictorNote | PredictorFailed

_encoder: Final = msgspec.msgpack.Encoder()
decode_request: Final = msgspec.msgpack.Decoder(ToPredictor).decode
decode_answer: Final = msgspec.msgpack.Decoder(FromPredictor).decode


def frame(message: ToPredictor | FromPredictor) -> bytes:
    """Return a message with its length before it. Raises ValueError: it is too long."""
    data = _encoder.encode(message)
    if len(data) > MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes is longer than {MOST_BYTES}")
    return LENGTH.pack(len(data)) + data
