"""Page of batches: what ranks of trainers pulled from which rollout worker, beside what one controller would have moved.

Rules
1. What was pulled is what workers and web processes have sent, as they count it, repetitions included; a rank reports nothing.
2. One controller receives each row once and sends to each rank what that owns: computed from the manifest, not measured.
3. Readers see the batches of their projects. Batches that have expired are shown for a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, Final, NamedTuple, cast

import redis
from django.http import HttpRequest

from contract.batch_status import StoredBatch, newest, pulls_of, stored_batches
from contract.batch_views import BatchPull
from tangram_web.lib import bus
from tangram_web.live.access import Sight

#: Batches of the page.
BATCHES: Final = 50
#: Ranks and workers of the table of one batch.
RANKS: Final = 64
WORKERS: Final = 12
GATEWAY: Final = "gateway"
_OTHERS: Final = "others"


class ShownBatch(NamedTuple):
    """A batch as a row of the page."""

    stored: StoredBatch
    pulls: list[BatchPull]
    expired: bool
    age_seconds: float
    #: Until it expires; below 0: since.
    left_seconds: float

    @property
    def pulled(self) -> int:
        """Return the bytes that were sent to ranks."""
        return sum(each.bytes for each in self.pulls)

    @property
    def owned(self) -> int:
        """Return the bytes that all ranks own."""
        return sum(self.stored.summary.bytes_by_rank)


class RankLine(NamedTuple):
    """A rank, and what it pulled from each worker of the table."""

    rank: int
    cells: list[int]
    pulled: int


class Pairs(NamedTuple):
    """Bytes by worker and rank."""

    workers: list[str]
    lines: list[RankLine]
    #: Ranks that the table leaves out.
    more: int


class ControllerComparison(NamedTuple):
    """Bytes of a batch as they crossed, and as they would have crossed through one controller."""

    direct: int
    #: Endpoint with the most bytes, and those.
    busiest: str
    busiest_bytes: int
    gathered: int
    scattered: int

    @property
    def controller(self) -> int:
        """Return the bytes that the controller would have carried."""
        return self.gathered + self.scattered

    @property
    def ratio(self) -> float:
        """Return how many times the bytes of the busiest endpoint the controller would have carried."""
        return self.controller / self.busiest_bytes if self.busiest_bytes else 0.0

    @property
    def share(self) -> float:
        """Return the busiest endpoint's bytes as a percentage of the controller's."""
        return round(min(100.0, 100 * self.busiest_bytes / max(1, self.controller)), 2)


def batches(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show batches, newest first, and one of them: ``?batch=ID``, else the newest that was pulled."""
    try:
        shown = _shown(sight)
    except redis.RedisError as error:
        return {"problem": f"Redis does not answer: {error}", "batches": []}
    asked = request.GET.get("batch", "")
    named = next((each for each in shown if each.stored.id == asked), None)
    chosen = named or next((each for each in shown if each.pulls), None)
    return {
        "problem": "",
        "batches": shown,
        "most": BATCHES,
        "chosen": chosen,
        "missing": bool(asked) and named is None,
        "pairs": None if chosen is None else pairs_of(chosen.pulls),
        "compared": None if chosen is None or not chosen.pulls else comparison(chosen),
    }


def pairs_of(pulls: Sequence[BatchPull]) -> Pairs:
    """Return the table of a batch: the workers with the most bytes, the others together."""
    sent: dict[str, int] = {}
    for each in pulls:
        name = each.worker or GATEWAY
        sent[name] = sent.get(name, 0) + each.bytes
    names = sorted(sent, key=lambda name: (-sent[name], name))
    columns = sorted(names[:WORKERS])
    if names[WORKERS:]:
        columns.append(_OTHERS)
    place = {name: at for at, name in enumerate(columns)}
    cells: dict[int, list[int]] = {}
    for each in pulls:
        line = cells.setdefault(each.rank, [0] * len(columns))
        line[place.get(each.worker or GATEWAY, len(columns) - 1)] += each.bytes
    lines = [RankLine(rank, line, sum(line)) for rank, line in sorted(cells.items())]
    return Pairs(columns, lines[:RANKS], max(0, len(lines) - RANKS))


def comparison(batch: ShownBatch) -> ControllerComparison:
    """Return what crossed beside what gather and scatter would have moved."""
    ends: dict[str, int] = {}
    for each in batch.pulls:
        for name in (each.worker or GATEWAY, f"rank {each.rank}"):
            ends[name] = ends.get(name, 0) + each.bytes
    busiest = max(ends, key=lambda name: (ends[name], name))
    return ControllerComparison(
        batch.pulled, busiest, ends[busiest], batch.stored.summary.bytes, batch.owned
    )


def _shown(sight: Sight) -> list[ShownBatch]:
    """Return the newest batches of a reader's projects. Raises redis.RedisError."""
    client, keys, now = bus.redis_client(), bus.keys(), time()
    projects: Sequence[str] | None = sight.projects
    if projects is None:
        known = cast("set[bytes]", client.smembers(keys.batch_projects))
        projects = sorted(name.decode() for name in known)
    with client.pipeline(transaction=False) as pipe:
        for project in projects:
            pipe.hvals(keys.batches(project))
        stored = [each for texts in pipe.execute() for each in stored_batches(texts)]
    found = newest(stored, BATCHES)
    with client.pipeline(transaction=False) as pipe:
        for each in found:
            pipe.hgetall(keys.batch_pulls(each.id))
        pulls = pipe.execute()
    return [
        ShownBatch(each, pulls_of(pulled), each.expires <= now, now - each.created, each.expires - now)
        for each, pulled in zip(found, pulls, strict=True)
    ]  # fmt: skip
