"""Workers of our own: one action for each, which holds its chunk of GPUs and runs its engine there.

Theory of operation. The action (`wanted_workers.submission`) has the cost ``gpu: degree`` on the pool of its fleet, so the ledger of
GPUs counts each once; its node runs the engine as long as the action (`managers.gpu.worker_engine`). Every second the keeper asks the
loop which of these actions are live and which workers are registered, asks new engines for their health, and appends what follows
(`worker_steps`).

Rules
1. The answer of the loop follows everything that any keeper has appended, so it is the only memory that is needed: what runs is adopted.
2. An engine is not ended with its keeper: it serves on, and a later keeper adopts it or ends it.
3. The engines of a fleet have and wait for no more GPUs than it declares: others start when those that leave have ended, wide ones first.
4. Fleets that are deleted are kept until their engines have ended; their reports say so to keepers that stand by.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol
from urllib.parse import urlsplit

import httpx
import msgspec
import redis

from contract.fleet_reports import OwnWorkerReport
from contract.fleet_status import FleetsStatus, FleetWorkerStatus, WorkerEngineStatus
from domain.action import ActionState
from domain.errors import Fenced, TangramError, Unavailable
from domain.events import ActionSubmitted, Event
from domain.fleet_events import FleetWorkersChanged
from scheduler.runtime.fleets.divisions import Divisions
from scheduler.runtime.fleets.fleets_in_force import FleetsInForce
from scheduler.runtime.fleets.keeper_lease import KeeperLease
from scheduler.runtime.fleets.keeper_reports import KeeperReports
from scheduler.runtime.fleets.wanted_workers import (
    WantedWorker,
    WorkerKey,
    next_port,
    wanted_workers,
    why_never,
)
from scheduler.runtime.fleets.worker_questions import failing
from scheduler.runtime.fleets.worker_steps import (
    Situation,
    StepTimes,
    WorkerMemory,
    WorkerStep,
    next_step,
)
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.door_addresses import DoorAddresses

log = logging.getLogger(__name__)

#: An engine that starts answers later, or soon.
HEALTH_SECONDS: Final = 2.0

#: Returns why a finished action ended; empty while that is not known.
WhyEnded = Callable[[str], Awaitable[str]]


class EngineQueries(Protocol):
    """What asks the loop."""

    async def engines(self) -> FleetsStatus:
        """Return all fleets, and the engines of workers of our own. Raises Unavailable."""


class OwnWorkers:
    """The workers of our own of all fleets."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        fleets: FleetsInForce,
        lease: KeeperLease,
        reports: KeeperReports,
        queries: EngineQueries,
        doors: DoorAddresses,
        divisions: Divisions,
        why_ended: WhyEnded | None = None,
        times: StepTimes | None = None,
    ) -> None:
        self._client, self._fleets, self._lease = client, fleets, lease
        self._reports, self._queries, self._doors = reports, queries, doors
        self._divisions, self._why_ended = divisions, why_ended
        self._times = times or StepTimes()
        self._memories: dict[WorkerKey, WorkerMemory] = {}
        #: Nothing runs, as far as was asked.
        self._idle = False

    async def run(self) -> None:
        """Keep the workers until cancelled. Raises Fenced, RedisError."""
        stored = await self._lease.values(self._reports.hash_key)
        self._divisions.recall({k: v for k, v in stored.items() if k in self._fleets.fleets})
        while keep_running():
            try:
                await self.step()
            except Fenced:
                raise
            except (redis.RedisError, TangramError, msgspec.DecodeError) as error:
                log.warning("workers of our own are not kept now: %s", error)
            await asyncio.sleep(self._times.step_seconds)

    async def step(self) -> None:
        """Look at all workers once, and append what follows. Raises Fenced, Unavailable, RedisError."""
        wanted = wanted_workers(self._fleets.fleets, self._divisions.degrees)
        if not self._fleets.known or (self._idle and not wanted):
            return
        status = await self._queries.engines()
        if status.engines is None:
            raise Unavailable("the leader is of an earlier version, which knows of no engines")
        situations = await self._situations(wanted, status, status.engines)
        room = self._room(status.engines)
        now = asyncio.get_running_loop().time()
        self._memories = {each.key: self._memory(each.key) for each in situations}
        events: list[Event] = []
        found: dict[str, list[OwnWorkerReport]] = {}
        for seen in situations:
            free, needed = room.get(seen.key[0], 0), _gpus_to_start(seen)
            step = next_step(
                replace(seen, room=needed <= free), self._memories[seen.key], now, self._times
            )
            if needed > free:
                room[seen.key[0]] = 0  # narrower ones would split the chunk that it waits for
            elif any(isinstance(event, ActionSubmitted) for event in step.events):
                room[seen.key[0]] = free - needed
            events += step.events
            self._note_start(seen, step)
            for event in step.events:
                log.info(
                    "worker %s of fleet %s: %s", seen.key[1], seen.key[0], type(event).__name__
                )
            if step.report is not None:
                found.setdefault(seen.key[0], []).append(step.report)
        await self._lease.append(events)
        await self._report(found)
        await self._divisions.consider(self._fleets.fleets, status, self._fleets.pools)
        self._idle = not situations

    def _note_start(self, seen: Situation, step: WorkerStep) -> None:
        """Note how long an engine took to answer that joins now."""
        joins = any(isinstance(each, FleetWorkersChanged) and each.joined for each in step.events)
        if joins and seen.engine is not None:
            self._divisions.started(seen.key[0], seen.engine.age_seconds)

    def _memory(self, key: WorkerKey) -> WorkerMemory:
        return self._memories.get(key) or WorkerMemory()

    def _room(self, engines: Iterable[WorkerEngineStatus]) -> dict[str, int]:
        """Return how many GPUs each fleet may take beside those that its engines have or wait for."""
        room = {
            name: fleet.own.gpus
            for name, fleet in self._fleets.fleets.items()
            if fleet.own is not None
        }
        for each in engines:
            if each.process.fleet in room:
                room[each.process.fleet] -= each.degree
        return room

    async def _situations(
        self,
        wanted: dict[WorkerKey, WantedWorker],
        status: FleetsStatus,
        running: list[WorkerEngineStatus],
    ) -> list[Situation]:
        """Return all workers that are declared, registered or run; of each fleet those of more GPUs first."""
        engines = {(each.process.fleet, each.process.worker): each for each in running}
        workers = {
            (fleet.name, each.facts.name): each
            for fleet in status.fleets
            for each in fleet.workers
            if each.facts.own
        }
        # Those of former engines too: their workers are known by them until the next ones answer.
        ports = {each.process.port for each in running}
        ports |= {urlsplit(each.facts.url).port or 0 for each in workers.values()}
        degrees = {key: each.degree for key, each in wanted.items()}
        keys = sorted(
            wanted.keys() | engines.keys() | workers.keys(),
            key=lambda key: (key[0], -degrees.get(key, 0), key[1]),
        )
        hosts = await self._hosts(running)

        async def look(key: WorkerKey) -> Situation:
            engine = engines.get(key)
            host = "" if engine is None else hosts.get(engine.node, "")
            url = "" if engine is None or not host else f"http://{host}:{engine.process.port}"
            declared = wanted.get(key)
            memory = self._memory(key)
            await self._learn_why(memory)
            return Situation(
                key,
                declared,
                engine,
                workers.get(key),
                url,
                await self._failing(engine, workers.get(key), url),
                0 if key[0] in self._fleets.fleets else status.left_over.get(key[0], 0),
                "" if declared is None else why_never(declared, self._fleets.pools),
            )

        found = await asyncio.gather(*map(look, keys))
        return [self._with_port(each, ports) for each in found]

    def _with_port(self, seen: Situation, used: set[int]) -> Situation:
        """Choose the port of a worker without an engine, which no other one has."""
        if seen.engine is not None or seen.wanted is None:
            return seen
        port = next_port(seen.key, self._memory(seen.key).starts, used)
        used.add(port)
        return replace(seen, port=port)

    async def _failing(
        self, engine: WorkerEngineStatus | None, worker: FleetWorkerStatus | None, url: str
    ) -> str:
        """Return why an engine that starts does not answer; one that is registered there is probed as all workers are."""
        if engine is None or engine.state is not ActionState.RUNNING or engine.ending:
            return ""
        if not url:
            return f"the door of node {engine.node} is not known"
        if worker is not None and worker.facts.url == url and worker.facts.usable:
            return ""
        return await failing(self._client, url, HEALTH_SECONDS)

    async def _hosts(self, engines: Iterable[WorkerEngineStatus]) -> dict[str, str]:
        """Return where web processes reach each node that runs an engine; a node without a port is this machine."""
        found = {}
        for node in {each.node for each in engines if each.node}:
            door = await self._doors.read(node)
            if door is not None:
                local = door.socket_path is not None
                found[node] = "127.0.0.1" if local else door.address.rpartition(":")[0]
        return found

    async def _learn_why(self, memory: WorkerMemory) -> None:
        """Ask once it has ended why, until that is known."""
        if self._why_ended is None or memory.started or memory.why or not memory.action:
            return
        try:
            memory.why = await self._why_ended(memory.action)
        except Exception as error:  # rows may be away, whatever has them
            log.warning("why %s ended is not known: %r", memory.action, error)

    async def _report(self, found: dict[str, list[OwnWorkerReport]]) -> None:
        """Report the workers of each fleet, and forget deleted fleets without any."""
        for fleet in self._reports.retained - found.keys():
            self._reports.retained.discard(fleet)
            if fleet not in self._fleets.fleets:
                await self._reports.forget(fleet)
        self._reports.retained |= found.keys()
        for fleet in found.keys() | self._fleets.fleets.keys():
            self._reports.own(fleet, found.get(fleet, []))


def _gpus_to_start(seen: Situation) -> int:
    """Return the GPUs that a start of a worker would take; 0: it has an engine, or is not declared."""
    return 0 if seen.wanted is None or seen.engine is not None else seen.wanted.degree
