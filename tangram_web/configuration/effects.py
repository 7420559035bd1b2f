"""What a revision did to the ACT: its mean in the minutes before and after, as the rings have it."""

from __future__ import annotations

from time import time
from typing import Any, Final, NamedTuple

import redis

from tangram_web.dashboard.past import recalled_of
from tangram_web.pools.models import ConfigRevision

SECONDS: Final = 300.0
#: Revisions of which the effect is looked up on one page.
SHOWN: Final = 20


class Effect(NamedTuple):
    """Mean ACT in seconds, and how many actions ended; None where nothing is known."""

    before: float | None
    after: float | None
    ended_before: int
    ended_after: int


def effect_of(revision: ConfigRevision) -> Effect | None:
    """Return what is known; None when Redis does not answer."""
    at, now = revision.created_at.timestamp(), time()
    try:
        before, after = _whole(at - SECONDS, at, now), _whole(at, min(now, at + SECONDS), now)
    except redis.RedisError:
        return None
    return Effect(_mean(before), _mean(after), before["finished"], after["finished"])


def _whole(first: float, last: float, now: float) -> dict[str, Any]:
    return recalled_of(first, max(last, first + 1), now).whole


def _mean(whole: dict[str, Any]) -> float | None:
    mean: float | None = whole["phases"]["act"]["mean"]
    return mean
