"""A service on one chunk: where it is, who keeps it awake, how long its restores take.

Pure: somebody else starts and stops things, and says here what happened and when. Transitions are
`domain.services.SERVICE_TRANSITIONS`; an illegal one raises and changes nothing.

Rules
1. `lock` is taken when an action is granted the chunk and given back when it ended, however it
   ended; while there is one, `DRAIN_BEGAN` is refused. So a service that is being restored for
   somebody cannot be taken away before it has answered (no thrashing within one grant).
2. `serves` is the only permission to send a request: resident, and the asker holds a lock.
3. Who cancels during a restore gives its lock back; the restore goes on, and ends cached.
4. When it dies the locks stay with their holders, whose actions fail or are granted again; nothing
   is served under them until it is resident again.
"""

from __future__ import annotations

from domain.errors import Conflict
from domain.services import SERVICE_TRANSITIONS, ServiceEvent, ServiceState

#: Weight of the newest restore in the expectation; older ones fade by half in about two.
_NEWEST = 0.3


class Instance:
    """One service on one chunk."""

    def __init__(
        self, service: str, units: tuple[int, ...], expected_restore_seconds: float
    ) -> None:
        """``expected_restore_seconds`` is what to go by until a restore was measured."""
        self.service = service
        self.units = units
        self.state = ServiceState.COLD
        #: How long the next restore will take, as far as was measured.
        self.restore_seconds = expected_restore_seconds
        self.restores = 0
        self.deaths = 0
        self._locks: set[str] = set()
        self._began: float | None = None

    @property
    def locks(self) -> frozenset[str]:
        """Who keeps it awake."""
        return frozenset(self._locks)

    @property
    def evictable(self) -> bool:
        """It may begin to drain."""
        return self.state is ServiceState.RESIDENT and not self._locks

    def serves(self, holder: str) -> bool:
        """Say whether a request of ``holder`` may be sent now (rule 2)."""
        return self.state is ServiceState.RESIDENT and holder in self._locks

    def lock(self, holder: str) -> None:
        """Keep it awake for ``holder``; again is the same. Raises Conflict while it drains."""
        if self.state is ServiceState.DRAINING:
            raise Conflict(f"{self.service} is leaving {self.units}")
        self._locks.add(holder)

    def unlock(self, holder: str) -> None:
        """``holder`` needs it no more; who has no lock is not an error."""
        self._locks.discard(holder)

    def handle(self, event: ServiceEvent, at: float) -> ServiceState:
        """Note what happened at ``at`` (seconds); return where it is now. Raises Conflict."""
        following = SERVICE_TRANSITIONS[self.state].get(event)
        if following is None:
            raise Conflict(f"{self.service} on {self.units} is {self.state}, so not {event}")
        if event is ServiceEvent.DRAIN_BEGAN and self._locks:
            keepers = ", ".join(sorted(self._locks))
            raise Conflict(f"{self.service} on {self.units} is kept awake by {keepers}")
        if event is ServiceEvent.RESTORE_BEGAN:
            self._began = at
        elif event is ServiceEvent.RESTORED:
            self._measure(at)
        elif event is ServiceEvent.DIED:
            self.deaths += 1
        self.state = following
        return following

    def seconds_until_served(self, at: float) -> float:
        """Return how long until it can answer, if it were wanted at ``at``."""
        if self.state is ServiceState.RESIDENT:
            return 0.0
        if self.state is ServiceState.RESTORING and self._began is not None:
            return max(0.0, self._began + self.restore_seconds - at)
        return self.restore_seconds

    def late(self, at: float, patience_seconds: float) -> bool:
        """Say whether it is being restored for longer than it should take: twice what was measured.

        ``patience_seconds`` is the least that counts as late, and all there is to go by at first.
        """
        if self.state is not ServiceState.RESTORING or self._began is None:
            return False
        return at - self._began > max(patience_seconds, 2 * self.restore_seconds)

    def _measure(self, at: float) -> None:
        took = 0.0 if self._began is None else max(0.0, at - self._began)
        share = 1.0 if self.restores == 0 else _NEWEST
        self.restore_seconds += share * (took - self.restore_seconds)
        self.restores += 1
