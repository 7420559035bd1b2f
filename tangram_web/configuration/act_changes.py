"""Change of the mean ACT with a revision: five minutes before and after, from the history."""

from __future__ import annotations

from time import time
from typing import Any, Final, NamedTuple

import redis

from tangram_web.dashboard.history_query import recalled_of
from tangram_web.pools.models import ConfigRevision

SECONDS: Final = 300.0
#: Revisions of one page.
SHOWN: Final = 20


class ActChange(NamedTuple):
    """Mean ACT in seconds (None without a finished action), and the number of finished actions."""

    before: float | None
    after: float | None
    ended_before: int
    ended_after: int


def act_change_of(revision: ConfigRevision) -> ActChange | None:
    """Return the change with ``revision``; None when Redis does not answer."""
    at, now = revision.created_at.timestamp(), time()
    try:
        before, after = _whole(at - SECONDS, at, now), _whole(at, min(now, at + SECONDS), now)
    except redis.RedisError:
        return None
    return ActChange(_mean(before), _mean(after), before["finished"], after["finished"])


def _whole(first: float, last: float, now: float) -> dict[str, Any]:
    return recalled_of(first, max(last, first + 1), now).whole


def _mean(whole: dict[str, Any]) -> float | None:
    mean: float | None = whole["phases"]["act"]["mean"]
    return mean
