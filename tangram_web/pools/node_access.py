"""Admission and revocation of nodes: what a web process asks of the keeper of node access, and the fence of a node.

Rules
1. Both are written down at once and for good; the keeper makes or deletes the user of Redis within a second.
2. A node is fenced in one step, here: from then on none of its reports passes, and the loop ends what hangs on it (`NodeRevoked`).
   That waits for no keeper.
3. An admission is an answer only when the user is there. One that the keeper does not make in time is taken back.
4. Where all parts have one password of Redis, a node can be neither given one nor robbed of it: both are refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Final
from urllib.parse import urlsplit

import msgspec
import redis
from django.conf import settings

from contract.node_access import AccessDone, NodeAccess, read_access, read_done
from domain.codec import encode
from domain.errors import Conflict, Unavailable
from domain.events import NodeRevoked
from domain.redis_access import RedisRole, check_name, user_name
from tangram_web.lib import bus

#: Longest wait for the keeper, and between two looks at what it did.
KEEPER_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05

#: KEYS node access · ARGV node, access → the access of a node that is admitted already; else nothing, and it is set.
_ADMIT: Final = """
local before = redis.call('HGET', KEYS[1], ARGV[1])
if before and cjson.decode(before).digest ~= '' then return before end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return false
"""
#: KEYS node access · ARGV node, access. Takes an admission back, unless it has been replaced.
_TAKE_BACK: Final = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
"""
#: KEYS node access, revoked nodes, inbox · ARGV node, access, event.
_REVOKE: Final = """
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('XADD', KEYS[3], '*', '0', ARGV[3])
"""


def require_users() -> None:
    """Raise Conflict where the parts have no Redis users of their own (rule 4)."""
    if urlsplit(settings.TANGRAM_REDIS_URL).username != user_name(bus.keys(), RedisRole.WEB):
        raise Conflict(
            "nodes have no users of Redis here: all parts share one password, which would open everything to each machine and could"
            " not be taken back from one. Give the parts users of their own (manage.py redis_users; TANGRAM_REDIS_URL of each part),"
            " and start the keeper of node access (docs/security.md, Users of Redis)",
            code="no_redis_users",
        )


def require_keeper() -> None:
    """Raise Unavailable while no process makes users of nodes."""
    with _redis() as client:
        if not client.exists(bus.keys().access_keeper):
            raise Unavailable(
                "no process makes users of Redis for nodes: start one with python -m tangram_web.access_keeper"
            )


def admit(node: str, digest: str) -> None:
    """Let a node take part with the password of this SHA-256, and wait until it can; a repetition changes nothing.

    Raises InvalidRequest for a name that cannot have a user, Conflict for one that is taken, Unavailable without a keeper.
    """
    check_name(node, "/node")
    require_users()
    require_keeper()
    key = bus.keys().node_access
    access = NodeAccess(version=secrets.token_hex(8), digest=digest)
    with _redis() as client:
        written = msgspec.json.encode(access)
        before = bus.write("EVAL", _ADMIT, 1, key, node, written)
        if isinstance(before, bytes):
            access, written = read_access(before), before
            if access.digest != digest:
                raise Conflict(
                    f"node {node} has joined already: choose another name, or revoke it first (tangram node revoke {node})",
                    pointer="/node",
                )
        done = _outcome(client, node, access.version)
        if done is None or done.error:
            bus.write("EVAL", _TAKE_BACK, 1, key, node, written)
            if done is not None:
                raise Conflict(done.error, pointer="/node")
            raise Unavailable("the keeper of node access does not answer; send it again")


def fence(node: str) -> str:
    """Fence a node for good and have its user of Redis deleted; return the version of this wish.

    Raises Conflict without users of Redis, Unavailable if Redis does not answer, or no replica confirms: then repeat it.
    """
    check_name(node, "/name")
    require_users()
    keys, access = bus.keys(), NodeAccess(version=secrets.token_hex(8))
    names = keys.node_access, keys.revoked_nodes, keys.inbox
    wish, event = msgspec.json.encode(access), encode(NodeRevoked(node=node))
    bus.write("EVAL", _REVOKE, 3, *names, node, wish, event)
    return access.version


def is_deleted(node: str, version: str) -> bool:
    """Wait for the keeper to delete the user of a fenced node; False: it does not run, and does so once it does."""
    with _redis() as client:
        runs = bool(client.exists(bus.keys().access_keeper))
        return runs and _outcome(client, node, version) is not None


def is_admitted(node: str, digest: str) -> bool:
    """Whether a node can take part with the password of this SHA-256."""
    with _redis() as client:
        found = client.hget(bus.keys().node_access, node)
        if not isinstance(found, bytes) or (access := read_access(found)).digest != digest:
            return False
        done = client.hget(bus.keys().node_access_done, node)
        return isinstance(done, bytes) and read_done(done) == AccessDone(version=access.version)


def has_access(node: str) -> bool:
    """Whether a node joined by a token, or was revoked."""
    with _redis() as client:
        return bool(client.hget(bus.keys().node_access, node))


def _outcome(client: redis.Redis, node: str, version: str) -> AccessDone | None:
    """Wait for what the keeper does; None: it did nothing in time."""
    until = monotonic() + KEEPER_SECONDS
    while monotonic() < until:
        found = client.hget(bus.keys().node_access_done, node)
        if isinstance(found, bytes) and (done := read_done(found)).version == version:
            return done
        sleep(_POLL_SECONDS)
    return None


@contextmanager
def _redis() -> Iterator[redis.Redis]:
    try:
        yield bus.redis_client()
    except redis.RedisError as error:
        raise bus.unavailable(error) from error
