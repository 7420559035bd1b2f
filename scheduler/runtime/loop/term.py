"""Term of a leader: its machine and its place in the journal, from one recovery to the next."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from domain.advice import StartRange
from scheduler.core.advice.calibration import StartCalibration
from scheduler.core.advice.facts import ActionStatus
from scheduler.core.machine import Machine

#: Difference of two readings that says nothing about the clocks.
STEADY_SECONDS = 0.05


class JournalClock:
    """Journal time: seconds that never run backward, across restarts and leaders.

    Starts at the wall clock or at the newest journal time, whichever is later, and follows the
    monotonic clock from there; steps of the wall clock do not change it.
    """

    def __init__(self, last_at: float = 0.0) -> None:
        self._start = max(last_at, time.time())
        self._origin = time.monotonic()
        self._offset = 0.0

    def now(self) -> float:
        """Return journal time."""
        return self._start + (time.monotonic() - self._origin)

    def wall_offset(self) -> float:
        """Return wall clock minus journal time; the same until they have moved by more than `STEADY_SECONDS`.

        The clocks are read one after the other, so each reading differs, and an instant of the journal would be shown
        as another one each time.
        """
        found = time.time() - self.now()
        if abs(found - self._offset) > STEADY_SECONDS:
            self._offset = found
        return self._offset


@dataclass
class Term:
    """What a leader has recovered and continues with."""

    machine: Machine
    clock: JournalClock
    #: The newest entry of the journal, and its number.
    journal_id: str
    seq: int
    #: Predictions of this term, compared with starts.
    calibration: StartCalibration = field(default_factory=StartCalibration)

    def range_of(self, status: ActionStatus) -> StartRange | None:
        """Return when a waiting action may start; None: unknown."""
        return self.calibration.range_of(status, self.machine.state.now)
