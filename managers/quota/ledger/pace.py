"""Pace of an API: how its own answers throttle all callers at once. Pure; times are journal time.

Rules
1. *Pause.* ``Retry-After`` and exhausted limits stop all calls until then. A refusal (429) that
   names no time stops them for half a second, doubled with each further one, 30 s at most.
2. *Circuit.* Failures in a row open it; after the cool-down, one call at a time probes. A good answer
   to a probe closes the circuit, a bad one opens it for twice as long. Answers to calls that were
   granted before the circuit opened change nothing.
3. *Learned limit.* Additive increase, multiplicative decrease (Chiu and Jain, 1989) between declared
   bounds. One round of calls halves it once, however many of them were refused; it grows only while
   it is what limits.
4. *Budget.* One for the resource (as in Finagle's retry budgets): repetitions never multiply.
"""

from __future__ import annotations

from typing import Final

import msgspec

from domain.apis import Feedback, Verdict
from domain.limits import Limits
from domain.resources import MILLI

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
#: Pause after a call that could not be sent at all.
UNREACHABLE_SECONDS: Final = 0.1


class PaceState(msgspec.Struct):
    """Stored state of a pace."""

    paused_until: float = 0.0
    #: Refusals in a row.
    refusals: int = 0
    #: Failures in a row.
    failures: int = 0
    #: End of the open circuit; 0: it is closed. After that time it is half open.
    open_until: float = 0.0
    #: Number of times it opened in a row.
    opened: int = 0
    #: Holder of the call that probes.
    probe: str = ""
    #: Learned limit of concurrent milli-units; 0: none yet.
    learned: int = 0
    #: Time at which the limit was last halved.
    halved_at: float = 0.0
    #: Repetitions left, in thousandths; below 0: as many as the burst.
    budget: int = -1


class Pace:
    """The pace of one API."""

    __slots__ = ("_limits", "state")

    def __init__(self, limits: Limits, state: PaceState | None = None) -> None:
        self._limits = limits
        self.state = state or PaceState()

    def declare(self, limits: Limits) -> None:
        """Follow a changed declaration; the state stays."""
        self._limits = limits
        if not limits.least:
            self.state.learned = 0
        self.state.budget = min(self.state.budget, limits.retries.burst * MILLI)

    def ceiling(self, capacity: int) -> int:
        """Return the learned limit of concurrent milli-units, ``capacity`` at most."""
        if not self._limits.least or not self.state.learned:
            return capacity
        return min(capacity, max(self._limits.least, self.state.learned))

    def admits(self, now: float, calls: int) -> bool:
        """Say whether so many calls may be sent now."""
        state = self.state
        if now < state.paused_until:
            return False
        if not state.open_until:
            return True
        return now >= state.open_until and not state.probe and calls == 1

    def ready_at(self, now: float) -> float:
        """Return the end of the pause or the open circuit; ``now`` without one."""
        return max(now, self.state.paused_until, self.state.open_until)

    def took(self, holder: str, now: float) -> None:
        """Record a grant to ``holder``; in a half-open circuit it probes."""
        if self.state.open_until and now >= self.state.open_until:
            self.state.probe = holder

    def left(self, holder: str) -> None:
        """Record that ``holder`` released its units."""
        if self.state.probe == holder:
            self.state.probe = ""

    def apply_feedback(
        self, feedback: Feedback, granted_at: float, now: float, held: int, capacity: int
    ) -> None:
        """Adapt to the feedback of one attempt, granted at ``granted_at``."""
        state = self.state
        if feedback.pause_seconds:
            state.paused_until = max(state.paused_until, now + feedback.pause_seconds)
        if feedback.verdict is Verdict.FAILING:
            self._failed(feedback, granted_at, now)
            return
        if granted_at >= state.open_until:
            state.failures = state.opened = 0
            state.open_until = 0.0
        if feedback.verdict is Verdict.LIMITED:
            self._refused(feedback, granted_at, now, capacity)
        else:
            self._went_well(held, capacity)

    def _failed(self, feedback: Feedback, granted_at: float, now: float) -> None:
        state, breaker = self.state, self._limits.breaker
        if state.open_until and granted_at < state.open_until:
            return  # it was granted before the circuit opened
        state.failures += 1
        if not feedback.sent:
            state.paused_until = max(state.paused_until, now + UNREACHABLE_SECONDS)
        if state.open_until or state.failures >= breaker.failures:
            rest = breaker.cooldown_seconds * 2 ** min(state.opened, 20)
            state.open_until = now + min(breaker.longest_seconds, rest)
            state.opened += 1
            state.failures = 0
            state.probe = ""

    def _refused(self, feedback: Feedback, granted_at: float, now: float, capacity: int) -> None:
        state = self.state
        if granted_at < state.halved_at:
            return  # the same round
        state.refusals += 1
        state.halved_at = now
        if not feedback.pause_seconds:
            pause = FIRST_PAUSE_SECONDS * 2 ** min(state.refusals - 1, 10)
            state.paused_until = max(state.paused_until, now + min(LONGEST_PAUSE_SECONDS, pause))
        if self._limits.least:
            half = self.ceiling(capacity) // 2 // MILLI * MILLI
            state.learned = max(self._limits.least, half)

    def _went_well(self, held: int, capacity: int) -> None:
        state, retries = self.state, self._limits.retries
        state.refusals = 0
        most = retries.burst * MILLI
        left = most if state.budget < 0 else state.budget
        state.budget = min(most, left + round(retries.ratio * MILLI))
        if self._limits.least and state.learned and 2 * held >= state.learned:
            state.learned = min(capacity, state.learned + MILLI * MILLI // state.learned)

    def take_retry(self) -> bool:
        """Take one retry from the budget; False when it is empty."""
        state = self.state
        if state.budget < 0:
            state.budget = self._limits.retries.burst * MILLI
        if state.budget < MILLI:
            return False
        state.budget -= MILLI
        return True

    def hindrance(self, now: float) -> str:
        """Return why no call may be sent now; empty when one may."""
        state = self.state
        if now < state.open_until:
            return f"its circuit is open after failures, for another {state.open_until - now:.3g} s"
        if now < state.paused_until:
            return f"it requested a pause, for another {state.paused_until - now:.3g} s"
        if state.open_until and state.probe:
            return "its circuit is half open: one call probes whether it works again"
        return ""
