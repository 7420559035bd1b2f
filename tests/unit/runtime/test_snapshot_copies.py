"""A snapshot is copied to the object store, and read from there when its node is gone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from time import time
from typing import Any, cast

import msgspec
import pytest

from domain.errors import Unavailable
from domain.redis_keys import Keys
from domain.snapshots import SnapshotFacts
from scheduler.runtime.node import snapshot_copies, snapshot_fetcher
from scheduler.runtime.node.snapshot_copies import SnapshotCopies
from scheduler.runtime.node.snapshot_fetcher import SnapshotFetcher
from scheduler.runtime.object_store.folder_objects import FolderObjects
from scheduler.runtime.object_store.objects import (
    FILES,
    IMAGES,
    SNAPSHOTS,
    ObjectDamaged,
    object_key,
)
from scheduler.runtime.object_store.sweeping import KEEP_SECONDS, sweep
from scheduler.runtime.redis.image_registry import ImageRegistry, StoredImage
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry

KEYS = Keys()
ARCHIVE = [b"the head\n", b"the first layer", b"the second layer"]
FACTS = SnapshotFacts(
    name="kept", project="p", node="n1", trajectory="t", size_bytes=1, made_at=1.0, request_id="r1"
)


class HashRedis:
    """Hashes and texts in memory."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[str, bytes]] = {}

    async def execute_command(self, name: str, *words: Any) -> Any:
        texts = [word.decode() if isinstance(word, bytes) else word for word in words]
        return await getattr(self, name.lower())(*texts)

    async def hsetnx(self, key: str, field: str, text: str) -> int:
        return int(
            self.hashes.setdefault(key, {}).setdefault(field, text.encode()) == text.encode()
        )

    async def hget(self, key: str, field: str) -> bytes | None:
        return self.hashes.get(key, {}).get(field)

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        return {field.encode(): text for field, text in self.hashes.get(key, {}).items()}

    async def hset(self, key: str, field: str, text: str) -> None:
        self.hashes.setdefault(key, {})[field] = text.encode()

    async def hvals(self, key: str) -> list[bytes]:
        return list(self.hashes.get(key, {}).values())

    async def hdel(self, key: str, *fields: str) -> int:
        return sum(self.hashes[key].pop(field, None) is not None for field in fields)

    async def get(self, key: str) -> bytes | None:
        return None


class Node:
    """A node with one snapshot, whose archive may break off."""

    def __init__(self, pieces: list[bytes], until: int | None = None) -> None:
        self.pieces, self.until = pieces, until

    async def export(self, project: str, name: str) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self.pieces):
            if number == self.until:
                raise Unavailable("the node is gone")
            yield piece


@pytest.fixture
def client() -> Any:
    return HashRedis()


@pytest.fixture
def images(client: Any) -> ImageRegistry:
    return ImageRegistry(client, KEYS)


@pytest.fixture
def registry(client: Any) -> SnapshotRegistry:
    return SnapshotRegistry(client, KEYS)


@pytest.fixture
def store(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path)


async def copied(registry: SnapshotRegistry, store: FolderObjects, node: Node) -> None:
    await registry.add(FACTS)
    copies = SnapshotCopies(registry, store)
    copies.keep(FACTS, node.export)
    await copies.settled()


async def fetched(client: Any, store: FolderObjects | None) -> bytes:
    fetcher = SnapshotFetcher(cast("Any", client), KEYS, store=store)
    return b"".join([piece async for piece in fetcher.fetch("p", "kept")])


