"""Retry policy: attempts, pauses and jitter.

A retry is safe because it is the same request: every POST carries an Idempotency-Key that was made
once for the logical submission, so the server answers a repeat with the first answer instead of
acting again. What remains is politeness: exponential backoff, jitter, ``Retry-After``, an end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tangram_client.errors import Busy, ConflictError, Refused, TangramClientError, Unreachable

#: A gateway in between lost its server; the request may or may not have arrived.
_LOST_IN_BETWEEN = frozenset({502, 504})


def seeded_jitter(seed: int | None = None) -> Callable[[], float]:
    """Return a source of numbers in [0, 1) for the jitter; the same seed gives the same numbers."""
    return random.Random(seed).random


@dataclass(frozen=True)
class RetryPolicy:
    """Bounds of the patience with one call; ``RetryPolicy(attempts=1)`` never retries."""

    attempts: int = 8
    #: No new attempt starts later than this after the first one.
    total_seconds: float = 60.0
    first_delay_seconds: float = 0.1
    factor: float = 2.0
    max_delay_seconds: float = 5.0
    jitter: Callable[[], float] = field(default_factory=seeded_jitter, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts: give at least 1")
        if not 0 < self.first_delay_seconds <= self.max_delay_seconds or self.factor < 1:
            raise ValueError(
                "delays: give 0 < first_delay_seconds <= max_delay_seconds, factor >= 1"
            )

    def delay_seconds(
        self, error: TangramClientError, *, attempt: int, passed_seconds: float
    ) -> float | None:
        """Return the pause before attempt ``attempt + 1``, or None when this was the last one.

        With ``Retry-After`` the pause is never shorter than asked; the jitter comes on top, so that
        a thousand refused callers do not come back in the same instant.
        """
        if attempt >= self.attempts or not is_temporary(error):
            return None
        backoff = self.first_delay_seconds * self.factor ** (attempt - 1)
        delay = min(backoff, self.max_delay_seconds) * (0.5 + 0.5 * self.jitter())
        asked = error.retry_after_seconds if isinstance(error, Refused) else None
        if asked is not None:
            delay += asked
        return None if passed_seconds + delay > self.total_seconds else delay


def is_temporary(error: TangramClientError) -> bool:
    """Say whether the same call may succeed later."""
    if isinstance(error, ConflictError):
        # The first request with this key is still being worked on.
        return error.retry_after_seconds is not None
    if isinstance(error, Refused) and error.problem.status in _LOST_IN_BETWEEN:
        return True
    return isinstance(error, (Unreachable, Busy))
