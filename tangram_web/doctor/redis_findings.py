"""Findings about the replication of Redis: what a promotion would lose, and replicas that are missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tangram_web.doctor.cluster_facts import ClusterFacts
from tangram_web.doctor.cluster_finding import ClusterFinding, fault, note
from tangram_web.problems import kinds

REDIS: Final = "redis"
FAILOVER: Final = "redis_failover"
_SECTION: Final = '"A replica takes over" of docs/operations.md'


def replication(facts: ClusterFacts) -> Iterator[ClusterFinding]:
    """Find what a promotion of a replica would lose, and too few replicas."""
    found, wanted = facts.replication, facts.wait_replicas
    if found is None:
        return
    if found.replicas < wanted:
        yield fault(
            kinds.REDIS_REPLICAS.key, REDIS,
            f"{found.replicas} of the {wanted} replicas that must confirm follow Redis: nothing is accepted or granted.",
            kinds.REDIS_REPLICAS.to_do,
        )  # fmt: skip
    if not found.has_sentinel:
        return
    if not found.needs_replicas:
        yield (note if wanted else fault)(
            FAILOVER, REDIS,
            "Sentinel watches Redis, and min-replicas-to-write is not set: a master that is cut off takes writes that a"
            " promotion throws away.",
            f"set min-replicas-to-write 1 and min-replicas-max-lag 2 on all servers: {_SECTION}",
        )  # fmt: skip
    if not wanted:
        yield note(
            FAILOVER, REDIS,
            "Sentinel watches Redis, and no replica confirms what is accepted: what the master had not sent when it fails"
            " is lost, and may run twice.",
            f"set TANGRAM_REDIS_WAIT_REPLICAS=1 for all parts and nodes: {_SECTION}",
        )  # fmt: skip
