"""Holding a lease: renewed in the background, given back at the end.

A lease that is not renewed in time is freed by the server, so a dead trainer blocks nothing. The
other side of it: a holder that could not renew must stop using the resource. `check` says so at any
moment, and leaving the ``with`` block says so at the latest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from tangram_client.errors import LeaseLost, Refused, TangramClientError
from tangram_client.retry import RetryPolicy, is_temporary

if TYPE_CHECKING:
    from tangram_client.clock import Clock
    from tangram_client.models import ActionView

#: Longest pause between two looks at a lease that is not granted yet.
GRANT_PAUSE_SECONDS = 0.5

RenewNow = Callable[[str, RetryPolicy], None]
RenewSoon = Callable[[str, RetryPolicy], Awaitable[None]]


class HeldLease:
    """A lease, as its holder sees it."""

    def __init__(self, action: ActionView, ttl_seconds: float, clock: Clock) -> None:
        self.action = action
        self.ttl_seconds = ttl_seconds
        #: Why it ended under its holder; None while it holds.
        self.lost: str | None = None
        #: What the API said to the holder; sent when the lease is given back.
        self.said: dict[str, Any] = {}
        self._clock = clock
        self._renewed_at = clock.now()

    @property
    def id(self) -> str:
        return self.action.id

    def report(
        self, status: int, retry_after_seconds: float | None = None, resource: str | None = None
    ) -> None:
        """Report what the API answered: when it limits calls, or fails, all its callers slow down.

        ``resource`` is needed only when the lease holds several.
        """
        said = {"status": status, "retry_after_seconds": retry_after_seconds, "resource": resource}
        self.said = {name: value for name, value in said.items() if value is not None}

    def check(self) -> None:
        """Raise LeaseLost when the resource is not ours any more."""
        if self.lost is not None:
            raise LeaseLost(f"{self.id} ended under its holder: {self.lost}")

    @property
    def renew_after_seconds(self) -> float:
        return self.ttl_seconds / 3

    @property
    def policy(self) -> RetryPolicy:
        """Patience with one renewal: over before the next one is due."""
        return RetryPolicy(total_seconds=self.renew_after_seconds)

    def renewed(self) -> None:
        self._renewed_at = self._clock.now()

    def renewal_failed(self, error: TangramClientError) -> None:
        """Decide whether the lease is gone or may still be renewed."""
        final = isinstance(error, Refused) and not is_temporary(error)
        if final or self._clock.now() - self._renewed_at >= self.ttl_seconds:
            self.lost = str(error)


def grant_pauses() -> Iterator[float]:
    """Yield the pauses between looks for a grant: waits on the server end only with the action."""
    pause = 0.005
    while True:
        yield pause
        pause = min(GRANT_PAUSE_SECONDS, 2 * pause)


def refused_grant(action: ActionView) -> LeaseLost:
    """Return the error for a lease that ended before it was granted."""
    return LeaseLost(f"{action.id} was never granted: {action.outcome}, {action.detail or 'ended'}")


class ThreadKeeper:
    """Renews from a thread until it is stopped."""

    def __init__(self, lease: HeldLease, clock: Clock, renew: RenewNow) -> None:
        self._lease, self._clock, self._renew = lease, clock, renew
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease {lease.id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        lease = self._lease
        while lease.lost is None and not self._clock.wait(self._stop, lease.renew_after_seconds):
            try:
                self._renew(lease.id, lease.policy)
                lease.renewed()
            except TangramClientError as error:
                lease.renewal_failed(error)


class TaskKeeper:
    """Renews from an asyncio task until it is stopped."""

    def __init__(self, lease: HeldLease, clock: Clock, renew: RenewSoon) -> None:
        self._lease, self._clock, self._renew = lease, clock, renew
        self._task = asyncio.create_task(self._keep(), name=f"lease {lease.id}")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep(self) -> None:
        lease = self._lease
        while lease.lost is None:
            await self._clock.asleep(lease.renew_after_seconds)
            try:
                await self._renew(lease.id, lease.policy)
                lease.renewed()
            except TangramClientError as error:
                lease.renewal_failed(error)
