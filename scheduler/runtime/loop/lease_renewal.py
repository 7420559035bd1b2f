"""The leader shows life while it is busy, and only while it gets on.

A pass over a hundred thousand deadlines, the replay of a long journal or the decoding of a large
snapshot may take longer than the lease. Were the leader silent meanwhile, a standby would take
over, begin the same work and lose the lease in its turn, for ever. So a thread of its own renews
the lease. It stops doing so when the loop has told of no progress for ``hung_after_seconds``: a
loop that hangs is replaced, only later than one that died.

Safety does not rest on this: every write carries the epoch (`leadership`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Final

import redis

from domain.errors import Fenced
from scheduler.runtime.loop.leadership import Leadership

log = logging.getLogger(__name__)

#: Longest that one pass, or one step of a recovery, may take before the loop counts as hung.
HUNG_AFTER_SECONDS: Final = 60.0


class Breath:
    """Renews a lease in the background from its beginning to its end (a context manager)."""

    def __init__(
        self, leadership: Leadership, hung_after_seconds: float = HUNG_AFTER_SECONDS
    ) -> None:
        self._leadership = leadership
        self._hung_after_seconds = hung_after_seconds
        self._progress_at = monotonic()
        self._over = Event()
        self._thread = Thread(target=self._breathe, name="breath", daemon=True)

    def __enter__(self) -> Breath:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Joined, so that no late renewal undoes a resignation.
        self._over.set()
        self._thread.join()

    def progress(self) -> None:
        """Say that the loop gets on."""
        self._progress_at = monotonic()

    def _breathe(self) -> None:
        period = self._leadership.lease_seconds / 4
        while not self._over.wait(period):
            if monotonic() - self._progress_at > self._hung_after_seconds:
                log.error(
                    "no progress for %.0f s: this loop shows no more life, so that another leads",
                    self._hung_after_seconds,
                )
                return
            with suppress(redis.RedisError):  # the loop meets the same and starts over
                try:
                    self._leadership.renew_aside()
                except Fenced:
                    return  # the loop finds out by its next write
