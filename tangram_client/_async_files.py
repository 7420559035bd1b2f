"""Files of an environment, as coroutines: the source from which `_sync_files` is generated.

``python -m tests.architecture.sync_client`` writes the blocking twin; a test holds the two together.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tangram_client import _file_calls, _object_calls
from tangram_client._async_objects import download_object, pieces, upload_object
from tangram_client._core import ApiCall
from tangram_client.archives import complete_file, local_file, pack_tree, unpack_tree
from tangram_client.models import FileInfo
from tangram_client.retry import RetryPolicy

T = TypeVar("T")


class AsyncSender(Protocol):
    """What carries a call to its end: a client."""

    async def send(self, call: ApiCall[T], *, retry: RetryPolicy | None = None) -> T:
        """Return the answer; ``retry``: instead of its own policy."""

    def download(self, call: ApiCall[Any]) -> AsyncIterator[bytes]:
        """Yield the body of the answer as it arrives."""


class AsyncTrajectoryFiles:
    """Files of one environment. They need neither an action nor cores.

    Paths are absolute inside the environment, or relative to ``/workspace``; without ``..``.
    """

    def __init__(self, sender: AsyncSender, trajectory: str, project: str | None) -> None:
        self._sender = sender
        self._base = _file_calls.base_of(trajectory)
        self._owner = {} if project is None else {"project": project}

    async def list(self, path: str = "") -> Sequence[FileInfo]:
        """Return the entries of a directory, by name."""
        found: list[FileInfo] = []
        after: str | None = ""
        while after is not None:
            call = _file_calls.entries(self._base, path, after=after, **self._owner)
            page = await self._sender.send(call)
            found += page.entries
            after = page.next
        return found

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        """Return kind, size, permissions and time; ``follow``: of the target of a link."""
        return await self._sender.send(
            _file_calls.stat(self._base, path, follow=follow, **self._owner)
        )

    async def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """Return a file, or ``size`` bytes from ``offset``."""
        call = _file_calls.read(self._base, path, offset=offset, size=size, **self._owner)
        return await self._sender.send(call)

    async def write(self, path: str, content: bytes | str, *, mode: int | None = None) -> None:
        """Write a file, with its parent directories; the old one stays until it is complete."""
        raw = content.encode() if isinstance(content, str) else content
        await self._sender.send(_file_calls.write(self._base, path, raw, mode=mode, **self._owner))

    async def upload(self, local: str | Path, path: str, *, mode: int | None = None) -> None:
        """Write a local file into the environment, with its permissions unless others are given."""
        with local_file(local) as (file, own):
            permissions = own if mode is None else mode
            if await upload_object(
                self._sender,
                file,
                self._owner,
                lambda sha256: _file_calls.write_stored(
                    self._base, path, sha256, mode=permissions, **self._owner
                ),
            ):
                return
            call = _file_calls.write(
                self._base,
                path,
                lambda: pieces(file),
                mode=permissions,
                **self._owner,
            )
            await self._sender.send(call)

    async def download(self, path: str, local: str | Path) -> None:
        """Write a file of the environment to a local one, which appears complete."""
        with complete_file(local) as file:
            stored = _object_calls.download_url(self._base, path, self._owner)
            if await download_object(self._sender, stored, file):
                return
            call = _file_calls.content_of(self._base, path, **self._owner)
            async for piece in self._sender.download(call):
                file.write(piece)

    async def make_directory(
        self, path: str, *, mode: int | None = None, parents: bool = True
    ) -> FileInfo:
        """Make a directory; ``parents``: with those before it, and one that exists is accepted."""
        return await self._sender.send(
            _file_calls.make_directory(self._base, path, mode=mode, parents=parents, **self._owner)
        )

    async def move(self, source: str, target: str, *, replace: bool = False) -> FileInfo:
        """Rename a file or directory. Raises Conflict where the target exists."""
        return await self._sender.send(
            _file_calls.move(self._base, source, target, replace=replace, **self._owner)
        )

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link or an empty directory; ``recursive``: with all it holds."""
        await self._sender.send(
            _file_calls.remove(self._base, path, recursive=recursive, **self._owner)
        )

    async def set_mode(self, path: str, mode: int) -> FileInfo:
        """Set the permissions of a file or directory: ``0o755``."""
        return await self._sender.send(_file_calls.set_mode(self._base, path, mode, **self._owner))

    async def upload_tree(self, local: str | Path, path: str = "") -> None:
        """Copy what is in a local directory into one of the environment."""
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(pack_tree, Path(local), archive)
            if await upload_object(
                self._sender,
                archive,
                self._owner,
                lambda sha256: _file_calls.unpack_stored(self._base, path, sha256, **self._owner),
            ):
                return
            await self._sender.send(
                _file_calls.unpack(self._base, path, lambda: pieces(archive), **self._owner)
            )

    async def download_tree(self, path: str, local: str | Path) -> Sequence[str]:
        """Copy what is in a directory of the environment into a local one.

        Returns the names that were skipped because they lead out of it or are no files.
        """
        with tempfile.TemporaryFile() as archive:
            stored = _object_calls.download_url(self._base, path, self._owner, tree=True)
            if not await download_object(self._sender, stored, archive):
                call = _file_calls.pack(self._base, path, **self._owner)
                async for piece in self._sender.download(call):
                    archive.write(piece)
            return await asyncio.to_thread(unpack_tree, archive, Path(local))
