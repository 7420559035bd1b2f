"""Reads the facts of a cluster: from Redis, from the rows of nodes, from the keeper's reports, and by trying doors."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from time import time
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
import redis
from django.conf import settings

from contract.door_address import DoorAddress
from contract.machine_facts import ClockDifference, MachineFacts, clock_difference
from domain.errors import Unavailable
from domain.inventory import PoolConfig
from tangram_web.doctor.cluster_facts import ClusterFacts, ExaminedNode, ExaminedPart
from tangram_web.doctor.cluster_finding import ClusterFinding, worst_first
from tangram_web.doctor.door_trials import try_doors
from tangram_web.doctor.group_findings import groups
from tangram_web.doctor.node_findings import nodes
from tangram_web.doctor.part_findings import clocks, leader, standbys, versions
from tangram_web.doctor.redis_findings import replication
from tangram_web.lib import bus
from tangram_web.lib.redis_replication import RedisReplication, read_replication
from tangram_web.pools.group_reports import node_group_reports
from tangram_web.pools.models import NodeDrain
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeAvailability, NodeRecord, protection_of

#: Parts whose last sign of life is older have ended.
SHOWN_SECONDS: Final = 60.0
_NODE: Final = "node"
_WORKERS: Final = "node@"

T = TypeVar("T")


def findings_of(facts: ClusterFacts) -> list[ClusterFinding]:
    """Return everything that is found in a cluster, worst first."""
    found = [
        each
        for judge in (leader, standbys, clocks, versions, replication, nodes, groups)
        for each in judge(facts)
    ]
    return worst_first(found)


def read_cluster(clock: Callable[[], float] = time) -> ClusterFacts:
    """Read the facts, and try the doors of all nodes. ``clock``: wall clock of this machine. Raises Unavailable without Redis."""
    client, keys = bus.redis_client(), bus.keys()
    rows = list(NodeRecord.objects.order_by("name"))
    try:
        # The connection is open by then, so the next answer takes no longer than it must.
        lives = _texts(cast("dict[bytes, bytes]", client.hgetall(keys.workers)))
        before = clock()
        there = client.time()
        difference = clock_difference(before, clock(), there)
        stored_doors = _texts(cast("dict[bytes, bytes]", client.hgetall(keys.node_doors)))
        alive = client.mget([keys.alive(row.name) for row in rows]) if rows else []
        leads = cast("bytes | None", client.get(keys.leader))
        has_keeper = bool(client.exists(keys.node_group_keeper))
        replicas = _replication(client)
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error
    living = {row.name for row, incarnation in zip(rows, alive, strict=True) if incarnation}
    doors = _doors(stored_doors, living)
    parts = _parts(lives, clock())
    name = "" if leads is None else leads.decode()
    return ClusterFacts(
        now=clock(),
        web_host=socket.gethostname(),
        web_clock=difference,
        redis=_redis_address(),
        # One that leads and shows no life is not known any further.
        leader=parts.pop(name, None) or (ExaminedPart(name=name, role="loop") if name else None),
        parts=list(parts.values()),
        nodes=_nodes(rows, living, lives, doors, try_doors(doors)),
        groups={**dict.fromkeys(current_config().node_groups), **node_group_reports()},
        has_keeper=has_keeper,
        replication=replicas,
        wait_replicas=settings.TANGRAM_REDIS_WAIT.replicas,
    )


def _replication(client: redis.Redis) -> RedisReplication | None:
    try:
        return read_replication(client)
    except redis.ResponseError:  # a hosted Redis may hide it
        return None


def _texts(stored: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): text for name, text in stored.items()}


def _decoded(text: Any, kind: type[T]) -> T | None:
    """Return what a part reports; None where another version reports it in another form."""
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return None


def _parts(lives: Mapping[str, bytes], now: float) -> dict[str, ExaminedPart]:
    """Return the parts beside nodes that show life."""
    found = {}
    for name, text in lives.items():
        facts = json.loads(text)
        if facts["role"] == _NODE or abs(now - facts["at"]) > SHOWN_SECONDS:
            continue
        clock = _decoded(facts.get("clock"), ClockDifference)
        version = str(facts.get("version") or "")
        found[name] = ExaminedPart(
            name=name, role=facts["role"], version=version, clock=clock, cold=facts.get("cold", "")
        )
    return found


def _doors(stored: Mapping[str, bytes], living: set[str]) -> dict[str, DoorAddress]:
    found = {}
    for node in living & stored.keys():
        address = _decoded(json.loads(stored[node]), DoorAddress)
        if address is not None:
            found[node] = address
    return found


def _nodes(
    rows: list[NodeRecord],
    living: set[str],
    lives: Mapping[str, bytes],
    doors: Mapping[str, DoorAddress],
    problems: Mapping[str, str],
) -> list[ExaminedNode]:
    pools = current_config().pools
    drained = set(NodeDrain.objects.values_list("node", flat=True))
    found = []
    for row in rows:
        life = json.loads(lives.get(f"{_WORKERS}{row.name}", b"{}"))
        found.append(
            ExaminedNode(
                name=row.name,
                hostname=row.hostname,
                pool=row.pool,
                version=row.version,
                isolation=row.isolation,
                protection=protection_of(row),
                needs_sandbox=(pools.get(row.pool) or PoolConfig(row.pool)).needs_sandbox,
                drained=row.name in drained or row.state == NodeAvailability.DRAINED,
                is_silent=row.name not in living,
                # It is kept after a node has returned.
                lost_at=row.lost_at.timestamp()
                if row.lost_at and row.state == NodeAvailability.LOST
                else None,
                machine=_decoded(life["machine"], MachineFacts) if "machine" in life else None,
                door_problem=problems.get(row.name),
                has_door=row.name in doors,
            )
        )
    return found


def _redis_address() -> str:
    """Return where nodes reach Redis, without its password."""
    parts = urlsplit(settings.TANGRAM_REDIS_URL)
    if parts.scheme == "unix":
        return "the socket of Redis on this machine"
    return f"Redis at {parts.hostname}:{parts.port or 6379}"
