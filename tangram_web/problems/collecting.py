"""Collection of the facts that problems are judged by, from what other parts publish.

Live topics and signs of life are read each time. What costs more is read at times and kept between: the
status of the scheduler, its queues, rows of webhooks and the memory of Redis. A source that does not answer
is unknown until it does; nothing here waits for longer than the query of the scheduler does.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db.models import Count, Q

from contract.fleet_status import FleetsStatus, FleetStatus
from contract.responses import QueuesResponse
from domain.errors import Unavailable
from domain.redis_keys import Keys
from tangram_web.lib import scheduler_client
from tangram_web.lib.redis_replication import replicas_following
from tangram_web.live.gpu_use import GpuUse, gpu_uses
from tangram_web.live.topic_store import stored_snapshot, stored_snapshots
from tangram_web.live.topics import HOLDERS, NODES, OVERVIEW
from tangram_web.metrics.reading import READERS, WORKER_SECONDS, SystemReading, read_system
from tangram_web.problems.blocking import SHORT, holdings_of, with_causes
from tangram_web.problems.facts import (
    BlockerFact,
    EndpointFact,
    QueueFact,
    SystemFacts,
    WebProcessFact,
)
from tangram_web.problems.missed_actions import with_missed
from tangram_web.problems.part_conditions import REMOVED_SECONDS
from tangram_web.problems.submitters import submitters
from tangram_web.records.models import ActionRecord
from tangram_web.webhooks.models import DeliveryState, Endpoint

T = TypeVar("T")

#: A live topic that is older than this is unknown.
FRESH_SECONDS: Final = 10.0
_STATUS_SECONDS: Final = 2.0
#: The same while nothing waits: status, queues and fleets are then one question.
_QUEUES_SECONDS: Final = 5.0
_ROWS_SECONDS: Final = 5.0
_MEMORY_SECONDS: Final = 5.0
_SUBMITTERS_SECONDS: Final = 30.0
#: Queues that are looked at, the longest ones.
_QUEUES: Final = 50
#: Role of web processes, and how many are remembered: those that showed life last.
WEB: Final = "web"
_WEB_PROCESSES: Final = 200
_FAILURES: Final = (redis.RedisError, Unavailable, DatabaseError)


class _Kept:
    """Values that are read again when they are older than their time."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[float, Any]] = {}

    def get(self, name: str, seconds: float, read: Callable[[], T]) -> T | None:
        """Return a value that is at most ``seconds`` old; None when it cannot be read."""
        at, value = self._values.get(name, (float("-inf"), None))
        if monotonic() - at >= seconds:
            try:
                value = read()
            except _FAILURES:
                value = None
            self._values[name] = (monotonic(), value)
        return cast("T | None", value)

    def age(self, name: str) -> float:
        """Return the seconds since a value was read."""
        return monotonic() - self._values[name][0]


