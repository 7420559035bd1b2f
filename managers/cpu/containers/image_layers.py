"""Layers of an engine's images as files: taken out of the archive of an image, and put above an image of another engine.

An archive of `docker save` has all layers of an image. `pick_layers` keeps those that another engine lacks, named by the digest of
their content, as the image's configuration names them. `image_archive` is what `docker load` takes on that engine: a configuration, and files of the
new layers alone. The engine looks for the others among its own first, by the digests below them, and reads no file for those that it has.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from domain.errors import StorageFull, Unavailable

_CHUNK_BYTES: Final = 1024 * 1024
#: Archives of engines before version 25 name layers by another digest, which says nothing about their content.
_EARLIER: Final = "layer.tar"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def layers_of(image: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests of an image's layers, the lowest first; ``image``: the engine's data on it."""
    return tuple((image.get("RootFS") or {}).get("Layers") or ())


def layer_file(folder: Path, digest: str) -> Path:
    """Return where the content of a layer is kept."""
    return folder / digest.rpartition(":")[2]


def pick_layers(pieces: Iterable[bytes], wanted: Collection[str], folder: Path) -> None:
    """Keep the ``wanted`` layers of the archive ``pieces`` in ``folder``. Raises StorageFull, Unavailable. Blocks."""
    places = {layer_file(folder, each).name: layer_file(folder, each) for each in wanted}
    draft = folder / "draft"
    try:
        with tarfile.open(fileobj=_PiecesFile(pieces), mode="r|") as members:
            for member in members:
                name = member.name.rpartition("/")[2]
                content = members.extractfile(member) if member.isreg() else None
                if content is None or (name != _EARLIER and name not in places):
                    continue
                digest = _keep(content, draft)
                if digest in places:
                    draft.rename(places[digest])
    except tarfile.TarError as error:
        raise Unavailable(f"the engine's archive of an image cannot be read: {error}") from error
    draft.unlink(missing_ok=True)
    if missing := [name for name, place in places.items() if not place.exists()]:
        raise Unavailable(f"the engine gives no layer {missing[0][:12]} of the container's image")


def _keep(content: IO[bytes], place: Path) -> str:
    """Write a layer to a file, on disk; return the digest of its content."""
    digest = hashlib.sha256()
    try:
        with place.open("wb") as file:
            while piece := content.read(_CHUNK_BYTES):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"a layer of a container's image has no room: {error}") from error
        raise
    return digest.hexdigest()


class _PiecesFile(io.RawIOBase):
    """Pieces as a file that is read once, from its beginning."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there, the next piece at least; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        ready = self._rest[: len(buffer)]
        buffer[: len(ready)] = ready
        self._rest = self._rest[len(ready) :]
        return len(ready)


def image_archive(
    below: Mapping[str, Any], layers: Sequence[str], folder: Path, labels: Mapping[str, str]
) -> tuple[str, Iterator[bytes]]:
    """Return the id of the image with ``layers`` above the image ``below``, and its archive, which reads their files.

    ``below``: the engine's data on an image that it has.
    """
    known, config = layers_of(below), dict(below.get("Config") or {})
    config["Labels"] = {**(config.get("Labels") or {}), **labels}
    content = json.dumps(
        {
            "architecture": below["Architecture"], "os": below["Os"], "config": config,
            "created": "1970-01-01T00:00:00Z", "history": [],
            "rootfs": {"type": "layers", "diff_ids": [*known, *layers]},
        },
        sort_keys=True,
    ).encode()  # fmt: skip
    digest = hashlib.sha256(content).hexdigest()
    missing = [f"below-{number}.tar" for number, _ in enumerate(known)]
    manifest = {
        "Config": f"{digest}.json", "RepoTags": None,
        "Layers": [*missing, *(layer_file(folder, each).name for each in layers)],
    }  # fmt: skip
    small = {"manifest.json": json.dumps([manifest]).encode(), f"{digest}.json": content}
    return f"sha256:{digest}", _archive(small, [layer_file(folder, each) for each in layers])


def _archive(small: Mapping[str, bytes], files: Iterable[Path]) -> Iterator[bytes]:
    for name, content in small.items():
        yield _head(name, len(content))
        yield content
        yield _padding(len(content))
    for path in files:
        size = path.stat().st_size
        yield _head(path.name, size)
        with path.open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                yield piece
        yield _padding(size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _head(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf()


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
