"""What an administrator declares about the use of one cluster-wide resource over time.

How much may be held at once is the resource's capacity (`Config.resources`). Everything here comes
on top: quotas per period, and how the resource answers to what its server says.
"""

from __future__ import annotations

import msgspec


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """At most ``amount`` may be granted in any sliding window, or on one calendar day.

    It counts grants, not ends: what was granted stays counted until its window has passed. Times
    are journal time, which is wall clock that never runs backward.
    """

    #: Milli-units. What one unit is (a call, a page, a token) is the resource's own matter.
    amount: int
    #: Length of the sliding window; 0: the quota is for a calendar day in ``zone``.
    window_seconds: float = 0.0
    #: Time zone whose midnight begins a calendar day (``Europe/Berlin``).
    zone: str = "UTC"
    #: The window is this much longer than the server's: calls that take unequally long to reach
    #: it then still hold the quota there.
    margin_seconds: float = 0.0

    @property
    def counted_seconds(self) -> float:
        """How long a grant counts; 0 for a calendar day."""
        return self.window_seconds + self.margin_seconds if self.window_seconds else 0.0


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a failing API is left alone, and for how long."""

    #: So many failures in a row (5xx, no answer in time, no connection) open the circuit.
    failures: int = 5
    #: Then nothing is sent for so long, and after it one call that probes. When that fails as well
    #: the next rest is twice as long, up to the longest.
    cooldown_seconds: float = 5.0
    longest_seconds: float = 60.0


class Retries(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often calls are made again: one budget for everybody who uses the API.

    The budget starts with ``burst`` repetitions and gains ``ratio`` of one with every good answer.
    """

    #: Attempts at one call, the first one included.
    attempts: int = 5
    ratio: float = 0.2
    burst: int = 20


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything that limits one resource beyond how much may be held at once."""

    quotas: tuple[Quota, ...] = ()
    #: How much may be open at once is learned between this and the capacity: halved when the API
    #: wants fewer calls, one more per round of good answers. 0: it is not learned. Milli-units.
    least: int = 0
    breaker: Breaker = Breaker()
    retries: Retries = Retries()


class Share(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A project's part of a resource, in milli-units (`scheduler.core.sharing.shares`)."""

    nominal: int
    #: Most that it takes beyond its nominal share; None: whatever others do not use.
    borrow: int | None = None
    #: Most of its nominal share that others may have while it does not; None: all of it.
    lend: int | None = None

    @property
    def kept(self) -> int:
        """What others never get."""
        return 0 if self.lend is None else max(0, self.nominal - self.lend)


class QuotaUse(msgspec.Struct, frozen=True):
    """How a quota stands; in milli-units."""

    quota: Quota
    used: int
    #: Negative after the quota was lowered below what is used.
    left: int
    #: Journal time at which something of it comes back; None: nothing is used.
    eases_at: float | None


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """What turned bad of a resource: a quota has nothing left, or the circuit opened."""

    #: How the quota stands; None: it is the circuit.
    quota: QuotaUse | None = None
    #: For people.
    detail: str = ""