class FactCollector:
    """Collects facts, and remembers which roles ran."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._kept = _Kept()
        #: Role → when a process of it last showed life.
        self.roles: dict[str, float] = {}
        #: Name → web process that shows life, or did.
        self.web: dict[str, WebProcessFact] = {}
        #: The time of web processes counts from here.
        self.web_since = 0.0
        #: The fleets as the scheduler has them, for the strip of resources.
        self.fleets: list[FleetStatus] = []
        #: What GPUs do, for their pages; no condition reads it.
        self.gpus: list[GpuUse] = []

    def collect(self, now: float) -> SystemFacts:
        """Return the facts at ``now``, wall clock."""
        facts = SystemFacts(now=now)
        try:
            self._read_redis(facts)
        except redis.RedisError:
            return facts
        if facts.has_leader and facts.heartbeat_age is not None:
            self._ask_scheduler(facts)
        else:
            self.fleets = []
        facts.endpoints = self._kept.get("endpoints", _ROWS_SECONDS, failing_endpoints)
        facts.submitters = self._kept.get("submitters", _SUBMITTERS_SECONDS, submitters) or {}
        return facts

    def _read_redis(self, facts: SystemFacts) -> None:
        facts.overview, nodes = self._fresh(facts.now, OVERVIEW, NODES)
        facts.nodes = None if nodes is None else nodes.get("nodes", [])
        system = read_system(self._client, self._keys, READERS)
        self._read_workers(facts, system)
        self._read_gpus(facts, system)
        facts.redis_replicas = self._kept.get("replicas", 0.0, self._replicas)
        facts.redis_memory = self._kept.get("memory", _MEMORY_SECONDS, self._memory)

    def _read_workers(self, facts: SystemFacts, system: SystemReading) -> None:
        web: dict[str, WebProcessFact] = {}
        for worker in system.known:
            name, role, at = worker["name"], str(worker["role"]), float(worker["at"])
            if role == WEB:
                web[name] = msgspec.convert(worker, WebProcessFact)
            self.roles[role] = max(at, self.roles.get(role, 0.0))
            if role == "node":
                facts.node_workers[name.removeprefix("node@")] = at
        if facts.nodes == []:
            self.roles.pop("node", None)
        facts.roles = dict(self.roles)
        self.web = remembered_web(self.web, web, facts.now)
        facts.web, facts.web_since = dict(self.web), self.web_since
        facts.has_leader = system.leader is not None
        facts.heartbeat_age = system.tick_lag_seconds
        facts.lags = {name: lag.seconds for name, lag in system.lags.items()}
        facts.inbox_entries, facts.dead_letters = system.inbox_entries, system.dead_letters

    def _read_gpus(self, facts: SystemFacts, system: SystemReading) -> None:
        nodes = [node for node in facts.nodes or () if node["gpus"]["groups"]]
        held = stored_snapshot(self._client, HOLDERS).get("nodes", ()) if nodes else ()
        self.gpus = gpu_uses(nodes, held, system.gpus())

    def _fresh(self, now: float, *topics: str) -> list[dict[str, Any] | None]:
        found = stored_snapshots(self._client, *topics)
        return [each if each and now - each["wall"] <= FRESH_SECONDS else None for each in found]

    def _memory(self) -> tuple[int, int]:
        info = self._client.info("memory")
        most = int(info.get("maxmemory") or 0) or int(info.get("total_system_memory") or 0)
        return int(info["used_memory"]), most

    def _replicas(self) -> tuple[int, int]:
        wanted = settings.TANGRAM_REDIS_WAIT.replicas
        return replicas_following(self._client) if wanted else 0, wanted

    def _queues(self, now: float) -> list[QueueFact] | None:
        standing = self._kept.get("standing", _QUEUES_SECONDS, _standing)
        queues = None if standing is None else queue_facts(standing[1])
        if not any(each.code == SHORT for each in queues or ()):
            return queues
        (holders,) = self._fresh(now, HOLDERS)
        return with_causes(queues or (), holdings_of((holders or {}).get("nodes", ())), now)

    def _ask_scheduler(self, facts: SystemFacts) -> None:
        """Ask for status, queues and fleets together; in between for the status alone, unless nothing waits."""
        standing = self._kept.get("standing", _QUEUES_SECONDS, _standing)
        if standing is None:
            return
        status, queues, fleets = standing
        self.fleets = fleets.fleets
        busy = bool(queues.items) or _acts(facts.overview)
        if busy and self._kept.age("standing") >= _STATUS_SECONDS:
            status = self._kept.get("status", _STATUS_SECONDS, scheduler_client.status) or status
        facts.resources = status.get("resources", {})
        facts.queues = self._queues(facts.now)
        if facts.overview is not None:
            pools = status.get("pools", {})
            facts.overview = with_missed(facts.overview, pools, facts.queues or ())
        blockers = {each.blocked_by for each in facts.queues or () if each.blocked_by}
        if blockers:
            known = self._kept.get("blockers", _QUEUES_SECONDS, lambda: blocker_facts(blockers))
            facts.blockers = known or {}


def remembered_web(
    before: dict[str, WebProcessFact], seen: dict[str, WebProcessFact], now: float
) -> dict[str, WebProcessFact]:
    """Return the web processes that are seen, and earlier ones of an hour.

    A row that is taken away while it is fresh is that of a process that ended in order.
    """
    gone = {
        name: msgspec.structs.replace(each, ended=True) if now - each.at <= WORKER_SECONDS else each
        for name, each in before.items()
        if name not in seen
    }
    known = sorted((gone | seen).items(), key=lambda item: -item[1].at)[:_WEB_PROCESSES]
    return {name: each for name, each in known if now - each.at <= REMOVED_SECONDS}


def _acts(overview: dict[str, Any] | None) -> bool:
    return any((overview or {}).get("counts", {}).values())


def _standing() -> tuple[dict[str, Any], QueuesResponse, FleetsStatus]:
    return scheduler_client.standing(_QUEUES)


def queue_facts(queues: QueuesResponse) -> list[QueueFact]:
    """Return the longest queues."""
    return [
        QueueFact(
            pool=each.pool,
            node=each.node or "",
            waiting=each.waiting,
            waited_seconds=each.waited_seconds,
            needs={name: float(units) for name, units in each.needs.items()},
            code=each.why.code,
            subject=each.why.subject or "",
            blocked_by=each.why.blocked_by or "",
            head=each.head,
            resource=each.why.resource or "",
        )
        for each in queues.items
    ]


def blocker_facts(actions: set[str]) -> dict[str, BlockerFact]:
    """Return what rows know of these actions."""
    rows = ActionRecord.objects.filter(pk__in=actions)
    return {
        key: BlockerFact(project=project, task=task, node=node or "", trajectory=trajectory or "")
        for key, project, task, node, trajectory in rows.values_list(
            "id", "project", "task", "node", "trajectory"
        )
    }


def failing_endpoints() -> list[EndpointFact]:
    """Return the enabled endpoints whose deliveries fail."""
    waiting = Count("deliveries", filter=Q(deliveries__state=DeliveryState.PENDING))
    failing = Endpoint.objects.filter(enabled=True).exclude(failing_since=None)
    return [
        EndpointFact(
            id=each.pk,
            project=each.project_id,
            host=urlsplit(each.url).hostname or each.url,
            failing_since=each.failing_since.timestamp() if each.failing_since else 0.0,
            waiting=each.waiting,
        )
        for each in failing.annotate(waiting=waiting)
    ]
