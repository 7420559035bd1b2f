"""Packed containers: what a move has stored of an environment on its source, and the archive that its target reads.

    packed/NAME/record.json    the record, which is the first line of the archive
    packed/NAME/DIGEST         a layer above the declared image, as the engine's archives have it

The archive is the record, the layers one after the other, the environment's folder as `tar` writes it, and a mark, without which it
is not complete. The folder is read where it is: nothing runs in the environment, and requests wait until the move has ended. Where the layer of the
container is on the disk of the environment (`layer_disks`), it is a part of the folder, and no layer is stored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import InvalidRequest, NotFound, Unavailable
from managers.common.start_log import sync_directory
from managers.cpu.containers.image_layers import layer_file
from managers.cpu.tree.tar_streams import tar_stream
from managers.cpu.workspaces import FLAT, safe_name

_RECORD: Final = "record.json"
_DRAFT: Final = ".draft"
_END: Final = b"\nthe end of a container\n"
_MOST_HEAD_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024


class PackedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that was packed for its move."""

    project: str
    name: str
    #: Name of its folder on the source.
    folder: str
    #: Digests of the layers of the image that it declares.
    below: tuple[str, ...]
    #: Digest and size of each layer above these, the lowest first.
    layers: tuple[tuple[str, int], ...] = ()
    #: What the archive has of its folder.
    parts: tuple[str, ...] = (".",)
    #: Its folder is a disk of its own, with the layer of the container.
    on_disk: bool = False
    #: Host ids of the users of containers, where the engine maps them; empty: their own.
    users: str = ""


class PackedContainers:
    """The packed containers below one state directory; but for `export` its methods block."""

    def __init__(self, state: Path) -> None:
        self._folder, self._environments = state / "packed", state / FLAT

    def open(self) -> None:
        """Make the directory, and delete what a predecessor left half done."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(self._folder / _DRAFT, ignore_errors=True)
        (self._folder / _DRAFT).mkdir(mode=0o700)

    def draft(self, project: str, name: str) -> Path:
        """Return an empty folder for the layers of an environment, which `add` moves to its place."""
        draft = self._folder / _DRAFT / safe_name(f"{project}/{name}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        return draft

    def add(self, packed: PackedContainer, draft: Path) -> None:
        """Store a packed environment; it is on disk afterwards. Raises OSError."""
        with open(draft / _RECORD, "wb") as file:
            file.write(msgspec.json.encode(packed))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(draft)
        draft.rename(self._folder / draft.name)
        sync_directory(self._folder)

    def find(self, project: str, name: str) -> PackedContainer | None:
        """Return a packed environment; None where there is none."""
        return _read(self._place(project, name))

    def all(self) -> list[tuple[str, str]]:
        """Return project and name of each."""
        try:
            found = [_read(self._folder / each) for each in sorted(os.listdir(self._folder))]
        except FileNotFoundError:
            return []
        return [(each.project, each.name) for each in found if each is not None]

    def drop(self, project: str, name: str) -> None:
        """Delete a packed environment; an unknown one is ignored."""
        shutil.rmtree(self._place(project, name), ignore_errors=True)

    async def export(self, project: str, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the archive. Raises NotFound, Unavailable."""
        packed = await asyncio.to_thread(self.find, project, name)
        if packed is None:
            raise NotFound(f"there is no packed environment {name!r} on this node")
        yield msgspec.json.encode(packed) + b"\n"
        for digest, _ in packed.layers:
            place = layer_file(self._place(project, name), digest)
            with await asyncio.to_thread(place.open, "rb") as file:
                while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                    yield piece
        folder = self._environments / packed.folder
        async for piece in tar_stream(folder, packed.parts, what="the packed environment"):
            yield piece
        yield _END

    def _place(self, project: str, name: str) -> Path:
        return self._folder / safe_name(f"{project}/{name}")


def _read(place: Path) -> PackedContainer | None:
    try:
        return decode_packed((place / _RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def decode_packed(content: bytes) -> PackedContainer:
    """Return the packed environment in ``content``. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(content, type=PackedContainer)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRequest(f"a packed environment cannot be read: {error}") from None


class ArchiveReader:
    """Reads an archive, part by part."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    async def record(self) -> PackedContainer:
        """Return the record. Raises InvalidRequest, Unavailable."""
        while b"\n" not in self._rest:
            if len(self._rest) > _MOST_HEAD_BYTES or not await self._more():
                raise Unavailable("the archive of the environment cannot be read")
        line, _, self._rest = self._rest.partition(b"\n")
        return decode_packed(line)

    async def layers(self, wanted: Sequence[tuple[str, int]], folder: Path) -> None:
        """Write the layers into a folder. Raises Unavailable, OSError."""
        for digest, size in wanted:
            with await asyncio.to_thread(layer_file(folder, digest).open, "wb") as file:
                left = size
                while left:
                    if not self._rest and not await self._more():
                        raise _broken_off()
                    piece, self._rest = self._rest[:left], self._rest[left:]
                    await asyncio.to_thread(file.write, piece)
                    left -= len(piece)

    async def files(self) -> AsyncIterator[bytes]:
        """Yield what `tar` has written. Raises Unavailable where the archive is not complete."""
        while True:
            ready, self._rest = self._rest[: -len(_END)], self._rest[-len(_END) :]
            if ready:
                yield ready
            if not await self._more():
                break
        if self._rest != _END:
            raise _broken_off()

    async def _more(self) -> bool:
        piece = await anext(self._pieces, b"")
        self._rest += piece
        return bool(piece)


def _broken_off() -> Unavailable:
    return Unavailable("the archive of the environment is not complete")
