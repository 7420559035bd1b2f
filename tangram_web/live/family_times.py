"""How long the commands of each family run lately, beside how long they ran before.

A family is what reports group by: the declared family of a task's commands, or all its commands without one. Counted is
the execution alone: waiting is no property of a command.

Rules
1. Ends of the last ``window_seconds`` are counted in `BUCKETS` buckets. A bucket that leaves the window becomes earlier
   history, whose counts halve every `HALF_LIFE_SECONDS`: a family that stays slow for as long as it was fast becomes usual.
2. Memory is bounded by `MAX_FAMILIES` families, those that ended something last.
3. The history is longer than the retained journal, so it is stored (`CommandFamilyStore`). A fold that starts again continues
   from `StoredFamilies.until` and leaves out what is counted.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import redis

from domain.action import Kind, Outcome
from domain.decisions import Finish
from domain.redis_keys import Keys
from tangram_web.live.rollups.histogram import BINS, HIGHEST_SECONDS, LOWEST_SECONDS, seconds_of

WINDOW_SECONDS: Final = 600.0
BUCKETS: Final = 10
HALF_LIFE_SECONDS: Final = 6 * 3600.0
#: Weights of earlier history below this are dropped.
LEAST_WEIGHT: Final = 0.05
MAX_FAMILIES: Final = 500
#: Families that are listed: those whose slowness costs most time.
MAX_LISTED: Final = 20
#: Rows are computed this often, in journal time.
ROWS_SECONDS: Final = 5.0
_COUNTED: Final = frozenset({Outcome.COMPLETED, Outcome.TIMEOUT})
_SCALE: Final = (BINS - 2) / math.log(HIGHEST_SECONDS / LOWEST_SECONDS)


class Bucket(msgspec.Struct, array_like=True):
    """Ends in one part of a window: bin of `rollups.histogram` → count."""

    number: int
    counts: dict[int, int] = {}


class CommandFamily(msgspec.Struct, array_like=True):
    """Durations of one family."""

    project: str
    task: str
    #: Empty: commands without a declared family.
    name: str
    #: Journal time of its first end.
    began: float
    buckets: list[Bucket] = []
    #: What left the window: bin → weight.
    earlier: dict[int, float] = {}


class StoredFamilies(msgspec.Struct):
    """State of the durations, as it is stored."""

    #: Journal time up to which ends are counted.
    until: float = -math.inf
    halved_at: float = 0.0
    bucket_seconds: float = WINDOW_SECONDS / BUCKETS
    families: list[CommandFamily] = []


def bin_of_one(seconds: float) -> int:
    """Return the bin of one duration, as `rollups.histogram.bin_of` does of many."""
    if not seconds >= LOWEST_SECONDS:
        return 0
    return min(BINS - 1, int(math.log(seconds / LOWEST_SECONDS) * _SCALE) + 1)


def median_of(weights: Mapping[int, float]) -> float | None:
    """Return the median of binned durations; None without any."""
    half, below = sum(weights.values()) / 2, 0.0
    for index in sorted(weights):
        below += weights[index]
        if below >= half > 0:
            return seconds_of(index)
    return None


class CommandFamilies:
    """Durations by family."""

    def __init__(
        self, window_seconds: float = WINDOW_SECONDS, stored: StoredFamilies | None = None
    ) -> None:
        known = StoredFamilies() if stored is None else stored
        self._bucket_seconds = max(1.0, window_seconds / BUCKETS)
        self._until, self._counted = known.until, known.until
        self._halved_at = known.halved_at
        self._families = OrderedDict(((f.project, f.task, f.name), f) for f in known.families)
        if known.bucket_seconds != self._bucket_seconds:
            for family in self._families.values():
                _move(family, len(family.buckets))
        self._rows: list[dict[str, Any]] = []
        self._rows_at = -math.inf

    def finish(self, decision: Finish, family: str, at: float) -> None:
        """Count the end of a command."""
        if decision.kind is not Kind.EXEC or decision.outcome not in _COUNTED or not decision.task:
            return
        if at <= self._counted:
            return
        self._until = max(at, self._until)
        buckets = self._family(decision.project, decision.task, family, at).buckets
        number = int(at // self._bucket_seconds)
        if not buckets or buckets[-1].number < number:
            buckets.append(Bucket(number, {}))
        counts, index = buckets[-1].counts, bin_of_one(decision.timing.execution_seconds)
        counts[index] = counts.get(index, 0) + 1

    def rows(self, at: float) -> list[dict[str, Any]]:
        """Return the families that run longer than before, those whose slowness costs most time first."""
        if at - self._rows_at >= ROWS_SECONDS:
            self._rows_at = at
            self._age(at)
            window = self._bucket_seconds * BUCKETS
            found = [row for f in self._families.values() if (row := _row(f, at - window))]
            found.sort(key=lambda r: (-_cost(r), r["project"], r["task"], r["family"]))
            self._rows = found[:MAX_LISTED]
        return self._rows

    def state(self) -> StoredFamilies:
        """Return the state, as it is to be stored."""
        return StoredFamilies(
            self._until, self._halved_at, self._bucket_seconds, list(self._families.values())
        )

    def _family(self, project: str, task: str, name: str, at: float) -> CommandFamily:
        key = (project, task, name)
        family = self._families.get(key)
        if family is None:
            family = self._families[key] = CommandFamily(project, task, name, at, [], {})
            if len(self._families) > MAX_FAMILIES:
                self._families.popitem(last=False)
        self._families.move_to_end(key)
        return family

    def _age(self, at: float) -> None:
        """Move what left the window to the earlier history, and let that fade."""
        oldest = int(at // self._bucket_seconds) - BUCKETS + 1
        for family in self._families.values():
            _move(family, sum(bucket.number < oldest for bucket in family.buckets))
        if not self._halved_at:
            self._halved_at = at
        if at - self._halved_at >= HALF_LIFE_SECONDS:
            self._halved_at = at
            for family in self._families.values():
                halves = {index: weight / 2 for index, weight in family.earlier.items()}
                family.earlier = {i: w for i, w in halves.items() if w >= LEAST_WEIGHT}


def _move(family: CommandFamily, count: int) -> None:
    """Make the first ``count`` buckets of a family earlier history."""
    for bucket in family.buckets[:count]:
        for index, ends in bucket.counts.items():
            family.earlier[index] = family.earlier.get(index, 0.0) + ends
    del family.buckets[:count]


def _row(family: CommandFamily, window_began: float) -> dict[str, Any] | None:
    lately: Counter[int] = Counter()
    for bucket in family.buckets:
        lately.update(bucket.counts)
    median, before = median_of(lately), median_of(family.earlier)
    if median is None or before is None or median <= before:
        return None
    return {
        "project": family.project,
        "task": family.task,
        "family": family.name,
        "actions": lately.total(),
        "median_seconds": median,
        "earlier_actions": int(sum(family.earlier.values())),
        "earlier_median_seconds": before,
        #: For how long there was an earlier history when the window began.
        "earlier_seconds": max(0.0, window_began - family.began),
    }


def _cost(row: dict[str, Any]) -> float:
    slower: float = row["median_seconds"] - row["earlier_median_seconds"]
    return slower * float(row["actions"])


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredFamilies).decode


class CommandFamilyStore:
    """The durations in Redis. All methods raise redis.RedisError."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._key = keys.family_times

    def load(self) -> StoredFamilies:
        """Return the stored state; an empty one before the first, and of another version."""
        stored = self._client.get(self._key)
        try:
            return _decode(stored) if isinstance(stored, bytes) else StoredFamilies()
        except msgspec.DecodeError:
            return StoredFamilies()

    def save(self, state: StoredFamilies) -> None:
        """Replace the stored state."""
        self._client.set(self._key, _encode(state))
