"""Checks of one worker: when the next one is due, and which verdict those so far give. Pure.

Rules
1. A worker is unhealthy after `FAILED_CHECKS` in a row without an answer, and healthy after `ANSWERED_CHECKS` with one.
2. Checks that decide follow each other sooner. A worker that stays unhealthy is asked after growing pauses, so that it is not flooded
   when it starts, and used within `most_seconds` once it answers again.
3. A verdict of another process (a router that could not reach the worker) makes the checks before it void.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

FAILED_CHECKS: Final = 3
ANSWERED_CHECKS: Final = 2


class CheckPauses(msgspec.Struct, frozen=True):
    """Pauses between checks, in seconds."""

    #: Of a worker whose health is known and good.
    interval_seconds: float = 5.0
    #: While checks decide, and the first one of an unhealthy worker.
    decide_seconds: float = 1.0
    #: Most of an unhealthy worker.
    most_seconds: float = 30.0


@dataclass(slots=True)
class WorkerChecks:
    """What the checks of one worker have found."""

    pauses: CheckPauses
    #: Above 0: answered in a row; below 0: failed in a row.
    in_a_row: int = 0
    #: Why the latest one failed; empty: it was answered.
    why: str = ""
    due_at: float = 0.0
    #: Registered reason that the checks so far know of.
    _known: str = ""

    def follow(self, registered: str, at: float) -> None:
        """Take in what is registered; ``registered``: why the worker is unhealthy, empty for a healthy one."""
        if registered and registered != self._known and self.in_a_row > 0:
            self.in_a_row = 0
            self.due_at = min(self.due_at, at + self.pauses.decide_seconds)
        self._known = registered

    def answered(self, at: float) -> None:
        """Note a check with an answer."""
        self.in_a_row, self.why = max(self.in_a_row, 0) + 1, ""
        decided = self.in_a_row >= ANSWERED_CHECKS
        self.due_at = at + (self.pauses.interval_seconds if decided else self.pauses.decide_seconds)

    def failed(self, why: str, at: float) -> None:
        """Note a check without an answer."""
        self.in_a_row, self.why = min(self.in_a_row, 0) - 1, why
        over = max(0, -self.in_a_row - FAILED_CHECKS)
        pause = self.pauses.decide_seconds * 2 ** min(over, 16)
        self.due_at = at + min(pause, self.pauses.most_seconds)

    def verdict(self) -> str | None:
        """Return why the worker is unhealthy, empty for a healthy one, None where the checks do not decide."""
        if self.in_a_row <= -FAILED_CHECKS:
            return self._known or f"{FAILED_CHECKS} health checks failed: {self.why}"
        return "" if self.in_a_row >= ANSWERED_CHECKS else None
