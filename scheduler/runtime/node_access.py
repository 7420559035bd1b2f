"""The keeper of node access: makes and deletes the Redis users of nodes that join by a token or are revoked.

Theory of operation. Web processes write for each node what it may (`Keys.node_access`); the keeper makes the users of Redis equal to
that, twice a second, and writes down what it did (`Keys.node_access_done`). It remembers nothing that it could not read again.

Rules
1. The keeper makes users of nodes, with the grants of a node (`domain.redis_grants`), from a name and the hash of a password. What
   wants more cannot be written down. It listens at no port, runs no code of others and has no database.
2. A user that the keeper did not make is an operator's. It is never replaced: its name is refused. It is deleted if its node is revoked.
3. A user that is missing or has another password is made again: Redis started without it, or an operator loaded an aclfile. One of a
   revoked node is deleted whenever it is there. The first pass of a keeper gives the rules of its version to all users that it made.
4. Deleting a user ends its connections. A node is fenced before, by the leader (`Keys.revoked_nodes`), also while no keeper runs.
5. What a node reported and is not read yet is deleted with its user, so a node that is admitted again begins without it.

Lifetimes. One keeper of an installation works while it has a lease; others stand by. Each step is idempotent, so a crash between two
of them, or a keeper that goes on after its lease is over, costs a repetition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from enum import Enum, auto
from time import monotonic
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from contract.node_access import (
    PASSWORD_DIGEST,
    AccessDone,
    NodeAccess,
    read_access,
    read_done,
)
from domain.errors import InvalidRequest
from domain.redis_access import RedisRole, check_name, user_name, user_rules
from domain.redis_grants import grants_of
from domain.redis_keys import Keys
from scheduler.runtime.fleets.keeper_lease import LEASE_SECONDS, KeeperLease
from scheduler.runtime.liveness import process_name
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.connection import AsyncRedisConnection

log = logging.getLogger(__name__)

#: Between two passes.
PASS_SECONDS: Final = 0.5
#: After a pass that failed.
RETRY_SECONDS: Final = 2.0
#: Between two comparisons of passwords, which are in a list of all rules.
COMPARE_SECONDS: Final = 5.0


class AccessStep(Enum):
    """What is done for one node in a pass."""

    #: Make the user, in place of one that was made for an earlier wish.
    ADMIT = auto()
    #: Make the user as it was, or give it the rules of this version.
    REPAIR = auto()
    #: Delete the user.
    EXPEL = auto()
    #: An operator has made a user of this name.
    REFUSE = auto()
    #: Its wish was taken back: delete what was made for it.
    DROP = auto()


def access_steps(
    wanted: Mapping[str, NodeAccess],
    done: Mapping[str, AccessDone],
    there: Collection[str],
    revoked: Collection[str],
    repaired: Collection[str],
) -> dict[str, AccessStep]:
    """Return what is to be done, by node.

    ``there``: nodes that have a user; ``revoked``: those that are fenced; ``repaired``: those with the rules of this version.
    """
    steps: dict[str, AccessStep] = {}
    for node, access in wanted.items():
        before = done.get(node)
        is_new = before is None or before.version != access.version
        if not access.is_admitted:
            if is_new or node in there:
                steps[node] = AccessStep.EXPEL
        elif is_new:
            foreign = node in there and before is None and node not in revoked
            steps[node] = AccessStep.REFUSE if foreign else AccessStep.ADMIT
        elif before is not None and not before.error and not (node in there and node in repaired):
            steps[node] = AccessStep.REPAIR
    return steps | dict.fromkeys(done.keys() - wanted.keys(), AccessStep.DROP)


class NodeAccessKeeper:
    """Makes passes while it has the lease. `run` returns when cancelled."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, *, pass_seconds: float = PASS_SECONDS,
        compare_seconds: float = COMPARE_SECONDS,
    ) -> None:  # fmt: skip
        self._keys, self._pass_seconds = keys, pass_seconds
        self._compare_seconds, self._compare_at = compare_seconds, 0.0
        self._connection = AsyncRedisConnection(client)
        name = process_name(RedisRole.ACCESS)
        self._lease = KeeperLease(
            client, keys, name, LEASE_SECONDS, keys.access_keeper, "node access"
        )
        self._renew_at = 0.0
        self._repaired: set[str] = set()

    async def run(self) -> None:
        """Keep the users until cancelled."""
        try:
            while keep_running():
                pause = self._pass_seconds
                try:
                    if await self._leads():
                        await self.look()
                except redis.RedisError as error:
                    log.warning("users of nodes stay as they are: %s", error)
                    pause = RETRY_SECONDS
                await asyncio.sleep(pause)
        finally:
            await self._give_back()

    async def _leads(self) -> bool:
        """Whether this process has the lease, which is renewed in time."""
        if monotonic() >= self._renew_at and await self._lease.take():
            self._renew_at = monotonic() + LEASE_SECONDS / 4
        return monotonic() < self._renew_at

    async def look(self) -> None:
        """Make one pass. Raises redis.RedisError."""
        keys = self._keys
        written, noted = await self._hash(keys.node_access), await self._hash(keys.node_access_done)
        wanted = _decoded(written, read_access)
        unreadable = written.keys() - wanted.keys()
        done = {
            node: each
            for node, each in _decoded(noted, read_done).items()
            if node not in unreadable
        }
        if not wanted and not done:
            return
        prefix = user_name(keys, RedisRole.NODE) + "-"
        users = map(_text, await self._call("ACL", "USERS"))
        there = {name.removeprefix(prefix) for name in users if name.startswith(prefix)}
        revoked = set(map(_text, await self._call("SMEMBERS", keys.revoked_nodes)))
        if monotonic() >= self._compare_at:
            self._compare_at = monotonic() + self._compare_seconds
            await self._compare(wanted)
        for node, step in access_steps(wanted, done, there, revoked, self._repaired).items():
            await self._take(node, step, wanted.get(node), done.get(node))

    async def _compare(self, wanted: Mapping[str, NodeAccess]) -> None:
        """Have users made again whose password is another one."""
        known: dict[str, list[str]] = {}
        for line in map(_text, await self._call("ACL", "LIST")):
            _, name, *rules = line.split(" ")
            known[name] = [rule[1:] for rule in rules if rule.startswith("#")]
        self._repaired = {
            node
            for node in self._repaired & wanted.keys()
            if known.get(user_name(self._keys, RedisRole.NODE, node)) == [wanted[node].digest]
        }

    async def _take(
        self, node: str, step: AccessStep, access: NodeAccess | None, before: AccessDone | None
    ) -> None:
        if access is None:  # its wish was taken back
            if before is None or not before.error:
                await self._expel(node)
            await self._call("HDEL", self._keys.node_access_done, node)
            return
        error = ""
        if step is AccessStep.EXPEL:
            await self._expel(node)
        elif step is AccessStep.REFUSE:
            error = (
                f"node {node} has a user of Redis that an operator made: choose another name, or revoke the node first"
            )  # fmt: skip
        else:
            error = await self._admit(node, access, afresh=step is AccessStep.ADMIT)
        await self._note(node, AccessDone(version=access.version, error=error))
        log.info("node %s: %s", node, error or step.name.lower())

    async def _admit(self, node: str, access: NodeAccess, *, afresh: bool) -> str:
        """Make the user of a node; return why not."""
        try:
            check_name(node, "/node")
            grants = grants_of(RedisRole.NODE, self._keys, node)
        except InvalidRequest as error:
            return str(error)
        if not PASSWORD_DIGEST.fullmatch(access.digest):
            return "the hash of a password has 64 hexadecimal digits"
        if afresh:
            # From here on the user is ours, also if this process ends before the end of the step.
            await self._note(node, AccessDone(version=""))
            await self._expel(node)
        user = user_name(self._keys, RedisRole.NODE, node)
        await self._call("ACL", "SETUSER", user, *user_rules(access.digest, grants))
        await self._call("SREM", self._keys.revoked_nodes, node)
        self._repaired.add(node)
        return ""

    async def _expel(self, node: str) -> None:
        """Delete the user of a node, which ends its connections, and then what it wrote."""
        keys = self._keys
        await self._call("ACL", "DELUSER", user_name(keys, RedisRole.NODE, node))
        for key in (
            keys.reports(node), keys.node_door(node), keys.snapshot_door(node), keys.alive(node),
        ):  # fmt: skip
            await self._call("DEL", key)
        self._repaired.discard(node)

    async def _note(self, node: str, done: AccessDone) -> None:
        await self._call("HSET", self._keys.node_access_done, node, msgspec.json.encode(done))

    async def _hash(self, key: str) -> dict[str, bytes]:
        found: list[bytes] = await self._call("HGETALL", key)
        return {_text(name): value for name, value in zip(found[::2], found[1::2], strict=True)}

    async def _call(self, *words: str | bytes) -> Any:
        return await self._connection.call(*words)

    async def _give_back(self) -> None:
        try:
            await self._lease.give_back()
        except redis.RedisError as error:
            log.warning("the lease of node access ends by itself: %s", error)
        finally:
            self._lease.close()
            self._connection.close()


def _text(name: bytes) -> str:
    """Return a name; one that is no text is of no node."""
    return name.decode(errors="replace")


def _decoded(found: Mapping[str, bytes], decode: Any) -> dict[str, Any]:
    """Return what can be read; what cannot is of another version, and is left alone."""
    read: dict[str, Any] = {}
    for name, value in found.items():
        try:
            read[name] = decode(value)
        except msgspec.DecodeError:
            log.warning("the access of node %r cannot be read", name)
    return read
