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


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything that limits one resource beyond how much may be held at once."""

    quotas: tuple[Quota, ...] = ()


class QuotaUse(msgspec.Struct, frozen=True):
    """How a quota stands; in milli-units."""

    quota: Quota
    used: int
    #: Negative after the quota was lowered below what is used.
    left: int
    #: Journal time at which something of it comes back; None: nothing is used.
    eases_at: float | None
