"""Fetcher of snapshots: the archive of a snapshot from the node that has it, by that node's door, else from the object store.

The copy in the store has the same bytes. So what a node breaks off is continued there, and the whole is checked.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import redis.asyncio

from contract.door_address import DoorAddress
from domain.errors import NotFound, Unavailable
from domain.redis_keys import Keys
from domain.snapshots import SnapshotFacts
from scheduler.runtime.object_store.objects import SNAPSHOTS, ObjectDamaged, ObjectStore, object_key
from scheduler.runtime.redis.door_addresses import DoorAddresses
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 3.0
#: Longest silence of the other node.
IDLE_SECONDS: Final = 60.0


def snapshot_path(project: str, name: str) -> str:
    """Return the path of a snapshot at the door of its node."""
    return f"/snapshots/{quote(project, safe='')}/{quote(name, safe='')}"


class SnapshotFetcher:
    """Gets snapshots from other nodes."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        *,
        own_user: bool = False,
        store: ObjectStore | None = None,
    ) -> None:
        """``own_user``: the node may read addresses for snapshots alone. ``store``: has copies of them."""
        self._registry = SnapshotRegistry(client, keys)
        self._addresses = DoorAddresses(client, keys, own_key=own_user)
        self._store = store

    async def fetch(self, project: str, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a snapshot. Raises NotFound, Unavailable."""
        try:
            facts = await self._registry.find(project, name)
            if facts is None:
                raise NotFound(f"there is no snapshot {name!r}")
            copy = await self._registry.copy_of(facts) if self._store is not None else None
            address = await self._addresses.of_snapshots(facts.node)
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from None
        pieces = _of_node(facts, address)
        if self._store is not None and copy is not None:
            key = object_key(SNAPSHOTS, project, copy.sha256)
            pieces = _of_both(pieces, self._store, key)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def fetch_from(
        self, node: str, project: str, name: str, trajectory: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a snapshot of ``node`` that is not registered. Raises Unavailable."""
        facts = SnapshotFacts(
            name=name, project=project, node=node, trajectory=trajectory, size_bytes=0, made_at=0.0
        )
        try:
            address = await self._addresses.of_snapshots(node)
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from None
        async with aclosing(_of_node(facts, address)) as pieces:
            async for piece in pieces:
                yield piece


async def _of_both(
    of_node: AsyncGenerator[bytes, None], store: ObjectStore, key: str
) -> AsyncGenerator[bytes, None]:
    """Yield what a node sends, and from where it breaks off what the store has."""
    passed, digest = 0, hashlib.sha256()
    try:
        async with aclosing(of_node):
            async for piece in of_node:
                passed += len(piece)
                digest.update(piece)
                yield piece
        return
    except Unavailable as error:
        log.warning("%s: it is read from the object store", error)
    async with aclosing(store.get(key, first=passed)) as rest:
        async for piece in rest:
            digest.update(piece)
            yield piece
    if not key.endswith(digest.hexdigest()):
        raise ObjectDamaged(key, "what the node sent before was not its beginning")


async def _of_node(
    facts: SnapshotFacts, address: DoorAddress | None
) -> AsyncGenerator[bytes, None]:
    import httpx  # most nodes fetch none

    name, node = facts.name, facts.node
    if address is None:
        raise Unavailable(f"snapshot {name!r} is on node {node}, which does not answer")
    transport = httpx.AsyncHTTPTransport(uds=address.socket_path, trust_env=False, verify=False)
    base = "http://node" if address.socket_path else f"http://{address.address}"
    timeout = httpx.Timeout(IDLE_SECONDS, connect=CONNECT_SECONDS)
    headers = {"authorization": f"Bearer {address.secret}"}
    path = snapshot_path(facts.project, name)
    try:
        async with (
            httpx.AsyncClient(transport=transport, base_url=base, timeout=timeout) as client,
            client.stream("GET", path, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                raise Unavailable(
                    f"node {node} refuses snapshot {name!r}: HTTP {answer.status_code}"
                )
            async for piece in answer.aiter_raw():
                yield piece
    except httpx.HTTPError as error:
        what = str(error) or type(error).__name__
        raise Unavailable(f"snapshot {name!r} cannot be read from node {node}: {what}") from error
