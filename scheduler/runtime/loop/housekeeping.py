"""What the leader does between passes: watch nodes, take snapshots, trim streams, show life."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from time import monotonic, time
from typing import TYPE_CHECKING, cast

import msgspec
import redis

from domain.apis import ApiConfig
from domain.decisions import Forget
from domain.events import Event, NodeLost, NodeReturned
from domain.redis_keys import Keys
from domain.services import GpuService
from scheduler.core.state import snapshot
from scheduler.runtime.loop.loop_stats import PASS_BOUNDS
from scheduler.runtime.loop.recovery import StoredSnapshot
from scheduler.runtime.redis.durability import risks
from scheduler.runtime.redis.journal import Journal

if TYPE_CHECKING:
    from scheduler.runtime.loop.scheduler_loop import SchedulerLoop

log = logging.getLogger(__name__)

EVERY_SECONDS = 0.5
#: How often those who do little else say that they are alive.
LIFE_SECONDS = 3.0
#: Between two looks at the settings of Redis.
DURABILITY_SECONDS = 60.0
#: What a loop is that must not lead (`refusal`); it says why.
REFUSING = "refusing"
#: A snapshot is taken after this many entries, or when what is behind it took so long to decide that
#: a successor would notice; but snapshots take no more than one part in so many of the deciding.
SNAPSHOT_ENTRIES = 5000
REPLAY_SECONDS = 0.3
SNAPSHOT_SHARE = 10.0
#: Journal kept for questions about the past, when nobody needs more.
JOURNAL_RETENTION_SECONDS = 900.0

#: A forgotten node that comes back within this time reads that it was, and cleans up.
FORGOTTEN_SECONDS = 30 * 86400

#: What a worker may say of itself.
Fact = float | str | Sequence[float] | None

_encode = msgspec.msgpack.Encoder().encode


class CapacityView(msgspec.Struct):
    """What each pool could give at most; the gateway refuses what can never fit."""

    revision: int
    projects: dict[str, str]
    #: Pool → one dict of capacities per node.
    pools: dict[str, list[dict[str, int]]]
    resources: dict[str, int]
    apis: dict[str, ApiConfig] = {}
    services: dict[str, GpuService] = {}
    #: Pool → memory of its largest GPU.
    gpu_memory_bytes: dict[str, int] = {}
    #: Pool → host memory for services of the node that keeps most; left out where a node counts none.
    service_memory_bytes: dict[str, int] = {}


class Housekeeping:
    """Periodic duties of the leader. `due` is called once per pass and does little."""

    def __init__(
        self,
        loop: SchedulerLoop,
        client: redis.Redis,
        keys: Keys,
        journal_seconds: float = JOURNAL_RETENTION_SECONDS,
        replayed: int = 0,
        replay_seconds: float = 0.0,
    ) -> None:
        """``replayed``: entries behind the stored snapshot, which the next leader would replay."""
        self._journal_seconds = journal_seconds
        self._loop = loop
        self._client = client
        self._keys = keys
        self._journal = Journal(client, keys)
        self._next = monotonic()
        self._trimmed = loop.inbox_id
        # What was replayed counts as fresh: leaders that follow each other quickly would otherwise
        # leave ever more to replay.
        self._snapshot_seq = loop.seq - replayed
        self._decided_before = loop.stats.decided_seconds - replay_seconds
        self._snapshot_seconds = 0.0
        self._look_at = 0.0
        self._redis_risks = ""

    def due(self) -> list[Event]:
        """Do what is due and return what was noticed about nodes."""
        if monotonic() < self._next:
            return []
        self._next = monotonic() + EVERY_SECONDS
        self._loop.leadership.renew()
        self._trim_questions()
        self._look_at_redis()
        self.show_life()
        if self._much_to_replay():
            self.snapshot()
        return self._look_at_nodes()

    def _much_to_replay(self) -> bool:
        """Say whether the next leader would have to replay so much that it takes over late."""
        if self._loop.seq - self._snapshot_seq >= SNAPSHOT_ENTRIES:
            return True
        decided = self._loop.stats.decided_seconds - self._decided_before
        return decided >= max(REPLAY_SECONDS, SNAPSHOT_SHARE * self._snapshot_seconds)

    def _look_at_redis(self) -> None:
        """Ask now and then whether Redis keeps what it is given: its settings change while it runs."""
        if monotonic() < self._look_at:
            return
        self._look_at = monotonic() + DURABILITY_SECONDS
        before, self._redis_risks = self._redis_risks, risks(self._client)
        if self._redis_risks != before and self._redis_risks:
            log.warning("redis may lose what is accepted: %s", self._redis_risks)

    def _trim_questions(self) -> None:
        """Drop what was handled without a commit: questions alone leave no entry in the journal.

        Everything up to the loop's place in the inbox is committed or was a question.
        """
        if self._loop.inbox_id != self._trimmed:
            self._trimmed = self._loop.inbox_id
            self._client.xtrim(self._keys.inbox, minid=self._trimmed, approximate=False)

    def _look_at_nodes(self) -> list[Event]:
        nodes = list(self._loop.machine.state.nodes.values())
        if not nodes:
            return []
        alive_keys = [self._keys.alive(node.name) for node in nodes]
        answers = cast("list[bytes | None]", self._client.mget(alive_keys))
        noticed: list[Event] = []
        for node, alive in zip(nodes, answers, strict=True):
            incarnation = node.inventory.incarnation
            shows_life = alive is not None and int(alive) == incarnation
            if shows_life and node.lost_at is not None:
                noticed.append(NodeReturned(node=node.name, incarnation=incarnation))
            elif not shows_life and node.lost_at is None:
                noticed.append(NodeLost(node=node.name, incarnation=incarnation))
        return noticed

    def forget(self, node: Forget) -> None:
        """Leave nothing of a forgotten node, but for a while what it was told."""
        log.info("node %s (%s) is forgotten", node.node, node.identity)
        stream = self._keys.commands(node.node, node.identity)
        with self._client.pipeline(transaction=False) as pipeline:
            pipeline.hdel(self._keys.workers, f"node@{node.node}")
            pipeline.expire(stream, FORGOTTEN_SECONDS)
            pipeline.expire(f"{stream}:position", FORGOTTEN_SECONDS)
            pipeline.execute()

    def snapshot(self) -> None:
        """Store the machine's state, and trim the journal behind it."""
        loop, began = self._loop, monotonic()
        self._decided_before = loop.stats.decided_seconds
        if loop.seq == self._snapshot_seq:
            return
        stored = StoredSnapshot(
            loop.journal_id,
            loop.inbox_id,
            loop.seq,
            snapshot.dump(loop.machine),
            loop.inbox_part,
        )
        loop.leadership.put(self._keys.snapshot, _encode(stored))
        self._snapshot_seq = loop.seq
        self._journal.trim(loop.journal_id, self._journal_seconds, loop.consumers)
        self._snapshot_seconds = monotonic() - began

    def publish_capacity(self) -> None:
        """Store what each pool could give at most."""
        state = self._loop.machine.state
        pools: dict[str, list[dict[str, int]]] = {name: [] for name in state.config.pools}
        memory: dict[str, int] = {}
        kept: dict[str, int] = {}
        uncounted: set[str] = set()
        for node in state.nodes.values():
            have = {kind: r.capacity for kind, r in node.inventory.resources.items()}
            pools.setdefault(node.inventory.pool, []).append(have)
            if (gpus := node.inventory.resources.get("gpu")) is not None:
                most = memory.get(node.inventory.pool, 0)
                memory[node.inventory.pool] = max(most, gpus.memory_bytes)
                if gpus.host_memory_bytes is None:
                    uncounted.add(node.inventory.pool)
                else:
                    most = kept.get(node.inventory.pool, 0)
                    kept[node.inventory.pool] = max(most, gpus.host_memory_bytes)
        view = CapacityView(
            revision=state.config.revision,
            projects={p.name: p.default_pool for p in state.config.projects.values()},
            pools=pools,
            resources={name: state.config.most(name) or 0 for name in state.config.resources},
            apis=state.config.apis,
            services=state.config.services,
            gpu_memory_bytes=memory,
            service_memory_bytes={n: most for n, most in kept.items() if n not in uncounted},
        )
        self._loop.leadership.put(self._keys.capacity, msgspec.json.encode(view))

    def show_life(self) -> None:
        """Say that this loop leads, and how it does."""
        stats = self._loop.stats
        show_life(
            self._client,
            self._keys,
            self._loop.leadership.name,
            "loop",
            epoch=self._loop.leadership.epoch,
            seq=self._loop.seq,
            inbox_id=self._loop.inbox_id,
            pass_p99_seconds=stats.quantile_seconds(0.99),
            pass_bounds=PASS_BOUNDS,
            pass_counts=stats.pass_counts,
            pass_sum=stats.pass_sum_seconds,
            redis_risks=self._redis_risks,
        )


def show_life(client: redis.Redis, keys: Keys, name: str, role: str, **facts: Fact) -> None:
    """Tell people and `/readyz` that a worker is alive."""
    body = {"role": role, "pid": os.getpid(), "at": time(), **facts}
    client.hset(keys.workers, name, json.dumps(body))
