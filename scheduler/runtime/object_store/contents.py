"""Contents by way of the store: how a node puts what it can make, and takes what another part has put.

    content = await keep_made(store, FILES, "project", archive, least_bytes=8 * MIB)
    taken = await stored_content(store, key, MAX_UPLOAD_BYTES)

Rules
1. What is made (a file, the archive of a tree, of a snapshot, of an image) is made twice: for its digest, which names it, and to be sent. No
   draft needs disk. Content that changed in between is refused by the store's check, and nothing of it stays.
2. What the store has is not sent again while it stays for hours: ranks, forks and nodes ask for the same content at one time.
3. Content below ``least_bytes`` is refused as `SMALL`: its client reads it directly.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from time import time
from typing import Final, NamedTuple

from domain.errors import Conflict, InvalidRequest, Unavailable
from scheduler.runtime.object_store.objects import (
    SETTING,
    ContentDigest,
    ObjectStore,
    digest_of,
    missing,
    object_key,
)

#: Code of the refusal of a content that is not worth two hops.
SMALL: Final = "small_file"
#: An object that was put so lately is not put again; sweeping keeps it for twice as long.
FRESH_SECONDS: Final = 43_200.0

#: Returns a content from its beginning, each time that it is called.
MakeContent = Callable[[], AsyncIterator[bytes]]


class StoredContent(NamedTuple):
    """A content in the store."""

    size_bytes: int
    #: Raises ObjectDamaged at its end unless it has the digest.
    pieces: AsyncGenerator[bytes, None]


def existing(store: ObjectStore | None) -> ObjectStore:
    """Return the store. Raises Conflict without one."""
    if store is None:
        raise Conflict(
            f"this node has no {SETTING}: give it that of the web processes", code="no_object_store"
        )
    return store


def small(what: str, size_bytes: int) -> Conflict:
    """Return the refusal of a content that is too small."""
    return Conflict(f"{what} has {size_bytes} bytes: read it directly", code=SMALL)


async def stored_content(store: ObjectStore, key: str, most_bytes: int) -> StoredContent:
    """Return a content that another part has put. Raises NotFound, InvalidRequest for one that is too large."""
    facts = await store.head(key)
    if facts is None:
        raise missing(key)
    if facts.size_bytes > most_bytes:
        raise InvalidRequest(f"object {key} is larger than {most_bytes} bytes", code="too_large")
    return StoredContent(facts.size_bytes, store.get(key))


async def keep(store: ObjectStore, key: str, size_bytes: int, make: MakeContent) -> None:
    """Put a content unless it is there for hours to come."""
    try:
        facts = await store.head(key)
    except Unavailable:  # a part that may not list is refused what is not there
        facts = None
    oldest = time() - FRESH_SECONDS
    if facts is None or facts.size_bytes != size_bytes or facts.modified_at < oldest:
        await store.put(key, size_bytes, make())


async def keep_made(
    store: ObjectStore, area: str, project: str, make: MakeContent, *, least_bytes: int = 0
) -> ContentDigest:
    """Put what ``make`` returns, under its digest. Raises `small`, ObjectDamaged when it changes, and what it raises."""
    content = await digest_of(make())
    if content.size_bytes < least_bytes:
        raise small("the content", content.size_bytes)
    await keep(store, object_key(area, project, content.sha256), content.size_bytes, make)
    return content
