"""Prober: asks the workers of all fleets for their health and their controls, and appends what changed.

One task asks one worker, so a worker that answers slowly delays no other. Beside them, one task for each fleet chooses the way in which
caches are moved, again whenever another set of workers is usable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import httpx
import redis

from contract.fleet_reports import ProbedMoves, ProbedWorker
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetEngine, FleetWorker, PriorityUse, TransferAdapter, WorkerFact
from managers.llm.cache_moves import CacheMover, choose_mover
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleets.fleets_in_force import FleetsInForce
from scheduler.runtime.fleets.keeper_lease import KeeperLease
from scheduler.runtime.fleets.keeper_reports import KeeperReports, wall_clock
from scheduler.runtime.fleets.worker_checks import CheckPauses, WorkerChecks
from scheduler.runtime.fleets.worker_questions import WorkerControls, controls, failing
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

#: Between two questions that cost a worker a token, and between two choices of a mover without a reason.
CONTROLS_SECONDS: Final = 300.0
#: Between two choices while there is no way to move caches.
NO_MOVER_SECONDS: Final = 30.0
#: Checks at once.
_AT_ONCE: Final = 64

#: Fleet, name and address of a worker: at another address it is another server.
Probed = tuple[str, str, str]
K = TypeVar("K")


class Prober:
    """The probes of all fleets."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        fleets: FleetsInForce,
        lease: KeeperLease,
        reports: KeeperReports,
        movers: Mapping[TransferAdapter, CacheMover],
        pauses: CheckPauses | None = None,
    ) -> None:
        self._client, self._fleets, self._lease, self._reports = client, fleets, lease, reports
        self._movers = movers
        self._pauses = pauses or CheckPauses()
        self._places = asyncio.Semaphore(_AT_ONCE)
        #: The way in which a fleet moves caches, once it was chosen.
        self.chosen: dict[str, CacheMover] = {}

    async def run(self) -> None:
        """Probe until cancelled. Raises Fenced."""
        workers: dict[Probed, asyncio.Task[None]] = {}
        choices: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while keep_running():
                fleets = self._fleets.fleets
                wanted = [
                    (name, each.name, each.url)
                    for name, fleet in fleets.items()
                    for each in fleet.workers
                ]
                _follow(workers, wanted, lambda key: group.create_task(self._watch(*key)))
                _follow(choices, fleets, lambda name: group.create_task(self._choose(name)))
                names = {name: {each.name for each in fleets[name].workers} for name in fleets}
                await self._reports.keep_only(names)
                await self._fleets.changed.wait()
                self._fleets.changed.clear()

    def _known(self, fleet: str, name: str, url: str) -> tuple[FleetCapacity, FleetWorker] | None:
        found = self._fleets.fleets.get(fleet)
        if found is None:
            return None
        workers = (each for each in found.workers if (each.name, each.url) == (name, url))
        worker = next(workers, None)
        return None if worker is None else (found, worker)

    async def _watch(self, fleet: str, name: str, url: str) -> None:
        """Ask one worker as long as it is in its fleet."""
        clock = asyncio.get_running_loop().time
        checks, said, ask_at = WorkerChecks(self._pauses), WorkerControls(), 0.0
        while (known := self._known(fleet, name, url)) is not None:
            declared, worker = known
            checks.follow(worker.unhealthy, clock())
            if (rest := checks.due_at - clock()) > 0:
                await asyncio.sleep(min(rest, self._pauses.interval_seconds))
                continue
            async with self._places:
                why = await failing(self._client, url)
                if why:
                    checks.failed(why, clock())
                    ask_at = 0.0
                else:
                    checks.answered(clock())
                    if clock() >= ask_at:
                        model = declared.source or fleet
                        said = await controls(self._client, declared.engine, worker, model)
                        ask_at = clock() + self._ask_again(declared.engine)
            self._reports.probed(
                fleet,
                ProbedWorker(
                    name, wall_clock(), why, checks.in_a_row, said.priorities, said.weights_version
                ),
            )
            await self._report(fleet, name, url, checks.verdict(), said)

    def _ask_again(self, engine: FleetEngine) -> float:
        """Return after how many seconds the controls are asked for again."""
        paged = engine in (FleetEngine.TORCH, FleetEngine.SGLANG)
        return self._pauses.interval_seconds if paged else CONTROLS_SECONDS

    async def _report(
        self, fleet: str, name: str, url: str, verdict: str | None, said: WorkerControls
    ) -> None:
        """Append what differs from what is registered now."""
        known = self._known(fleet, name, url)
        fact = None if known is None else changed(known[1], verdict, said)
        if fact is not None:
            await self._append(FleetWorkersChanged(fleet=fleet, facts=(fact,)))

    async def _append(self, event: FleetWorkersChanged) -> None:
        """Append; what is lost is repeated with the next check. Raises Fenced."""
        try:
            await self._lease.append([event])
        except redis.RedisError as error:
            log.warning("what probes of fleet %s found is not reported: %s", event.fleet, error)
        else:
            log.info("fleet %s: %s", event.fleet, event.facts)

    async def _choose(self, fleet: str) -> None:
        """Choose how caches are moved as long as a fleet is declared."""
        loop = asyncio.get_running_loop()
        asked: tuple[object, ...] | None = None
        ask_at = 0.0
        while (found := self._fleets.fleets.get(fleet)) is not None:
            usable = [each for each in found.workers if not each.unhealthy]
            now = (found.transfer, *((each.name, each.url) for each in usable))
            if len(usable) > 1 and (now != asked or loop.time() >= ask_at):
                mover, states = await choose_mover(self._movers, usable, found.transfer)
                again = (
                    NO_MOVER_SECONDS if mover.adapter is TransferAdapter.NONE else CONTROLS_SECONDS
                )
                asked, ask_at = now, loop.time() + again
                self.chosen[fleet] = mover
                report = self._reports.of(fleet)
                report.moves = mover.adapter
                report.probed_moves = [
                    ProbedMoves(each.adapter, each.usable, each.detail) for each in states
                ]
            await self._report_moves(fleet)
            await asyncio.sleep(self._pauses.decide_seconds)
        self.chosen.pop(fleet, None)

    async def _report_moves(self, fleet: str) -> None:
        found, mover = self._fleets.fleets.get(fleet), self.chosen.get(fleet)
        if found is None or mover is None:
            return
        facts = tuple(
            WorkerFact(each.name, moves=mover.adapter)
            for each in found.workers
            if not each.unhealthy and each.moves is not mover.adapter
        )
        if facts:
            await self._append(FleetWorkersChanged(fleet=fleet, facts=facts))


def _follow(
    tasks: dict[K, asyncio.Task[None]],
    wanted: Iterable[K],
    start: Callable[[K], asyncio.Task[None]],
) -> None:
    """Start the tasks that lack and cancel those that are not wanted."""
    keys = set(wanted)
    for key in tasks.keys() - keys:
        tasks.pop(key).cancel()
    for key in keys:
        if key not in tasks or tasks[key].done():
            tasks[key] = start(key)


def changed(
    registered: FleetWorker, verdict: str | None, said: WorkerControls
) -> WorkerFact | None:
    """Return what a probe found that is not registered; None: nothing."""
    unhealthy = verdict if verdict is not None and verdict != registered.unhealthy else None
    version = said.weights_version if said.weights_version != registered.weights_version else None
    known = said.priorities is not PriorityUse.UNKNOWN
    priorities = said.priorities if known and said.priorities is not registered.priorities else None
    if unhealthy is None and version is None and priorities is None:
        return None
    return WorkerFact(
        registered.name, unhealthy=unhealthy, weights_version=version, priorities=priorities
    )
