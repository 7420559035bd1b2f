"""Housekeeping of the leader between passes: liveness of nodes, snapshots, trimming of streams."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic, thread_time, time
from typing import NamedTuple, cast

import msgspec
import redis

from contract.machine_facts import ClockDifference, clock_difference
from domain.decisions import Forget
from domain.events import Event, NodeLost, NodeReturned
from domain.redis_keys import Keys
from domain.redis_servers import judge
from domain.rollout_events import RolloutWorkerLost
from scheduler.core.state import snapshot
from scheduler.core.state.live import LiveNode
from scheduler.core.state.rollouts import LiveRolloutWorker
from scheduler.runtime.capacity import capacity_of
from scheduler.runtime.liveness import show_life
from scheduler.runtime.loop.inbox import Inbox
from scheduler.runtime.loop.leadership import AsideWrite, Leadership
from scheduler.runtime.loop.loop_stats import PASS_BOUNDS, LoopStats
from scheduler.runtime.loop.snapshot_offers import OfferedSnapshots
from scheduler.runtime.loop.stored_snapshot import (
    LARGE_BYTES,
    SnapshotPace,
    StoredSnapshot,
    encode_snapshot,
)
from scheduler.runtime.loop.term import Term
from scheduler.runtime.redis.clients import durability_risks, server_of
from scheduler.runtime.redis.journal import Journal

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.5
#: Between two signs of life while no message arrives.
IDLE_LIFE_SECONDS = 2.0
#: Between two comparisons of the clock with that of Redis.
CLOCK_SECONDS = 12.0
#: A rollout worker is lost when its sign of life is missing for so long: Redis may have been away until just now.
SILENT_SECONDS = 1.2
#: Period of the check of Redis' settings.
DURABILITY_SECONDS = 60.0
#: A new leader grants what waited before it takes a snapshot.
FIRST_SNAPSHOT_SECONDS = 2.0
#: Journal kept for queries about the past, when no consumer needs more.
JOURNAL_RETENTION_SECONDS = 900.0

#: A forgotten node that returns within this time reads that it was forgotten, and cleans up.
FORGOTTEN_SECONDS = 30 * 86400


class _Covered(NamedTuple):
    """Up to which entry of the journal a snapshot goes, and the thread's CPU time when it was begun."""

    journal_id: str
    began: float


@dataclass(frozen=True)
class JournalRetention:
    """How much of the journal is kept."""

    seconds: float = JOURNAL_RETENTION_SECONDS
    #: Readers of the journal that miss nothing, however late they first start.
    consumers: Collection[str] = ()


