"""A service on one chunk: its state, the requests that lock it, and how long its restores take.

Pure: the caller starts and stops the service, and reports here what happened and when. Transitions
are `domain.services.SERVICE_TRANSITIONS`; an illegal one raises and changes nothing.

Rules
1. `lock` is taken when an action is granted the chunk and released when the action has ended, however
   it ended; while there is a lock, `DRAIN_BEGAN` is refused. So a service that is being restored for
   an action cannot be evicted before it has answered (no thrashing within one grant).
2. `serves` is the only permission to send a request: the service is resident, and the holder has a lock.
3. A holder that is cancelled during a restore releases its lock; the restore finishes, and the
   service stays cached.
4. When the service dies, its locks stay with their holders, whose actions fail or are granted again;
   nothing is served under them until it is resident again.
"""

from __future__ import annotations

from domain.errors import Conflict
from domain.services import SERVICE_TRANSITIONS, ServiceEvent, ServiceState

#: Weight of the newest restore in the expectation; older ones fade by half in about two.
_NEWEST = 0.3


class ServiceInstance:
    """One service on one chunk."""

    def __init__(
        self, service: str, units: tuple[int, ...], expected_restore_seconds: float
    ) -> None:
        """``expected_restore_seconds`` is used until a restore was measured."""
        self.service = service
        self.units = units
        self.state = ServiceState.COLD
        #: Expected time of the next restore: the first one as measured, then a moving average.
        self.restore_seconds = expected_restore_seconds
        self.restores = 0
        self.deaths = 0
        self._locks: set[str] = set()
        self._began: float | None = None

    @property
    def locks(self) -> frozenset[str]:
        """Holders that keep it from being evicted."""
        return frozenset(self._locks)

    @property
    def evictable(self) -> bool:
        """It is resident and has no lock."""
        return self.state is ServiceState.RESIDENT and not self._locks

    def serves(self, holder: str) -> bool:
        """Say whether a request of ``holder`` may be sent now (rule 2)."""
        return self.state is ServiceState.RESIDENT and holder in self._locks

    def lock(self, holder: str) -> None:
        """Lock it for ``holder``; idempotent. Raises Conflict while it drains."""
        if self.state is ServiceState.DRAINING:
            raise Conflict(f"{self.service} is leaving {self.units}")
        self._locks.add(holder)

    def unlock(self, holder: str) -> None:
        """Release the lock of ``holder``; without a lock, do nothing."""
        self._locks.discard(holder)

    def handle(self, event: ServiceEvent, at: float) -> ServiceState:
        """Apply an event of time ``at`` (seconds); return the new state. Raises Conflict."""
        following = SERVICE_TRANSITIONS[self.state].get(event)
        if following is None:
            raise Conflict(f"{self.service} on {self.units} is {self.state}, so not {event}")
        if event is ServiceEvent.DRAIN_BEGAN and self._locks:
            holders = ", ".join(sorted(self._locks))
            raise Conflict(f"{self.service} on {self.units} is locked by {holders}")
        if event is ServiceEvent.RESTORE_BEGAN:
            self._began = at
        elif event is ServiceEvent.RESTORED:
            self._measure(at)
        elif event is ServiceEvent.DIED:
            self.deaths += 1
        self.state = following
        return following

    def seconds_until_served(self, at: float) -> float:
        """Return the expected time from ``at`` until it answers, if it were wanted then."""
        if self.state is ServiceState.RESIDENT:
            return 0.0
        if self.state is ServiceState.RESTORING and self._began is not None:
            return max(0.0, self._began + self.restore_seconds - at)
        return self.restore_seconds

    def late(self, at: float, patience_seconds: float) -> bool:
        """Say whether its restore takes longer than twice the expected time.

        ``patience_seconds`` is the least that counts as late.
        """
        if self.state is not ServiceState.RESTORING or self._began is None:
            return False
        return at - self._began > max(patience_seconds, 2 * self.restore_seconds)

    def _measure(self, at: float) -> None:
        took = 0.0 if self._began is None else max(0.0, at - self._began)
        weight = 1.0 if self.restores == 0 else _NEWEST
        self.restore_seconds += weight * (took - self.restore_seconds)
        self.restores += 1
