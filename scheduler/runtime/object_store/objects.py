"""Objects: the interface of a store, keys that name content, and the check of that content.

key = object_key(FILES, "project", sha256)
await store.put(key, size_bytes, pieces)
async for piece in store.get(key): ...
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, NamedTuple, Protocol

import msgspec

from domain.errors import InvalidRequest, NotFound, Unavailable

#: Areas: the first part of a key.
SNAPSHOTS: Final = "snapshots"
FILES: Final = "files"
IMAGES: Final = "images"
#: In place of a project, of what all share. No project has this name.
ALL_PROJECTS: Final = "*"
SETTING: Final = "TANGRAM_OBJECT_STORE"
#: Pieces in which objects are read, and the least size of the parts in which they are written.
PART_BYTES: Final = 8 * 1024 * 1024
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class ObjectFacts(msgspec.Struct, frozen=True):
    """What is known of an object without reading it."""

    key: str
    size_bytes: int
    #: Seconds since 1970, by the clock of the store.
    modified_at: float


class ContentDigest(msgspec.Struct, frozen=True):
    """SHA-256 of a content in hexadecimal digits, and its size."""

    sha256: str
    size_bytes: int


class BucketAddress(NamedTuple):
    """A bucket, and where in it objects are."""

    bucket: str
    prefix: str
    #: URL of the server; empty: that of AWS in the region.
    endpoint: str
    region: str


class ObjectStore(Protocol):
    """A store of objects. Methods raise Unavailable when it cannot be used, with the cure."""

    async def put(self, key: str, size_bytes: int, pieces: AsyncIterator[bytes]) -> None:
        """Store an object whole, or nothing.

        Raises ObjectDamaged when the pieces are not what the key and the size say, StorageFull, and what the pieces raise.
        """

    def get(
        self, key: str, *, first: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``first`` up to and without ``end``.

        Raises NotFound. A whole object is checked: ObjectDamaged at its end. A range is not.
        """

    async def head(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object; None when there is none."""

    async def delete(self, key: str) -> None:
        """Delete an object; an unknown one is ignored."""

    def list(self, area: str) -> AsyncIterator[ObjectFacts]:
        """Yield the objects of an area, in no order."""

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return a URL at which a PUT stores the object, for ``seconds``; None where clients do not reach the store."""

    async def download_url(self, key: str, seconds: float) -> str | None:
        """Return a URL at which a GET reads the object, for ``seconds``; None where clients do not reach the store."""


class ObjectDamaged(Unavailable):
    """Content is not what its name says."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"object {key} is damaged: {reason}; send it again")


def object_key(area: str, project: str, sha256: str) -> str:
    """Return the key of a content of a project. Raises InvalidRequest for what is no digest."""
    if not _DIGEST.fullmatch(sha256):
        raise InvalidRequest(
            f"sha256={sha256[:80]!r}: give the SHA-256 of the content in 64 hexadecimal digits",
            pointer="/sha256",
        )
    whose = project
    if not _PLAIN.fullmatch(project):
        whose = f"x.{hashlib.sha256(project.encode()).hexdigest()[:32]}"
    return f"{area}/{whose}/{sha256}"


async def digest_of(pieces: AsyncIterator[bytes]) -> ContentDigest:
    """Return the digest of a content that is read to its end. Raises what it raises."""
    digest, size = hashlib.sha256(), 0
    async for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return ContentDigest(digest.hexdigest(), size)


async def checked(
    key: str, pieces: AsyncIterator[bytes], size_bytes: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield a content. Raises ObjectDamaged at its end, or above its size, unless it is what the key and the size say."""
    digest, size = hashlib.sha256(), 0
    async for piece in pieces:
        digest.update(piece)
        size += len(piece)
        if size_bytes is not None and size > size_bytes:
            raise ObjectDamaged(key, f"it has more than {size_bytes} bytes")
        yield piece
    if size_bytes is not None and size != size_bytes:
        raise ObjectDamaged(key, f"it has {size} of {size_bytes} bytes")
    if digest.hexdigest() != key.rpartition("/")[2]:
        raise ObjectDamaged(key, "its SHA-256 is another one")


def missing(key: str) -> NotFound:
    """Return the error for an object that is not there."""
    return NotFound(f"there is no object {key} in {SETTING}", code="no_object")
