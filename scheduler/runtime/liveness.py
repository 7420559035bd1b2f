"""Liveness of workers: each stores a sign of life in Redis, which `/readyz` and the pages read."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Sequence
from time import time

import redis

from domain.redis_keys import Keys

#: Period of the signs of life of workers that do little else.
LIFE_SECONDS = 3.0
#: Role of a loop that must not lead (`leadership.LeadershipRefused`); its fact ``why`` gives the reason.
REFUSING = "refusing"

#: What a worker reports of itself.
Fact = float | str | Sequence[float] | Sequence[str] | None


def process_name(role: str) -> str:
    """Return a name that no other process has ever had."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def show_life(client: redis.Redis, keys: Keys, name: str, role: str, **facts: Fact) -> None:
    """Store a sign of life of the worker ``name``, with its facts."""
    client.hset(keys.workers, name, life_of(role, **facts))


def life_of(role: str, **facts: Fact) -> str:
    """Return a sign of life, as it is stored."""
    return json.dumps({"role": role, "pid": os.getpid(), "at": time(), **facts})
