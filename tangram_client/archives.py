"""Local files and trees, as `files` uploads and downloads them.

An archive from an environment is hostile: it was packed where a model runs commands. So nothing is
unpacked outside the directory, through a link, as a device, or with a set-user-id bit (`tarfile.data_filter`);
what that refuses is skipped and named.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def pack_tree(source: Path, archive: IO[bytes]) -> None:
    """Write the archive of what is in a directory, or of a file. Raises OSError."""
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if not source.is_dir():
            tar.add(source, source.name)
            return
        for entry in sorted(source.iterdir()):
            tar.add(entry, entry.name)


def unpack_tree(archive: IO[bytes], target: Path) -> list[str]:
    """Unpack an archive into a directory, which is made; return the names that were skipped.

    Raises OSError, tarfile.TarError.
    """
    skipped: list[str] = []

    def permitted(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        try:
            return tarfile.data_filter(member, path)
        except tarfile.FilterError:
            skipped.append(member.name)
            return None

    target.mkdir(parents=True, exist_ok=True)
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        tar.extractall(target, filter=permitted)
    return skipped


def digest_of_file(file: IO[bytes]) -> str:
    """Return the SHA-256 of a file, read from its beginning, in hexadecimal digits. Raises OSError."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it reads into buffers


@contextmanager
def local_file(path: str | Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a local file, with its permissions. Raises OSError."""
    with Path(path).open("rb") as file:
        yield file, os.fstat(file.fileno()).st_mode & 0o777


@contextmanager
def complete_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a local file for writing that takes its place when the block has ended well."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.tangram")
    try:
        with draft.open("wb+") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
