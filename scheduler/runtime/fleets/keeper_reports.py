"""Reports of the keeper: what it found of each fleet, stored in Redis at most once in a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import redis

from contract.fleet_reports import (
    KeeperReport,
    MovesReport,
    OwnWorkerReport,
    PredictorReport,
    ProbedWorker,
)
from contract.responses import rfc3339
from scheduler.runtime.fleets.keeper_lease import KeeperLease
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

WRITE_SECONDS: Final = 1.0


def wall_clock() -> str:
    """Return the time, RFC 3339."""
    return rfc3339(time.time())


class KeeperReports:
    """The reports of all fleets."""

    def __init__(self, lease: KeeperLease, hash_key: str) -> None:
        self._lease, self.hash_key = lease, hash_key
        self._reports: dict[str, KeeperReport] = {}
        self._changed: set[str] = set()
        #: Fleets whose reports are kept after they were deleted: their engines have not ended.
        self.retained: set[str] = set()

    def of(self, fleet: str) -> KeeperReport:
        """Return the report of a fleet, to change it; it is stored afterwards."""
        self._changed.add(fleet)
        return self._reports.setdefault(fleet, KeeperReport(self._lease.name))

    def probed(self, fleet: str, worker: ProbedWorker) -> None:
        """Replace what is known of a worker."""
        report = self.of(fleet)
        others = [each for each in report.workers if each.name != worker.name]
        report.workers = sorted([*others, worker], key=lambda each: each.name)

    def own(self, fleet: str, workers: list[OwnWorkerReport]) -> None:
        """Replace what is known of the workers of our own."""
        known = self._reports.get(fleet)
        if workers != ([] if known is None else known.own):
            self.of(fleet).own = workers

    def moved(self, fleet: str, moves: MovesReport) -> None:
        """Replace what became of a fleet's moves."""
        self.of(fleet).made_moves = moves

    async def forget(self, fleet: str) -> None:
        """Forget a fleet. Raises Fenced, RedisError."""
        self._reports.pop(fleet, None)
        self._changed.discard(fleet)
        await self._lease.forget(self.hash_key, fleet)

    def predicted(self, fleet: str, predictor: PredictorReport) -> None:
        """Replace what is known of a fleet's predictions."""
        known = self._reports.get(fleet)
        if known is None or known.predictor != predictor:
            self.of(fleet).predictor = predictor

    async def keep_only(self, workers: Mapping[str, Collection[str]]) -> None:
        """Forget fleets and workers that are not declared any more; ``workers``: names by fleet. Raises Fenced, RedisError."""
        for name in await self._lease.fields(self.hash_key) | self._reports.keys():
            if name not in workers and name not in self.retained:
                await self.forget(name)
        for name, report in self._reports.items():
            kept = workers.get(name, ())
            report.workers = [each for each in report.workers if each.name in kept]

    async def run(self) -> None:
        """Store what changed until cancelled. Raises Fenced."""
        while keep_running():
            await asyncio.sleep(WRITE_SECONDS)
            try:
                await self.store()
            except redis.RedisError as error:
                log.warning("the reports of fleets are not stored: %s", error)

    async def store(self) -> None:
        """Store what changed. Raises Fenced, RedisError."""
        while self._changed:
            name = min(self._changed)
            report = self._reports[name]
            report.at = wall_clock()
            await self._lease.put(self.hash_key, name, msgspec.json.encode(report))
            self._changed.discard(name)
