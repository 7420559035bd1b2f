"""Body store: large inputs and results as files, beside Redis and the journal.

All parts that submit, run, project and show actions share one folder: on one machine by itself, on several ones by a shared
file system. A folder has an identity, and Redis has that of the first part that joined; a part with another folder
writes nothing to it and logs why. Without a folder, or when it is full, bodies stay in the messages, as they were.

Rules
1. A file is named by the digest of its content, and complete: it is written beside, flushed to disk and renamed, then the
   folder is flushed. So a reference that was returned by `put` survives a power cut.
2. A body that is stored again is touched. `clean` deletes bodies that were not touched for the time of retention.
3. Content is checked against its digest when it is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final, cast

import redis
import redis.asyncio

from domain.bodies import StoredBody
from domain.errors import Gone
from domain.redis_keys import Keys

log = logging.getLogger(__name__)

_IDENTITY: Final = "identity"
_PIECE_BYTES: Final = 1024 * 1024
#: Drafts of processes that died are deleted at this age.
_DRAFT_SECONDS: Final = 86_400.0


class BodyLost(Gone):
    """A stored body is missing or damaged."""

    def __init__(self, stored: StoredBody, reason: str) -> None:
        super().__init__(
            f"the stored body {stored.sha256[:12]} of {stored.bytes} bytes is lost: {reason}; the folder is"
            " TANGRAM_BODIES_DIRECTORY"
        )
        self.code = "body_lost"


class BodyStore:
    """The folder of stored bodies; None: there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        #: Whether references may be written: the folder is that of all other parts.
        self.writes = False

    async def join(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        """Find out whether other parts have the same folder. Raises redis.RedisError."""
        if self.folder is None or self.writes:
            return
        try:
            own = await asyncio.to_thread(_identity_of, self.folder)
        except OSError as error:
            log.warning("bodies stay in Redis: TANGRAM_BODIES_DIRECTORY cannot be used: %s", error)
            return
        await client.set(keys.body_store, own, nx=True)
        known = cast("bytes | None", await client.get(keys.body_store))
        self.writes = known == own.encode()
        if not self.writes:
            log.warning(
                "bodies stay in Redis: TANGRAM_BODIES_DIRECTORY=%s is not the folder of the other parts;"
                " share one folder. If it replaces theirs: redis-cli DEL %s",
                self.folder,
                keys.body_store,
            )

    async def put(self, content: bytes) -> StoredBody | None:
        """Store ``content``; return its reference once it is on disk, None where it stays inline."""
        if not self.writes:
            return None
        try:
            return await asyncio.to_thread(self.write, content)
        except OSError as error:
            log.warning("a body of %d bytes stays in Redis: %s", len(content), error)
            return None

    async def get(self, stored: StoredBody) -> bytes:
        """Return a stored body. Raises BodyLost."""
        return await asyncio.to_thread(self.read, stored)

    def write(self, content: bytes) -> StoredBody:
        """Store ``content`` durably. Raises OSError."""
        stored = StoredBody(hashlib.sha256(content).hexdigest(), len(content))
        path = self._path(stored)
        try:
            os.utime(path)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft = path.with_name(f"{secrets.token_hex(8)}.new")
            try:
                _write_flushed(draft, content)
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
            _flush_folder(path.parent)
            _flush_folder(path.parent.parent)
        return stored

    def read(self, stored: StoredBody) -> bytes:
        """Return a stored body. Raises BodyLost."""
        if self.folder is None:
            raise BodyLost(stored, "this part has no folder of bodies")
        try:
            content = self._path(stored).read_bytes()
        except OSError as error:
            raise BodyLost(stored, error.strerror or "it cannot be read") from None
        if hashlib.sha256(content).hexdigest() != stored.sha256:
            raise BodyLost(stored, "its content is damaged")
        return content

    async def pieces(self, stored: StoredBody) -> AsyncGenerator[bytes, None]:
        """Yield a stored body, unchecked: its receiver compares the digest. Raises BodyLost."""
        if self.folder is None:
            raise BodyLost(stored, "this part has no folder of bodies")
        try:
            file = await asyncio.to_thread(self._path(stored).open, "rb")
        except OSError as error:
            raise BodyLost(stored, error.strerror or "it cannot be read") from None
        with file:
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                yield piece

    def clean(self, seconds: float) -> int:
        """Delete bodies that were not touched for ``seconds``; return their number."""
        if self.folder is None or not self.folder.is_dir():
            return 0
        now, deleted = time.time(), 0
        for path in self.folder.glob("??/*"):
            age = now - path.stat().st_mtime
            if age > (_DRAFT_SECONDS if path.suffix == ".new" else seconds):
                path.unlink(missing_ok=True)
                deleted += 1
        return deleted

    def _path(self, stored: StoredBody) -> Path:
        assert self.folder is not None
        digest = stored.sha256
        if len(digest) != 64 or not digest.isalnum():
            raise BodyLost(stored, "its name is not a digest")
        return self.folder / digest[:2] / digest


def _identity_of(folder: Path) -> str:
    """Return the identity of a folder; the first part makes it. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / _IDENTITY
    if not path.exists():
        draft = folder / f"{_IDENTITY}.{secrets.token_hex(8)}"
        _write_flushed(draft, secrets.token_hex(16).encode())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # of another part that starts now
        finally:
            draft.unlink()
        _flush_folder(folder)
    return path.read_text()


def _write_flushed(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
