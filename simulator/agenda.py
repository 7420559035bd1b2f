"""Virtual time: what happens next, and when.

Entries of one moment come out in the order in which they were entered, so a run has one order of
events. No entry is removed before its time: an entry that is superseded stays, and its owner recognises
it by a version.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Step = Callable[[Any], None]


class Agenda:
    """A heap of (moment, what to call, its argument), and the clock that it drives."""

    __slots__ = ("_entered", "_heap", "now")

    def __init__(self) -> None:
        #: Virtual seconds since the start.
        self.now = 0.0
        self._entered = 0
        self._heap: list[tuple[float, int, Step, Any]] = []

    def at(self, moment: float, step: Step, argument: Any = None) -> None:
        """Call ``step(argument)`` at ``moment``, or now when that has passed."""
        self._entered += 1
        now = self.now
        heappush(self._heap, (moment if moment > now else now, self._entered, step, argument))

    def run_until(self, moment: float) -> None:
        """Call everything up to ``moment``, that included, and stop there."""
        heap = self._heap
        while heap and heap[0][0] <= moment:
            self.now, _, step, argument = heappop(heap)
            step(argument)
        self.now = moment

    def advance(self) -> bool:
        """Move to the next entry and call it; False when there is none."""
        if not self._heap:
            return False
        self.now, _, step, argument = heappop(self._heap)
        step(argument)
        return True