class Housekeeping:
    """Periodic duties of a leader during one term. `due` is called once per pass and does little."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        term: Term,
        inbox: Inbox,
        leadership: Leadership,
        stats: LoopStats,
        retention: JournalRetention,
        replayed: int = 0,
        replay_seconds: float = 0.0,
    ) -> None:
        """``replayed``: entries behind the stored snapshot, which the next leader would replay."""
        self._client = client
        self._keys = keys
        self._term = term
        self._inbox = inbox
        self._leadership = leadership
        self._stats = stats
        self._retention = retention
        self._journal = Journal(client, keys)
        self._next = monotonic()
        self._trimmed = inbox.settled_id
        # Replayed entries count as new: leaders in quick succession would otherwise leave ever more
        # entries to replay.
        self._pace = SnapshotPace(term.seq - replayed, stats.decided_seconds - replay_seconds)
        self._offered = OfferedSnapshots(client, keys, leadership)
        self._snapshots_from = monotonic() + FIRST_SNAPSHOT_SECONDS
        #: A snapshot on its way.
        self._writing: tuple[AsideWrite, _Covered] | None = None
        self._durability_at = 0.0
        self._redis_risks = ""
        #: Place of the inbox in the last sign of life, and when the next one is due at the latest.
        self._shown_id, self._life_due_at = "", 0.0
        self._clock, self._clock_due_at = ClockDifference(0.0), 0.0
        #: Rollout worker → when it was first seen without a sign of life.
        self._silent: dict[str, float] = {}

    def due(self) -> list[Event]:
        """Do what is due and return events about nodes that were lost or have returned."""
        if monotonic() < self._next:
            return []
        self._next = monotonic() + PERIOD_SECONDS
        self._leadership.renew()
        self._trim_inbox()
        self._check_durability()
        if self._inbox.settled_id != self._shown_id or monotonic() >= self._life_due_at:
            self.show_life()
        if not self._finish_writing() and not self._adopt() and self._needs_snapshot():
            self.snapshot(aside_bytes=LARGE_BYTES)
        return self._lost_and_returned()

    def _needs_snapshot(self) -> bool:
        """Whether the next leader would have to replay so much that it takes over late."""
        if monotonic() < self._snapshots_from:
            return False
        decided = self._stats.decided_seconds
        return self._pace.is_due(self._term.seq, decided, self._offered.patience)

    def _adopt(self) -> bool:
        """Store the snapshot that a standby offers; return whether there was one."""
        pace, seq = self._pace, self._term.seq
        offer = self._offered.adopt(pace.seq, seq)
        if offer is None:
            return False
        decided = self._stats.decided_seconds
        behind = (decided - pace.decided_seconds) * (seq - offer.seq) / (seq - pace.seq)
        self._pace = SnapshotPace(offer.seq, decided - behind, offer.took_seconds)
        self._trim_behind(_Covered(offer.journal_id, thread_time()))
        return True

    def _check_durability(self) -> None:
        """Check whether Redis persists what it accepts: its settings may change while it runs."""
        if monotonic() < self._durability_at:
            return
        self._durability_at = monotonic() + DURABILITY_SECONDS
        before, self._redis_risks = self._redis_risks, durability_risks(self._client)
        if self._redis_risks != before and self._redis_risks:
            log.warning("redis may lose what is accepted: %s", self._redis_risks)
        server, known = server_of(self._client, self._stats.redis_package), self._stats.redis
        self._stats.redis = server
        if server != known and (found := judge(server)).cure:
            log.warning("%s; %s", found.detail, found.cure)

    def _trim_inbox(self) -> None:
        """Drop messages that were handled without a commit: queries leave no entry in the journal."""
        if self._inbox.settled_id != self._trimmed:
            self._trimmed = self._inbox.settled_id
            self._client.xtrim(self._keys.inbox, minid=self._trimmed, approximate=False)

    def _lost_and_returned(self) -> list[Event]:
        """Return what the signs of life of nodes and of rollout workers tell."""
        state, keys = self._term.machine.state, self._keys
        nodes, workers = list(state.supply.nodes.values()), list(state.rollouts.workers.values())
        if not nodes and not workers:
            return []
        names = [
            *(keys.alive(node.name) for node in nodes),
            *(keys.rollout_worker_alive(worker.name) for worker in workers),
        ]
        answers = cast("list[bytes | None]", self._client.mget(names))
        of_nodes, of_workers = answers[: len(nodes)], answers[len(nodes) :]
        return [*_node_events(nodes, of_nodes), *self._worker_events(workers, of_workers)]

    def _worker_events(
        self, workers: Sequence[LiveRolloutWorker], answers: Sequence[bytes | None]
    ) -> list[Event]:
        """Return the loss of rollout workers that showed no life for a while, with Redis answering."""
        silent, self._silent = self._silent, {}
        events: list[Event] = []
        for worker, alive in zip(workers, answers, strict=True):
            if alive is not None and int(alive) == worker.incarnation:
                continue
            since = silent.get(worker.name, monotonic())
            if monotonic() - since >= SILENT_SECONDS:
                events.append(RolloutWorkerLost(worker=worker.name, incarnation=worker.incarnation))
            else:
                self._silent[worker.name] = since
        return events

    def forget(self, node: Forget) -> None:
        """Remove a forgotten node from Redis; its commands expire, so that it can still read them."""
        log.info("node %s (%s) is forgotten", node.node, node.identity)
        stream = self._keys.commands(node.node, node.identity)
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.hdel(self._keys.workers, f"node@{node.node}")
            pipeline.expire(stream, FORGOTTEN_SECONDS)
            pipeline.expire(f"{stream}:position", FORGOTTEN_SECONDS)
            pipeline.execute()

    def snapshot(self, *, aside_bytes: float = inf) -> None:
        """Store the machine's state, and trim the journal behind it; one of ``aside_bytes`` is stored later."""
        self._leadership.finish_aside()
        self._finish_writing()
        term = self._term
        covered, before = _Covered(term.journal_id, thread_time()), self._pace
        self._pace = SnapshotPace(term.seq, self._stats.decided_seconds, before.took_seconds)
        if term.seq == before.seq:
            return
        stored = StoredSnapshot(
            term.journal_id,
            self._inbox.settled_id,
            term.seq,
            snapshot.dump(term.machine),
            self._inbox.settled_part,
        )
        body = encode_snapshot(stored)
        if len(body) >= aside_bytes:
            # The loop waits for no more of it.
            self._pace.took_seconds = thread_time() - covered.began
            self._writing = self._leadership.put_aside(self._keys.snapshot, body), covered
            return
        self._leadership.put(self._keys.snapshot, body)
        self._trim_behind(covered)
        self._pace.took_seconds = thread_time() - covered.began

    def _finish_writing(self) -> bool:
        """Finish a snapshot that has arrived; return whether one is still on its way. Raises redis.RedisError, Fenced."""
        if self._writing is None:
            return False
        write, covered = self._writing
        if write.is_alive():
            return True
        self._writing = None
        write.check()
        self._trim_behind(covered)
        return False

    def _trim_behind(self, covered: _Covered) -> None:
        self._journal.trim(covered.journal_id, self._retention.seconds, self._retention.consumers)

    def publish_capacity(self) -> None:
        """Store the capacity of each pool for web processes."""
        capacity = capacity_of(self._term.machine.state)
        self._leadership.put(self._keys.capacity, msgspec.json.encode(capacity))

    def show_life(self) -> None:
        """Store a sign of life of this loop as leader, with its statistics."""
        self._shown_id, self._life_due_at = self._inbox.settled_id, monotonic() + IDLE_LIFE_SECONDS
        if monotonic() >= self._clock_due_at:
            before = time()
            there = self._client.time()
            self._clock = clock_difference(before, time(), there)
            self._clock_due_at = monotonic() + CLOCK_SECONDS
        show_life(
            self._client,
            self._keys,
            self._leadership.name,
            "loop",
            epoch=self._leadership.epoch,
            seq=self._term.seq,
            inbox_id=self._inbox.settled_id,
            pass_p99_seconds=self._stats.quantile_seconds(0.99),
            pass_bounds=PASS_BOUNDS,
            pass_counts=self._stats.pass_counts,
            pass_sum=self._stats.pass_sum_seconds,
            redis_risks=self._redis_risks,
            clock=(self._clock.seconds, self._clock.within_seconds),
            refused_reports=self._stats.refused_reports,
        )


def _node_events(nodes: Sequence[LiveNode], answers: Sequence[bytes | None]) -> list[Event]:
    events: list[Event] = []
    for node, alive in zip(nodes, answers, strict=True):
        incarnation = node.inventory.incarnation
        is_alive = alive is not None and int(alive) == incarnation
        if is_alive and node.lost_at is not None:
            events.append(NodeReturned(node=node.name, incarnation=incarnation))
        elif not is_alive and node.lost_at is None:
            events.append(NodeLost(node=node.name, incarnation=incarnation))
    return events
