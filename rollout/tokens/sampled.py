"""Sampled tokens: the ids and log-probabilities of one response, checked before they are used.

An answer of an engine is input like any other. What fails a check is not recorded and not trained on: the call is repeated
at another backend (`rollout.llm.sampler`).

Rules
1. Ids are integers below the model's vocabulary size, at least one, at most as many as were asked for.
2. Log-probabilities are as many as the ids, finite, and at most 0 (a rounding error aside); an engine that gives none
   gives None, which is refused where the caller needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
LogProbs = NDArray[np.float32]

#: How far above 0 the rounding of an engine may lift a log-probability.
_ROUNDING: Final = 1e-2
_MOST_ID: Final = 2**31 - 1


class InvalidTokens(ValueError):
    """Tokens that no model can have sampled; says which and why."""


@dataclass(frozen=True, eq=False, slots=True)
class SampledTokens:
    """A checked response: int32 ids, and float32 log-probabilities or None."""

    ids: Ids
    logprobs: LogProbs | None
    #: ``stop``, ``length`` or what the engine calls it.
    finish: str = "stop"

    def __len__(self) -> int:
        return len(self.ids)


def checked_tokens(
    ids: Sequence[int],
    logprobs: Sequence[float | None] | None,
    *,
    vocabulary_size: int,
    most: int,
    finish: str = "stop",
    need_logprobs: bool = True,
) -> SampledTokens:
    """Return an answer's tokens as arrays. Raises InvalidTokens."""
    if not 0 < len(ids) <= most:
        raise InvalidTokens(f"{len(ids)} tokens, where 1 to {most} were asked for")
    found = np.asarray(ids)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InvalidTokens("ids that are not integers")
    limit = min(vocabulary_size, _MOST_ID)
    wrong = np.flatnonzero((found < 0) | (found >= limit))
    if len(wrong):
        at = int(wrong[0])
        raise InvalidTokens(f"token {at} has the id {found[at]}; the vocabulary has {limit}")
    if logprobs is None and need_logprobs:
        raise InvalidTokens("no log-probabilities")
    values = None if logprobs is None else _checked_logprobs(logprobs, len(ids))
    return SampledTokens(found.astype(np.int32), values, finish)


def _checked_logprobs(logprobs: Sequence[float | None], count: int) -> LogProbs:
    if len(logprobs) != count:
        raise InvalidTokens(f"{len(logprobs)} log-probabilities for {count} tokens")
    try:
        values = np.array([np.nan if each is None else each for each in logprobs], dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidTokens("log-probabilities that are not numbers") from error
    wrong = np.flatnonzero(~np.isfinite(values) | (values > _ROUNDING))
    if len(wrong):
        at = int(wrong[0])
        raise InvalidTokens(f"token {at} has the log-probability {logprobs[at]}")
    return np.minimum(values, np.float32(0.0))
