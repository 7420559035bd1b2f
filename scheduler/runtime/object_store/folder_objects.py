"""Objects in a folder: a store for machines that share a file system.

An object is written beside its place, flushed, and renamed. Clients do not reach it: their bytes pass the web process.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from domain.errors import StorageFull, Unavailable
from managers.common.start_log import sync_directory
from scheduler.runtime.object_store.objects import (
    PART_BYTES,
    SETTING,
    ObjectFacts,
    checked,
    missing,
)

_DRAFT: Final = ".draft"


class FolderObjects:
    """`ObjectStore` below a folder, which is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, key: str, size_bytes: int, pieces: AsyncIterator[bytes]) -> None:
        """Store an object."""
        place = self._folder / key
        draft = place.with_name(f"{secrets.token_hex(8)}{_DRAFT}")
        with self._troubles():
            try:
                await asyncio.to_thread(place.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
                with await asyncio.to_thread(draft.open, "xb") as file:
                    async for piece in checked(key, pieces, size_bytes):
                        await asyncio.to_thread(file.write, piece)
                    file.flush()
                    await asyncio.to_thread(os.fsync, file.fileno())
                draft.replace(place)
                await asyncio.to_thread(sync_directory, place.parent)
            finally:
                draft.unlink(missing_ok=True)

    async def get(
        self, key: str, *, first: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield an object, or a range of it."""
        pieces = self._pieces(key, first, end)
        async for piece in pieces if first or end is not None else checked(key, pieces):
            yield piece

    async def _pieces(self, key: str, first: int, end: int | None) -> AsyncGenerator[bytes, None]:
        with self._troubles():
            try:
                file = await asyncio.to_thread((self._folder / key).open, "rb")
            except FileNotFoundError:
                raise missing(key) from None
            with file:
                file.seek(first)
                left = PART_BYTES if end is None else end - first
                while left > 0:
                    piece = await asyncio.to_thread(file.read, min(left, PART_BYTES))
                    if not piece:
                        break
                    left -= 0 if end is None else len(piece)
                    yield piece

    async def head(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object."""
        with self._troubles():
            try:
                facts = await asyncio.to_thread(os.stat, self._folder / key)
            except FileNotFoundError:
                return None
        return ObjectFacts(key, facts.st_size, facts.st_mtime)

    async def delete(self, key: str) -> None:
        """Delete an object."""
        with self._troubles():
            (self._folder / key).unlink(missing_ok=True)

    async def list(self, area: str) -> AsyncGenerator[ObjectFacts, None]:
        """Yield the objects of an area; drafts of processes that died are among them."""
        with self._troubles():
            found = await asyncio.to_thread(lambda: list((self._folder / area).rglob("*")))
        for path in found:
            facts = await self.head(str(path.relative_to(self._folder)))
            if facts is not None and path.is_file():
                yield facts

    async def upload_url(self, key: str, seconds: float) -> str | None:
        """Return None: a folder has no URLs."""
        return None

    async def download_url(self, key: str, seconds: float) -> str | None:
        """Return None: a folder has no URLs."""
        return None

    @contextmanager
    def _troubles(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{SETTING}=file://{self._folder} cannot be used: {error.strerror or error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"{why}: make space on its file system") from error
            raise Unavailable(f"{why}: mount the folder, and let this part write to it") from error
