"""When a delivery is tried again. Pure.

The pauses are those that the Standard Webhooks specification recommends: immediately, then after
5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h; ten attempts over three days. Each is
stretched by up to a tenth, so that endpoints which fail together are not asked together.
"""

from __future__ import annotations

from random import Random
from typing import Final

PAUSES_SECONDS: Final = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
MOST_ATTEMPTS: Final = len(PAUSES_SECONDS) + 1
JITTER: Final = 0.1
#: What ``Retry-After`` may ask for at most.
LONGEST_WISH_SECONDS: Final = 86400.0
#: An endpoint that answered nothing well for so long is disabled.
FAILING_SECONDS: Final = 5 * 86400.0


def pause_seconds(attempts: int, wished_seconds: float, chooser: Random) -> float | None:
    """Return how long to wait after so many attempts; None when there shall be no further one.

    ``wished_seconds`` is what the receiver asked for by ``Retry-After``; the longer one holds.
    """
    if attempts >= MOST_ATTEMPTS:
        return None
    planned = PAUSES_SECONDS[attempts - 1] * (1.0 + JITTER * chooser.random())
    return max(planned, min(wished_seconds, LONGEST_WISH_SECONDS))
