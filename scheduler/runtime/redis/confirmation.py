"""Confirmation of writes by replicas of Redis: what is answered, shown or forgotten survives the loss of the master.

A replica has a prefix of what its master wrote, in the same order, and a script is replicated whole. So once a replica confirms one
write, it has all before it: no hole, and one confirmation for everything that one command wrote for many.

Rules
1. A confirmation counts for what was written on the same connection: after a new connection it could be another server.
2. A write that is not confirmed in time may be there all the same. Its writer treats it as not known, and asks or writes again.
3. Without replicas that must confirm, nothing is sent: the writes cost what they cost before.
"""

from __future__ import annotations

from typing import Final

import redis

from domain.confirmation import Confirmation

_NO_REPLICAS: Final = "NOREPLICAS"


class NotConfirmed(redis.RedisError):
    """Too few replicas have confirmed a write: a master that dies now may lose it."""


def check_confirmed(wanted: Confirmation, confirmed: int) -> None:
    """Raise NotConfirmed when fewer replicas than wanted have confirmed."""
    if confirmed < wanted.replicas:
        raise NotConfirmed(
            f"{confirmed} of {wanted.replicas} replicas of Redis have confirmed a write within"
            f" {wanted.milliseconds} ms (TANGRAM_REDIS_WAIT_REPLICAS)"
        )


def reason_of(error: redis.RedisError) -> str:
    """Return why Redis did not take a write, for those who sent the request."""
    text = str(error)
    if text.startswith(_NO_REPLICAS):
        return (
            "Redis refuses writes while fewer replicas follow it than its min-replicas-to-write"
            f" ({text})"
        )
    return text if isinstance(error, NotConfirmed) else f"redis does not answer: {text}"
