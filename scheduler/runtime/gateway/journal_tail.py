"""Tail of the journal: resolves requests that wait for an action, and caches the last finished actions."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Set
from typing import Any, Protocol, cast

import redis
import redis.asyncio

from contract.responses import ActionResponse
from domain.codec import JournalEntry, read_entry
from domain.decisions import EndMove, Finish, ForkEnvironment, Grant, RemoveEnvironment, Renew
from domain.errors import Unreadable
from domain.events import (
    ActionFinished,
    ActionSubmitted,
    ConfigApplied,
    NodeForgetAsked,
    NodeJoined,
    NodeRevoked,
    TrajectoryFinished,
)
from domain.ids import trajectory_key
from domain.journal_reducer import JournalReducer, on
from domain.redis_keys import Keys
from scheduler.runtime.action_views import finished_view
from scheduler.runtime.gateway.environment_places import EnvironmentPlaces
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.connection import AsyncRedisConnection, read_stream_async
from scheduler.runtime.redis.journal import id_parts

log = logging.getLogger(__name__)

#: Finished actions in the cache.
RECENT = 4096
READ_ENTRIES = 128
RETRY_SECONDS = 0.2
#: Entries are read for so long at a time.
BUSY_SECONDS = 0.001
#: Pause of a process that waits for nothing: each read costs Redis and it a wake-up.
IDLE_PAUSE_SECONDS = 0.02
#: A lost cancellation takes effect after this time.
BLOCK_SECONDS = 5.0


class FollowsJournal(Protocol):
    """A reducer that a tail feeds beside itself."""

    def concerns(self, kinds: Set[type]) -> bool:
        """Return whether an entry with events and decisions of ``kinds`` is for this reducer."""

    def reduce(self, entry: JournalEntry) -> None:
        """Fold one entry."""

    def skipped(self) -> None:
        """An entry could not be read."""


class JournalTail(JournalReducer):
    """One reader of the journal per web process, however many clients wait.

    It stores nothing, so it skips an entry that it cannot read and lets all waiting requests query
    the scheduler instead; the projector of rows does not skip.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        refresh: Callable[[], None],
        arrived: Callable[[str], None] = lambda _: None,
        joined: Callable[[str, int], None] = lambda _node, _incarnation: None,
    ) -> None:
        super().__init__()
        self._client = client
        self._connection = AsyncRedisConnection(client)
        self._keys = keys
        #: Called when capacity or configuration may have changed.
        self._refresh = refresh
        #: Called with the id of each action that the scheduler has read.
        self._arrived = arrived
        #: Called with the name and the incarnation of each node that joins.
        self._joined = joined
        self.places = EnvironmentPlaces()
        #: Reducers that take each entry after this one.
        self.also: list[FollowsJournal] = []
        #: Whether this process has something to wait for; without it entries are read in larger batches.
        self.expects_entries: Callable[[], bool] = lambda: True
        #: Resolved with the finished action; with None when a lease is granted, or when an entry was
        #: skipped: then the request queries the state of its action.
        self._waiters: dict[str, list[asyncio.Future[ActionResponse | None]]] = defaultdict(list)
        self._renewals: dict[str, list[asyncio.Future[float]]] = defaultdict(list)
        self._recent: OrderedDict[str, tuple[Finish, ActionFinished | None, float, float]] = (
            OrderedDict()
        )
        self._advanced = asyncio.Condition()
        self.position = "0-0"
        self.seq = 0
        #: The entry that is being read, and the reports of nodes in it.
        self._entry: JournalEntry
        self._reports: dict[str, ActionFinished] = {}

    def recent(self, action_id: str) -> ActionResponse | None:
        """Return an action that finished recently; None for any other."""
        found = self._recent.get(action_id)
        return None if found is None else finished_view(*found)

    def finish_of(self, action_id: str) -> asyncio.Future[ActionResponse | None]:
        """Return a future of the finished action, or of None for a lease that was granted.

        None may also mean that an entry was skipped: query the state of the action then. A request that
        stops waiting must `discard` the future.
        """
        future: asyncio.Future[ActionResponse | None] = asyncio.get_running_loop().create_future()
        self._waiters[action_id].append(future)
        return future

    def renewal_of(self, action_id: str) -> asyncio.Future[float]:
        """Return a future of the wall-clock time at which a renewed lease ends; `forget` it after use."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._renewals[action_id].append(future)
        return future

    def postpone(self, action_id: str, future: asyncio.Future[Any]) -> None:
        """Resolve ``future`` with another one, which goes on waiting in its place: a client waits no longer."""
        futures = self._waiters.get(action_id, [])
        if future in futures and not future.done():
            later = future.get_loop().create_future()
            futures[futures.index(future)] = later
            future.set_result(later)

    def discard(self, action_id: str, future: asyncio.Future[ActionResponse | None]) -> None:
        """Drop a future that was not resolved."""
        futures = self._waiters.get(action_id)
        if futures and future in futures:
            futures.remove(future)
            if not futures:
                del self._waiters[action_id]

    def forget(self, action_id: str, renewal: asyncio.Future[float]) -> None:
        """Drop the future of a renewal that was not confirmed."""
        renewals = self._renewals.get(action_id)
        if renewals and renewal in renewals:
            renewals.remove(renewal)
            if not renewals:
                del self._renewals[action_id]

    async def reached(self, stream_id: str, timeout_seconds: float) -> bool:
        """Wait until the journal was read up to ``stream_id``."""
        wanted = id_parts(stream_id)
        async with self._advanced:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._advanced.wait_for(lambda: id_parts(self.position) >= wanted)
            except TimeoutError:
                return False
        return True

    async def next_entries(self, timeout_seconds: float) -> None:
        """Wait until more entries are read, or the time is over."""
        async with self._advanced:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._advanced.wait()
            except TimeoutError:
                return

    async def start(self) -> None:
        """Begin at the journal's end; actions that finished before are in rows."""
        answer = await self._client.xrevrange(self._keys.journal, count=1)
        newest = cast("list[tuple[bytes, dict[bytes, bytes]]]", answer)
        if newest:
            self.position = newest[0][0].decode()
            try:
                self.seq = read_entry(self.position, newest[0][1]).seq
            except Unreadable as error:
                log.error("the newest journal entry is skipped: %s", error)

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await self._follow()
        finally:
            self._connection.close()

    async def _follow(self) -> None:
        while keep_running():
            try:
                entries = await read_stream_async(
                    self._connection, self._keys.journal, self.position, READ_ENTRIES, BLOCK_SECONDS
                )
            except redis.RedisError as error:
                log.warning("the journal cannot be read: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            loop = asyncio.get_running_loop()
            began = loop.time()
            for stream_id, fields in entries:
                if loop.time() - began > BUSY_SECONDS:  # a flood must not delay other requests
                    await asyncio.sleep(0)
                    began = loop.time()
                try:
                    entry = read_entry(stream_id, fields)
                    self.reduce(entry)
                    kinds = {*map(type, entry.events), *map(type, entry.decisions)}
                    for reducer in self.also:
                        if reducer.concerns(kinds):
                            reducer.reduce(entry)
                except Unreadable as error:
                    log.error("a journal entry is skipped: %s", error)
                    self._skip()
                self.position = stream_id
            if entries:
                async with self._advanced:
                    self._advanced.notify_all()
                waits = self._waiters or self._renewals or self.expects_entries()
                # 0: responses are sent first.
                await asyncio.sleep(0 if waits else IDLE_PAUSE_SECONDS)

    def _skip(self) -> None:
        """Let all waiting requests query the scheduler: the skipped entry may concern them."""
        self._refresh()
        self.places.clear()
        for action_id in list(self._waiters):
            self._resolve(action_id, None)
        for reducer in self.also:
            reducer.skipped()

    def begin(self, entry: JournalEntry) -> None:
        """Record the number and the times of ``entry``."""
        self.seq = entry.seq
        self._entry = entry
        self._reports.clear()

    @on(NodeJoined)
    def _node_joined(self, event: NodeJoined) -> None:
        self._refresh()
        self._joined(event.node.name, event.node.incarnation)

    @on(NodeForgetAsked, NodeRevoked, ConfigApplied)
    def _capacity_changed(self, _: object) -> None:
        self._refresh()

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        self._arrived(event.action.id)

    @on(ActionFinished)
    def _reported(self, report: ActionFinished) -> None:
        self._reports[report.action_id] = report

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        self.places.granted(grant)
        if grant.expires_at is not None:
            self._resolve(grant.action_id, None)

    @on(ForkEnvironment)
    def _forking(self, fork: ForkEnvironment) -> None:
        self.places.forked(fork)

    @on(TrajectoryFinished)
    def _trajectory_finished(self, event: TrajectoryFinished) -> None:
        self.places.closed(trajectory_key(event.project, event.trajectory))

    @on(EndMove)
    def _moved(self, end: EndMove) -> None:
        self.places.moved(end)

    @on(RemoveEnvironment)
    def _removing(self, removal: RemoveEnvironment) -> None:
        self.places.removed(removal)

    @on(Renew)
    def _renewed(self, renew: Renew) -> None:
        ends = renew.expires_at + self._entry.wall_offset_seconds
        for renewal in self._renewals.pop(renew.action_id, ()):
            if not renewal.done():
                renewal.set_result(ends)

    @on(Finish)
    def _finished(self, finish: Finish) -> None:
        self.places.finished(finish)
        entry, report = self._entry, self._reports.get(finish.action_id)
        found = (finish, report, entry.at, entry.wall_offset_seconds)
        self._recent[finish.action_id] = found
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        if finish.action_id in self._waiters:
            self._resolve(finish.action_id, finished_view(*found))

    def _resolve(self, action_id: str, view: ActionResponse | None) -> None:
        for waiter in self._waiters.pop(action_id, ()):
            if not waiter.done():
                waiter.set_result(view)
