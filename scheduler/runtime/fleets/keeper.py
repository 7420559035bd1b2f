"""FleetKeeper: the parts that keep fleets, while this process has the lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import msgspec
import redis
import redis.asyncio

from domain.errors import Fenced
from domain.redis_keys import Keys
from managers.llm.cache_moves import movers
from scheduler.runtime.fleets.cache_move_runner import CacheMoveRunner
from scheduler.runtime.fleets.divisions import Divisions
from scheduler.runtime.fleets.fleet_predictor import PredictorTimes
from scheduler.runtime.fleets.fleets_in_force import FleetsInForce
from scheduler.runtime.fleets.journal_follower import JournalFollower
from scheduler.runtime.fleets.keeper_lease import LEASE_SECONDS, KeeperLease
from scheduler.runtime.fleets.keeper_reports import KeeperReports
from scheduler.runtime.fleets.own_workers import OwnWorkers, WhyEnded
from scheduler.runtime.fleets.prober import Prober
from scheduler.runtime.fleets.trajectory_predictions import TrajectoryPredictions
from scheduler.runtime.fleets.worker_checks import CheckPauses
from scheduler.runtime.fleets.worker_steps import StepTimes
from scheduler.runtime.gateway.scheduler_queries import SchedulerQueries
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.liveness import process_name
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.door_addresses import DoorAddresses

log = logging.getLogger(__name__)

#: Between two attempts to take the lease, and to find a fleet.
STAND_BY_SECONDS: Final = 2.0
#: Idle connections are closed before servers do so: uvicorn's after 5 s.
_KEEP_ALIVE_SECONDS: Final = 4.0


class KeeperOptions(msgspec.Struct, frozen=True):
    """Times of a keeper."""

    pauses: CheckPauses = CheckPauses()
    steps: StepTimes = StepTimes()
    lease_seconds: float = LEASE_SECONDS
    stand_by_seconds: float = STAND_BY_SECONDS
    predictors: PredictorTimes = PredictorTimes()


class FleetKeeper:
    """Keeps the fleets of an installation while it has the lease; stands by otherwise."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        options: KeeperOptions | None = None,
        why_ended: WhyEnded | None = None,
    ) -> None:
        """``why_ended``: reads why the engine of a worker of our own ended."""
        self._client, self._keys = client, keys
        self._why_ended = why_ended
        self._options = options or KeeperOptions()
        self.lease = KeeperLease(client, keys, process_name("fleets"), self._options.lease_seconds)

    async def run(self) -> None:
        """Keep the fleets until cancelled; an installation without a fleet costs one read at a time."""
        fleets = FleetsInForce(self._client, self._keys)
        try:
            while keep_running():
                try:
                    await fleets.read()
                    if await self._is_needed(fleets) and await self.lease.take():
                        log.info("%s keeps %d fleets", self.lease.name, len(fleets.fleets))
                        await self._keep(fleets)
                except redis.RedisError as error:
                    log.warning("the fleets are not kept: %s", error)
                await asyncio.sleep(self._options.stand_by_seconds)
        finally:
            self.lease.close()

    async def _is_needed(self, fleets: FleetsInForce) -> bool:
        """Whether there is a fleet, or one was deleted whose engines have not ended."""
        return bool(fleets.fleets or await self._client.exists(self._keys.fleet_reports))

    async def _keep(self, fleets: FleetsInForce) -> None:
        """Run all parts until the lease is lost."""
        reports = KeeperReports(self.lease, self._keys.fleet_reports)
        divisions = Divisions(reports, self._options.steps.idle_seconds)
        predictions = TrajectoryPredictions(
            fleets, self.lease, reports, self._keys.fleet_predictions, self._options.predictors,
            divisions.finished,
        )  # fmt: skip
        try:
            async with _http() as client, asyncio.TaskGroup() as group:
                ways = movers(client)
                prober = Prober(client, fleets, self.lease, reports, ways, self._options.pauses)
                # Queries alone pass here, which need no lease: they change nothing.
                submitter = Submitter(self._client, self._keys)
                queries = SchedulerQueries(self._client, self._keys, submitter, self.lease.name)
                doors = DoorAddresses(self._client, self._keys)
                own = OwnWorkers(
                    client, fleets, self.lease, reports, queries, doors, divisions,
                    self._why_ended, self._options.steps,
                )  # fmt: skip
                moves = CacheMoveRunner(fleets, self.lease, reports, queries, ways)
                for part in (
                    self._renew(), fleets.run(), prober.run(), reports.run(), submitter.run(),
                    queries.run(), own.run(), predictions.run(), moves.run(),
                    self._follow(predictions, moves),
                ):  # fmt: skip
                    group.create_task(part)
        except* Fenced as error:
            log.warning("stepping down: %s", error.exceptions[0])
        except* redis.RedisError as error:
            log.warning("the fleets are not kept: %s", error.exceptions[0])
        finally:
            await self._give_back()

    async def _follow(self, predictions: TrajectoryPredictions, moves: CacheMoveRunner) -> None:
        """Read the journal until cancelled, from where the keeper before stored that it was."""
        follower = JournalFollower(self._client, self._keys, [predictions, moves])
        await follower.run(await predictions.recall(follower))

    async def _renew(self) -> None:
        """Renew the lease until cancelled. Raises Fenced."""
        while keep_running():
            await asyncio.sleep(self.lease.lease_seconds / 4)
            try:
                if not await self.lease.take():
                    raise Fenced("another process keeps the fleets")
            except redis.RedisError as error:
                log.warning("the lease of the fleets is not renewed: %s", error)

    async def _give_back(self) -> None:
        try:
            await self.lease.give_back()
        except redis.RedisError as error:
            log.warning("the lease of the fleets ends by itself: %s", error)


@asynccontextmanager
async def _http() -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_SECONDS)
    async with httpx.AsyncClient(trust_env=False, limits=limits) as client:
        yield client
