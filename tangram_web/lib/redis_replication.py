"""Replication of Redis as the master has it: which replicas follow, whether Sentinel watches, whether writes are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import redis

from domain.confirmation import refusal_of
from domain.redis_keys import Keys

#: A replica says once a second how far it is; one that is silent for longer confirms nothing.
SILENT_SECONDS: Final = 5
#: Sentinels follow this channel of each server that they watch.
_HELLO: Final = "__sentinel__:hello"


@dataclass(frozen=True)
class RedisReplication:
    """What INFO and the channels of a master say."""

    #: Replicas that follow, and have said so lately.
    replicas: int = 0
    #: min-replicas-to-write and min-replicas-max-lag are set.
    needs_replicas: bool = False
    has_sentinel: bool = False


def replicas_following(client: redis.Redis) -> int:
    """Return how many replicas follow. Raises redis.RedisError."""
    return _following(client.info("replication"))


def read_replication(client: redis.Redis) -> RedisReplication:
    """Read it. Raises redis.RedisError."""
    facts = client.info("replication")
    channels = cast("list[bytes]", client.pubsub_channels(_HELLO))
    return RedisReplication(_following(facts), "min_slaves_good_slaves" in facts, bool(channels))


def why_refused(client: redis.Redis, keys: Keys) -> str:
    """Return that Redis takes no write for lack of replicas, in sentences; empty: that is not the reason."""
    try:
        client.set(keys.barrier, 1)
    except redis.RedisError as error:
        if refusal := refusal_of(error):
            return f"{refusal}. Meanwhile nothing is accepted or granted, and nothing is lost."
    return ""


def _following(facts: dict[str, Any]) -> int:
    rows = [facts.get(f"slave{number}") for number in range(int(facts.get("connected_slaves", 0)))]
    return sum(
        isinstance(row, dict)
        and row.get("state") == "online"
        and int(row.get("lag", 0)) <= SILENT_SECONDS
        for row in rows
    )
