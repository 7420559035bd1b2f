"""CacheMoveRunner: makes the transfers that the scheduler decides (`MoveCache`), and says what became of them (`CacheMoved`).

Theory of operation. A move is *asked* when its begin is appended, and *runs* once that begin is in the journal without a `DropCacheMove` beside it: so no
transfer starts for a trajectory that is back already. Its end is appended with the tokens that the target has; 0 and why: it failed, and the target, or the
source, computes the prompt again.

Rules
1. A worker has one transfer, as source or target. The scheduler plans so; a move that would be a second one fails.
2. A move is made between workers of one version of the weights. It ends as failed when one of them gets other weights meanwhile.
3. A transfer ends early when its trajectory is finished, when its next request is granted a slot (the scheduler has not waited for it), and when a
   worker of it leaves or is unhealthy, or its target is drained.
4. Moves that a keeper before this one left open are ended as failed, once: those that the scheduler still has when the journal is caught up with.
5. Ends are appended until Redis takes them. Every one may arrive twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import redis

from contract.fleet_reports import MovesReport
from domain.codec import JournalEntry
from domain.decisions import DropCacheMove, Grant, MoveCache, SetFleet
from domain.errors import TangramError
from domain.events import TrajectoryFinished
from domain.fleet_events import CacheMoved
from domain.fleets import FleetWorker, TransferAdapter, fleet_of
from domain.ids import TrajectoryKey, trajectory_key
from domain.journal_reducer import JournalReducer, on
from managers.llm.cache_moves import CacheMove, CacheMoveFailed, CacheMover, cache_name
from placement.transmission import PLANNED_SECONDS
from scheduler.runtime.fleets.fleets_in_force import FleetsInForce
from scheduler.runtime.fleets.keeper_lease import KeeperLease
from scheduler.runtime.fleets.keeper_reports import KeeperReports
from scheduler.runtime.gateway.scheduler_queries import SchedulerQueries
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5
_LOOK_SECONDS: Final = 1.0
_SHOWN_CHARACTERS: Final = 300

Place = tuple[str, str]
"""Fleet and trajectory."""


class _OpenMove:
    """A move that is asked or runs."""

    __slots__ = ("confirmed", "decided", "running", "since", "source", "stopped", "target")

    def __init__(
        self, decided: MoveCache, source: FleetWorker, target: FleetWorker, since: float
    ) -> None:
        self.decided, self.source, self.target, self.since = decided, source, target, since
        #: Its begin is in the journal.
        self.confirmed = False
        self.running: asyncio.Task[None] | None = None
        #: Why it is to end early.
        self.stopped = ""


class CacheMoveRunner(JournalReducer):
    """A reader of the journal (`journal_follower.ReadsJournal`) that makes moves."""

    def __init__(
        self,
        fleets: FleetsInForce,
        lease: KeeperLease,
        reports: KeeperReports,
        queries: SchedulerQueries,
        movers: Mapping[TransferAdapter, CacheMover],
    ) -> None:
        super().__init__()
        self._fleets, self._lease, self._reports = fleets, lease, reports
        self._queries, self._movers = queries, movers
        self._open: dict[Place, _OpenMove] = {}
        #: Fleets whose workers changed since the journal was caught up with, with all their workers.
        self._changed: dict[str, dict[int, FleetWorker]] = {}
        self._made: dict[str, MovesReport] = {}
        self._unsent: list[CacheMoved] = []
        self._some = asyncio.Event()
        self._live = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Make moves until cancelled. Raises Fenced."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for part in (self._send(), self._end_those_before(), self._forget_unconfirmed()):
                group.create_task(part)

    # --- journal ------------------------------------------------------------------------------

    def read(self, stream_id: str, entry: JournalEntry) -> None:
        """Take one entry; those of before are left to `_end_those_before`."""
        if not self._live.is_set():
            return
        self.reduce(entry)
        for move in [each for each in self._open.values() if each.confirmed and not each.running]:
            self._start(move)

    def skipped(self) -> None:
        """Do nothing: a begin that is not seen is given up after some seconds."""

    def caught_up(self) -> None:
        """Make the moves that are decided from now on."""
        self._live.set()

    @on(SetFleet)
    def _changed_fleet(self, decided: SetFleet) -> None:
        self._changed[decided.fleet] = {each.number: each for each in decided.workers}
        for (fleet, _), move in self._open.items():
            if fleet == decided.fleet and (why := self._lost(move)):
                self._stop(move, why)

    def _lost(self, move: _OpenMove) -> str:
        """Return what happened to a worker of a move, of whose end nothing can follow; empty: nothing did."""
        workers = self._workers(move.decided.fleet)
        for before in (move.source, move.target):
            now = workers.get(before.number)
            if now is None:
                return f"{before.name} is not in the fleet any more"
            if now.weights_version != before.weights_version:
                return f"{now.name} got other weights meanwhile"
            if now.unhealthy:  # a host that is gone closes no connection
                return f"{now.name} is unhealthy: {now.unhealthy}"
        return (
            f"{move.target.name} was drained meanwhile"
            if workers[move.target.number].drained
            else ""
        )

    @on(MoveCache)
    def _decided(self, decided: MoveCache) -> None:
        made = self._made.setdefault(decided.fleet, MovesReport())
        workers = self._workers(decided.fleet)
        source, target = workers.get(decided.source), workers.get(decided.target)
        why = self._why_not(decided, source, target)
        if why or source is None or target is None:
            made.failed, made.why = made.failed + 1, why
            self._say(decided, ended=True, why=why)
        else:
            now = asyncio.get_running_loop().time()
            self._open[decided.fleet, decided.trajectory] = _OpenMove(decided, source, target, now)
            self._say(decided)
        self._report(decided.fleet)

    def _why_not(
        self, decided: MoveCache, source: FleetWorker | None, target: FleetWorker | None
    ) -> str:
        """Return why a move cannot be made; empty: it can."""
        if source is None or target is None:
            gone = decided.source if source is None else decided.target
            return f"worker {gone} is not in the fleet any more"
        if (decided.fleet, decided.trajectory) in self._open:
            return "the transfer before it has not ended"
        ends = {number for each in self._open.values() for number in _ends(each, decided.fleet)}
        if taken := ends & {decided.source, decided.target}:
            return f"worker {min(taken)} has another transfer"
        if source.moves is not target.moves or target.moves not in self._movers:
            return f"{source.name} and {target.name} have no way to move caches in common, as far as they were probed"
        if target.moves is TransferAdapter.NONE:
            return "no way to move caches was found between the workers"
        return _versions(source, target)

    @on(CacheMoved)
    def _journalled(self, event: CacheMoved) -> None:
        move = self._open.get((event.fleet, event.trajectory))
        if move is not None and not event.ended:
            move.confirmed = True

    @on(DropCacheMove)
    def _dropped(self, dropped: DropCacheMove) -> None:
        move = self._open.get((dropped.fleet, dropped.trajectory))
        if move is None:
            return
        if move.running is not None:
            self._stop(move, "the scheduler gave it up")
            return
        del self._open[dropped.fleet, dropped.trajectory]
        self._made[dropped.fleet].dropped += 1
        self._report(dropped.fleet)

    @on(TrajectoryFinished)
    def _finished(self, event: TrajectoryFinished) -> None:
        self._stop_all(
            trajectory_key(event.project, event.trajectory), "its trajectory is finished"
        )

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        if not self._open or grant.trajectory is None:
            return
        if any(fleet_of(each.resource) for each in grant.allocations):
            key = trajectory_key(grant.project, grant.trajectory)
            self._stop_all(key, "the next request of its trajectory did not wait for it")

    def _stop_all(self, key: str, why: str) -> None:
        for (_, trajectory), move in self._open.items():
            if trajectory == key:
                self._stop(move, why)

    def _stop(self, move: _OpenMove, why: str) -> None:
        """End a transfer; one that is asked ends with its begin."""
        move.stopped = move.stopped or why
        if move.running is not None:
            move.running.cancel()

    # --- transfers ----------------------------------------------------------------------------

    def _start(self, move: _OpenMove) -> None:
        if move.stopped:
            self._ended(move, 0, move.stopped)
        elif self._group is not None:
            move.running = self._group.create_task(self._transfer(move))
            move.running.add_done_callback(lambda _: self._is_over(move))

    def _is_over(self, move: _OpenMove) -> None:
        """End a move that was stopped; when the keeper itself ends, the next one says that it failed."""
        if move.stopped and self._open.get((move.decided.fleet, move.decided.trajectory)) is move:
            self._ended(move, 0, move.stopped)

    async def _transfer(self, move: _OpenMove) -> None:
        """Move a cache, and say what became of it. Raises nothing for what workers do."""
        decided = move.decided
        tokens = 0
        try:
            tokens = await self._movers[move.target.moves].move(
                CacheMove(
                    cache_name(decided.trajectory), move.source, move.target, decided.context_tokens
                )
            )
            why = "" if tokens > 0 else "nothing was moved"
        except CacheMoveFailed as error:
            why = str(error)
        except Exception as error:  # a fault of ours must not end the keeper
            log.exception("the move of %s failed", decided.trajectory)
            why = f"{type(error).__name__}: {error}"
        self._ended(move, 0 if why else tokens, why)

    def _ended(self, move: _OpenMove, tokens: int, why: str) -> None:
        decided = move.decided
        del self._open[decided.fleet, decided.trajectory]
        made = self._made[decided.fleet]
        if tokens > 0:
            made.moved, made.moved_tokens = made.moved + 1, made.moved_tokens + tokens
        else:
            made.failed, made.why = made.failed + 1, why[:_SHOWN_CHARACTERS]
            log.info(
                "fleet %s: the cache of %s is not moved: %s", decided.fleet, decided.trajectory, why
            )
        self._say(decided, ended=True, tokens=tokens, why=why)
        self._report(decided.fleet)

    def _workers(self, fleet: str) -> dict[int, FleetWorker]:
        """Return the workers of a fleet by number: as the journal has them, which is ahead of what is in force."""
        if fleet in self._changed:
            return self._changed[fleet]
        declared = self._fleets.fleets.get(fleet)
        return {} if declared is None else {each.number: each for each in declared.workers}

    async def _forget_unconfirmed(self) -> None:
        """Give up moves whose begin does not appear: the scheduler has dropped them by then."""
        while keep_running():
            await asyncio.sleep(_LOOK_SECONDS)
            before = asyncio.get_running_loop().time() - 2 * PLANNED_SECONDS
            for move in [each for each in self._open.values() if not each.confirmed]:
                if move.since < before:
                    self._ended(move, 0, "its begin was not confirmed")

    # --- what is said -------------------------------------------------------------------------

    async def _end_those_before(self) -> None:
        """End the moves that another keeper left open."""
        await self._live.wait()
        while keep_running():
            try:
                status = await self._queries.engines()
                break
            except TangramError as error:  # no leader answers
                log.info("moves of the keeper before are not known yet: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
        else:
            return
        for fleet in status.fleets:
            for each in fleet.moves:
                if (fleet.name, each.key) not in self._open:
                    why = "the process that moved it ended"
                    left = CacheMoved(
                        fleet=fleet.name, trajectory=TrajectoryKey(each.key), ended=True, why=why
                    )
                    self._queue(left)

    def _say(self, of: MoveCache, *, ended: bool = False, tokens: int = 0, why: str = "") -> None:
        self._queue(
            CacheMoved(
                fleet=of.fleet, trajectory=of.trajectory, ended=ended, tokens=tokens,
                why=why[:_SHOWN_CHARACTERS],
            )
        )  # fmt: skip

    def _queue(self, event: CacheMoved) -> None:
        self._unsent.append(event)
        self._some.set()

    async def _send(self) -> None:
        while keep_running():
            await self._some.wait()
            self._some.clear()
            events = list(self._unsent)
            try:
                await self._lease.append(events)
            except redis.RedisError as error:
                log.warning("what became of %d moves is not reported yet: %s", len(events), error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._some.set()
            else:
                del self._unsent[: len(events)]

    def _report(self, fleet: str) -> None:
        made = self._made[fleet]
        made.running = sum(1 for each in self._open if each[0] == fleet)
        self._reports.moved(fleet, made)


def _ends(move: _OpenMove, fleet: str) -> tuple[int, ...]:
    """Return the workers of ``fleet`` that a move has."""
    return (move.source.number, move.target.number) if move.decided.fleet == fleet else ()


def _versions(source: FleetWorker, target: FleetWorker) -> str:
    """Return that two workers have different weights; empty: they have equal ones."""
    if source.weights_version == target.weights_version:
        return ""
    return (
        f"{source.name} has version {source.weights_version} of the weights,"
        f" {target.name} has {target.weights_version}"
    )
