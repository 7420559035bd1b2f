"""Rules of all object stores, and S3 as a server on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import pytest

from domain.errors import Conflict, InvalidRequest, NotFound
from scheduler.runtime.object_store.contents import SMALL as SMALL_CODE
from scheduler.runtime.object_store.contents import keep_made, stored_content
from scheduler.runtime.object_store.objects import (
    FILES,
    PART_BYTES,
    SNAPSHOTS,
    ObjectDamaged,
    ObjectStore,
    object_key,
)

BUCKET = "tangram-test"
SMALL = b"small content"
#: One part and a bit.
LARGE = os.urandom(1024) * (PART_BYTES // 1024) + SMALL


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def key_of(content: bytes, area: str = FILES) -> str:
    return object_key(area, "p1", sha256_of(content))


async def pieces(content: bytes, size: int = 1024 * 1024) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def store_whole(store: ObjectStore, content: bytes, area: str = FILES) -> str:
    key = key_of(content, area)
    await store.put(key, len(content), pieces(content))
    return key


async def whole(store: ObjectStore, key: str) -> bytes:
    return b"".join([piece async for piece in store.get(key)])


@contextmanager
def s3_server() -> Iterator[str]:
    """Run S3 as moto plays it; yield its URL. It has the bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        httpx.put(f"{url}/{BUCKET}", timeout=60, trust_env=False).raise_for_status()
        yield url
    finally:
        server.stop()


class ObjectStoreConformance:
    """What every object store does."""

    @abstractmethod
    async def damage(self, store: ObjectStore, key: str, content: bytes) -> None:
        """Replace the content of an object behind the store's back."""

    @abstractmethod
    def traces(self) -> list[str]:
        """Return what is stored, finished or not."""

    @pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "small", "large"])
    async def test_what_is_put_is_read(self, store: ObjectStore, content: bytes) -> None:
        key = await store_whole(store, content)
        facts = await store.head(key)

        assert await whole(store, key) == content
        assert facts is not None
        assert facts.size_bytes == len(content)

    async def test_a_range_is_read(self, store: ObjectStore) -> None:
        key = await store_whole(store, LARGE)
        ends = [(5, 9), (PART_BYTES - 2, PART_BYTES + 2), (PART_BYTES + 4, None)]
        for first, end in ends:
            found = b"".join([each async for each in store.get(key, first=first, end=end)])
            assert found == LARGE[first:end]

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    @pytest.mark.parametrize("given", ["another", "longer", "shorter"])
    async def test_content_that_is_not_its_name_leaves_nothing(
        self, store: ObjectStore, content: bytes, given: str
    ) -> None:
        sent = {"another": content[:-1] + b"!", "longer": content + b"!", "shorter": content[:-1]}
        with pytest.raises(ObjectDamaged):
            await store.put(key_of(content), len(content), pieces(sent[given]))

        assert await store.head(key_of(content)) is None
        assert self.traces() == []

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    async def test_a_sender_that_breaks_off_leaves_nothing(
        self, store: ObjectStore, content: bytes
    ) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield content[:-1]
            raise OSError("the sender broke off")

        with pytest.raises(Exception, match="broke off"):
            await store.put(key_of(content), len(content), broken())

        assert await store.head(key_of(content)) is None
        assert self.traces() == []

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    async def test_a_put_that_is_cancelled_leaves_nothing(
        self, store: ObjectStore, content: bytes
    ) -> None:
        waiting = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield content[:-1]
            waiting.set()
            await asyncio.Event().wait()

        putting = asyncio.ensure_future(store.put(key_of(content), len(content), slow()))
        await waiting.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting

        assert await store.head(key_of(content)) is None
        assert self.traces() == []

    @pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
    async def test_what_a_part_makes_is_put_once_and_taken_by_its_digest(
        self, store: ObjectStore, content: bytes
    ) -> None:
        made: list[bytes] = []

        def make() -> AsyncIterator[bytes]:
            made.append(content)
            return pieces(content)

        first = await keep_made(store, FILES, "p1", make)
        again = await keep_made(store, FILES, "p1", make)
        taken = await stored_content(store, key_of(content), len(content))

        assert first == again
        assert (first.sha256, first.size_bytes) == (sha256_of(content), len(content))
        assert len(made) == 3  # for its digest and to be sent, then for its digest alone
        assert taken.size_bytes == len(content)
        assert b"".join([each async for each in taken.pieces]) == content
        with pytest.raises(InvalidRequest, match="larger than"):
            await stored_content(store, key_of(content), len(content) - 1)
        with pytest.raises(NotFound):
            await stored_content(store, key_of(content + b"!"), 1)

    async def test_what_changes_while_it_is_put_or_is_small_leaves_nothing(
        self, store: ObjectStore
    ) -> None:
        versions = [SMALL, SMALL[::-1]]

        def change() -> AsyncIterator[bytes]:
            return pieces(versions.pop())

        with pytest.raises(ObjectDamaged):
            await keep_made(store, FILES, "p1", change)
        with pytest.raises(Conflict, match="read it directly") as refused:
            await keep_made(store, FILES, "p1", lambda: pieces(SMALL), least_bytes=len(SMALL) + 1)

        assert refused.value.code == SMALL_CODE
        assert self.traces() == []

    async def test_a_damaged_object_is_refused_at_its_end(self, store: ObjectStore) -> None:
        key = await store_whole(store, SMALL)
        await self.damage(store, key, b"something else")

        with pytest.raises(ObjectDamaged, match="SHA-256"):
            await whole(store, key)

    async def test_an_object_is_listed_until_it_is_deleted(self, store: ObjectStore) -> None:
        file = await store_whole(store, SMALL)
        snapshot = await store_whole(store, SMALL, SNAPSHOTS)
        listed = [each.key async for each in store.list(FILES)]
        await store.delete(file)
        await store.delete(file)

        assert listed == [file]
        assert [each async for each in store.list(FILES)] == []
        assert [each.key async for each in store.list(SNAPSHOTS)] == [snapshot]
        with pytest.raises(NotFound, match=file):
            await whole(store, file)

    async def test_an_object_that_is_stored_again_is_not_older(self, store: ObjectStore) -> None:
        first = await store.head(await store_whole(store, SMALL))
        again = await store.head(await store_whole(store, SMALL))

        assert first is not None
        assert again is not None
        assert again.modified_at >= first.modified_at
