"""What the keeper of fleets found last, as pages show it: age of the check of each worker, and ways to move caches.

The report is the keeper's own, in Redis; a page without one shows what the scheduler has registered, and says that nothing was checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import redis

from contract.fleet_reports import KeeperReport, ProbedWorker
from contract.fleet_status import FleetStatus, FleetWorkerStatus
from domain.fleets import PriorityUse, TransferAdapter
from tangram_web.lib import bus

PRIORITIES: Final = {
    PriorityUse.UNKNOWN: "not known yet",
    PriorityUse.LOWER_FIRST: "lower first",
    PriorityUse.GREATER_FIRST: "greater first",
    PriorityUse.ACCEPTED: "accepted, order unknown",
    PriorityUse.IGNORED: "ignored",
    PriorityUse.REFUSED: "refused: none is sent",
}
MOVES: Final = {
    TransferAdapter.PROBED: "not known yet",
    TransferAdapter.SHARED: "shared store",
    TransferAdapter.LMCACHE: "LMCache",
    TransferAdapter.TORCH: "torch",
    TransferAdapter.NONE: "none",
}

_report = msgspec.json.Decoder(KeeperReport)


#: A keeper asks each worker more often than that.
SILENT_SECONDS: Final = 60.0


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as a row of the page."""

    status: FleetWorkerStatus
    priorities: str
    moves: str
    #: Since the latest check; None: it was not checked.
    checked_seconds: float | None = None
    #: Checks in a row that failed, while they do not decide yet.
    failing: int = 0
    #: Empty: its engine does not say.
    version: str = ""


def report_of(fleet: str) -> KeeperReport | None:
    """Return what the keeper found of a fleet; None: nothing is stored, or it cannot be read."""
    try:
        stored = bus.redis_client().hget(bus.keys().fleet_reports, fleet)
    except redis.RedisError:
        return None
    try:
        return _report.decode(stored) if isinstance(stored, bytes) else None
    except msgspec.DecodeError:  # of a keeper of another version
        return None


def way_of(fleet: FleetStatus) -> str:
    """Return how caches of a fleet are moved, as a clause."""
    probed = {each.facts.moves for each in fleet.workers} - {TransferAdapter.PROBED}
    ways = {fleet.transfer} if fleet.transfer else probed
    if not ways:
        return "how caches can be moved is not known yet"
    how = ", ".join(sorted(MOVES[each] for each in ways))
    if ways == {TransferAdapter.NONE}:
        how = "caches are not moved: a trajectory on another worker has its prompt processed again"
        return how if not fleet.transfer else f"{how}, as declared"
    return f"caches are moved by {how}, as {'declared' if fleet.transfer else 'probed'}"


def silent_seconds(rows: Sequence[WorkerRow]) -> float | None:
    """Return since when no worker was checked, if that is too long ago for a keeper that runs; None otherwise."""
    ages = [row.checked_seconds for row in rows if row.checked_seconds is not None]
    return min(ages) if ages and min(ages) > SILENT_SECONDS else None


def worker_rows(
    workers: Sequence[FleetWorkerStatus], report: KeeperReport | None, now: datetime | None = None
) -> list[WorkerRow]:
    """Return the rows of workers; ``now``: the wall clock, for tests."""
    probed = {each.name: each for each in report.workers} if report is not None else {}
    at = now or datetime.now(UTC)
    return [_row(each, probed.get(each.facts.name), at) for each in workers]


def _row(status: FleetWorkerStatus, probed: ProbedWorker | None, now: datetime) -> WorkerRow:
    facts = status.facts
    failing = 0 if probed is None or facts.unhealthy else max(0, -probed.in_a_row)
    seconds = None if probed is None else _age(probed.checked_at, now)
    stated = facts.weights_version or (probed is not None and probed.weights_version is not None)
    version = str(facts.weights_version) if stated else ""
    return WorkerRow(
        status, PRIORITIES[facts.priorities], MOVES[facts.moves], seconds, failing, version
    )


def _age(at: str, now: datetime) -> float | None:
    try:
        return max(0.0, (now - datetime.fromisoformat(at)).total_seconds())
    except (ValueError, TypeError):
        return None