@pytest.mark.parametrize("until", [0, 1, 2, None])
async def test_what_a_node_breaks_off_is_continued_from_the_store(
    client: Any,
    registry: SnapshotRegistry,
    store: FolderObjects,
    until: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await copied(registry, store, Node(ARCHIVE))
    node = Node(ARCHIVE, until)
    monkeypatch.setattr(snapshot_fetcher, "_of_node", lambda *_: node.export("p", "kept"))

    assert await fetched(client, store) == b"".join(ARCHIVE)


async def test_a_node_that_is_gone_is_no_obstacle_with_the_store_alone(
    client: Any, registry: SnapshotRegistry, store: FolderObjects
) -> None:
    await copied(registry, store, Node(ARCHIVE))

    assert await fetched(client, store) == b"".join(ARCHIVE)
    with pytest.raises(Unavailable, match="node n1, which does not answer"):
        await fetched(client, None)


async def test_a_node_that_sent_something_else_before_is_noticed(
    client: Any, registry: SnapshotRegistry, store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied(registry, store, Node(ARCHIVE))
    node = Node([b"THE HEAD\n", b""], 1)
    monkeypatch.setattr(snapshot_fetcher, "_of_node", lambda *_: node.export("p", "kept"))

    with pytest.raises(ObjectDamaged, match="not its beginning"):
        await fetched(client, store)


async def test_a_copy_is_repeated_until_the_store_takes_it(
    registry: SnapshotRegistry, store: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_copies, "FIRST_PAUSE_SECONDS", 0.0)
    node, failures = Node(ARCHIVE), [1, 1]

    def export(project: str, name: str) -> AsyncIterator[bytes]:
        node.until = 1 if failures and failures.pop() else None
        return node.export(project, name)

    await registry.add(FACTS)
    copies = SnapshotCopies(registry, store)
    copies.keep(FACTS, export)
    await copies.settled()

    assert failures == []
    assert await registry.copy_of(FACTS) is not None


async def test_a_snapshot_that_was_taken_again_has_no_copy_of_the_former_one(
    registry: SnapshotRegistry, store: FolderObjects
) -> None:
    await copied(registry, store, Node(ARCHIVE))
    again = msgspec.structs.replace(FACTS, request_id="r2")

    assert await registry.copy_of(FACTS) is not None
    assert await registry.copy_of(again) is None


async def test_copying_ends_with_the_worker(
    registry: SnapshotRegistry, store: FolderObjects
) -> None:
    began = asyncio.Event()

    async def endless(project: str, name: str) -> AsyncIterator[bytes]:
        began.set()
        yield b"head"
        await asyncio.Event().wait()

    await registry.add(FACTS)
    copies = SnapshotCopies(registry, store)
    copies.keep(FACTS, endless)
    await began.wait()
    await copies.close()

    assert await registry.copy_of(FACTS) is None
    assert [each async for each in store.list(SNAPSHOTS)] == []


async def test_without_a_store_nothing_is_copied(registry: SnapshotRegistry) -> None:
    copies = SnapshotCopies(registry, None)
    copies.keep(FACTS, Node(ARCHIVE).export)
    await copies.settled()

    assert await registry.copy_of(FACTS) is None


async def test_a_sweep_deletes_old_objects_that_nothing_refers_to(
    client: Any, registry: SnapshotRegistry, images: ImageRegistry, store: FolderObjects
) -> None:
    await copied(registry, store, Node(ARCHIVE))
    for area, content in ((SNAPSHOTS, b"loose"), (FILES, b"file"), (IMAGES, b"former"), (IMAGES, b"now")):  # fmt: skip
        key = object_key(area, "p", hashlib.sha256(content).hexdigest())
        await store.put(key, len(content), Node([content]).export("p", "kept"))
    for content in (b"former", b"now"):
        await images.add(StoredImage("swe:1", hashlib.sha256(content).hexdigest(), 1, "d"))
    tomorrow = time() + KEEP_SECONDS + 60

    assert await sweep(store, registry, images) == 0
    assert await sweep(store, registry, images, tomorrow) == 3
    assert await fetched(client, store) == b"".join(ARCHIVE)
    await client.hdel(KEYS.snapshots, "p/kept")
    assert await images.remove("swe:1")
    assert not await images.remove("swe:1")
    assert await sweep(store, registry, images, tomorrow) == 2
    assert [each async for each in store.list(SNAPSHOTS)] == []
    assert [each async for each in store.list(IMAGES)] == []
    assert client.hashes[KEYS.snapshot_copies] == {}


async def test_a_sweep_of_a_store_that_does_not_answer_deletes_nothing(
    registry: SnapshotRegistry, images: ImageRegistry, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    store = FolderObjects(tmp_path / "file")
    assert await sweep(store, registry, images, time() + KEEP_SECONDS) == 0
