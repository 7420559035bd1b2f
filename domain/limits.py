"""Limits on one cluster-wide resource over time, and shares of projects.

The capacity (`Config.resources`) limits concurrent use. These limits apply in addition: quotas per
period, a circuit breaker, a retry budget, and adaptive concurrency.
"""

from __future__ import annotations

import msgspec


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """At most ``amount`` may be granted in any sliding window, or on one calendar day.

    It counts grants, not completions: a grant counts until its window has passed. Times are journal
    time, which is wall clock that never runs backward.
    """

    #: Milli-units; the resource defines the unit (a call, a page, a token).
    amount: int
    #: Length of the sliding window; 0: a calendar day in ``zone``.
    window_seconds: float = 0.0
    #: Time zone whose midnight begins a calendar day (``Europe/Berlin``).
    zone: str = "UTC"
    #: Added to the server's window, so that calls with unequal network latency respect the quota there.
    margin_seconds: float = 0.0

    @property
    def counted_seconds(self) -> float:
        """Time for which a grant counts; 0 for a calendar day."""
        return self.window_seconds + self.margin_seconds if self.window_seconds else 0.0


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Circuit breaker of a failing API."""

    #: Consecutive failures (5xx, timeout, no connection) that open the circuit.
    failures: int = 5
    #: Time without calls, followed by one probe. Each failed probe doubles it, up to the longest.
    cooldown_seconds: float = 5.0
    longest_seconds: float = 60.0


class Retries(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Retry budget, shared by all callers of the API.

    The budget starts with ``burst`` retries and gains ``ratio`` of one with each successful response.
    """

    #: Attempts per call, including the first.
    attempts: int = 5
    ratio: float = 0.2
    burst: int = 20


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All limits on one resource over time."""

    quotas: tuple[Quota, ...] = ()
    #: Lower bound of adaptive concurrency in milli-units: the limit is halved when the API requests
    #: fewer calls, and grows by one per round of successes. 0: not adaptive.
    least: int = 0
    breaker: Breaker = Breaker()
    retries: Retries = Retries()


class Share(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A project's share of a resource, in milli-units (`scheduler.core.sharing.shares`)."""

    nominal: int
    #: Most that it borrows beyond its nominal share; None: no limit.
    borrow: int | None = None
    #: Most of its nominal share that it lends; None: all of it.
    lend: int | None = None

    @property
    def kept(self) -> int:
        """Part of the nominal share that is never lent."""
        return 0 if self.lend is None else max(0, self.nominal - self.lend)


class QuotaUse(msgspec.Struct, frozen=True):
    """Usage of a quota, in milli-units."""

    quota: Quota
    used: int
    #: Negative after the quota was lowered below its usage.
    left: int
    #: Journal time at which part of it is free again; None: nothing is used.
    eases_at: float | None


class Degradation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Degradation of a resource: an exhausted quota or an open circuit."""

    #: The exhausted quota; None: the circuit opened.
    quota: QuotaUse | None = None
    #: Description of the open circuit.
    detail: str = ""
