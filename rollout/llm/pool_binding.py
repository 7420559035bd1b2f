"""Binding of a rollout to a backend of its pool: it stays with one, and changes when a call failed or the backend is gone.

The first seat is the ledger's choice (least in flight). A later one is chosen here, because a change between two turns needs
no other grant: the rollout holds one seat of the pool as before.

Rules
1. The choice is a function of the rollout and the backends: rollouts that lose a backend at once are spread over the others,
   and a rollout that is bound again by another worker gets the same backend.
2. A backend that failed is avoided as long as `BackendHealth` says so, unless there is no other.
3. Without any backend the rollout waits, in ``backends``, which does not count the time (I9).
4. When the lease of RUN is followed by another one, the rollout is bound to the seat of that one.
5. A failed call makes a backend avoided for `FIRST_SECONDS`, each further one in a row for twice as long, at most
   `MOST_SECONDS`. One answer forgets all failures. Avoiding is a worker's own: backends are drained and removed by the
   scheduler alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rollout.ports import Seat

FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Failures:
    in_a_row: int = 0
    avoided_until: float = 0.0
    reason: str = ""


class BackendHealth:
    """Failures of the backends that a worker has called."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}

    def failed(self, backend: str, reason: str, at: float) -> None:
        """Note that a call failed."""
        found = self._failures.setdefault(backend, _Failures())
        found.in_a_row += 1
        seconds = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(found.in_a_row - 1, 16))
        found.avoided_until = at + seconds
        found.reason = reason

    def answered(self, backend: str) -> None:
        """Note that a call succeeded."""
        self._failures.pop(backend, None)

    def avoided(self, at: float) -> dict[str, str]:
        """Return the backends to avoid, with the reason of each."""
        return {
            backend: found.reason
            for backend, found in self._failures.items()
            if at < found.avoided_until
        }


#: Returns the backends of the pool that take calls; with True, waits for the first one.
BackendsOf = Callable[[bool], Awaitable[Sequence[Seat]]]


class PoolBinding:
    """The backend that a rollout is bound to (`rollout.llm.sampler.SeatBinding`)."""

    def __init__(
        self,
        rollout: str,
        seat: Seat,
        backends: BackendsOf,
        health: BackendHealth,
        now: Callable[[], float],
        leased: Callable[[], Seat | None] = lambda: None,
    ) -> None:
        """``leased``: returns the seat that the lease has now."""
        self._rollout = rollout
        self._seat = seat
        self._backends = backends
        self._health = health
        self._now = now
        self._leased = leased
        self._last_leased = leased()

    @property
    def seat(self) -> Seat:
        """Return the present seat."""
        leased = self._leased()
        if leased != self._last_leased:
            self._last_leased = leased
            self._seat = leased or self._seat
        return self._seat

    async def registered(self) -> Sequence[Seat]:
        """Return the backends that take calls."""
        return await self._backends(False)

    async def rebind(self, reason: str) -> Seat:
        """Bind again, and wait where there is no backend: to the present one where it takes calls and did not fail."""
        seats: Sequence[Seat] = ()
        while not seats:
            seats = await self._backends(True)
        avoided = self._health.avoided(self._now())
        present = [seat for seat in seats if seat.backend == self._seat.backend]
        stays = bool(present) and present[0].backend not in avoided
        self._seat = present[0] if stays else choose(self._rollout, seats, avoided)
        return self._seat


def choose(rollout: str, seats: Sequence[Seat], avoided: Collection[str]) -> Seat:
    """Return the backend of a rollout among at least one; an avoided one only where all are."""
    usable = [seat for seat in seats if seat.backend not in avoided] or list(seats)
    return max(usable, key=lambda seat: _rank(rollout, seat.backend))


def _rank(rollout: str, backend: str) -> bytes:
    """Return the rank of a backend for a rollout (rendezvous hashing)."""
    return hashlib.blake2b(f"{rollout}\0{backend}".encode(), digest_size=8).digest()
