"""Files that travel in and out of a workspace.

The worker may see more of the disk than the commands in a sandbox, so a link that a command left
must never lead it. Each step of a path is opened relative to the one before, without following
links: there is no moment between a check and its use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest, NotFound
from domain.ports.drivers import MAX_FILE_BYTES
from managers.cpu.process.workspace import split_path

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Without waiting: opening a named pipe would never return.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_file(workspace: Path, path: str, content: bytes) -> None:
    """Write a file whole or not at all, with the directories that lead to it."""
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path!r} is larger than {MAX_FILE_BYTES} bytes", pointer="/path")
    parent, name = _split(path)
    with _blame(path), _walk(workspace, parent, create=True) as directory:
        temporary = f".{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, _CREATE, 0o644, dir_fd=directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(temporary, dir_fd=directory)
            raise


def read_file(workspace: Path, path: str, limit_bytes: int) -> bytes:
    """Return a file's content. Raises NotFound, or InvalidRequest when it passes the limit."""
    parent, name = _split(path)
    with _blame(path), _walk(workspace, parent, create=False) as directory:
        descriptor = os.open(name, _READ, dir_fd=directory)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidRequest(f"{path!r} is not a regular file", pointer="/path")
            content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise InvalidRequest(
            f"{path!r} is larger than {limit_bytes} bytes: pack or split it", pointer="/path"
        )
    return content


def _split(path: str) -> tuple[list[str], str]:
    *parent, name = split_path(path) or [""]
    if not name or path.endswith("/"):
        raise InvalidRequest(f"{path!r} does not name a file", pointer="/path")
    return parent, name


@contextlib.contextmanager
def _walk(workspace: Path, parts: list[str], *, create: bool) -> Iterator[int]:
    """Open the directory at ``parts`` below the workspace, step by step."""
    directory = os.open(workspace, _DIRECTORY)
    try:
        for part in parts:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=directory)
            step = os.open(part, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = step
        yield directory
    finally:
        os.close(directory)


@contextlib.contextmanager
def _blame(path: str) -> Iterator[None]:
    """Turn what the kernel refused into the user's words; our own troubles stay what they are."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{path!r} is not in the workspace") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise InvalidRequest(
                f"{path!r} leads through a link or a file: name the real place", pointer="/path"
            ) from error
        if error.errno in (errno.EISDIR, errno.ENAMETOOLONG, errno.EACCES, errno.ENXIO):
            raise InvalidRequest(
                f"{path!r}: {os.strerror(error.errno)}", pointer="/path"
            ) from error
        raise
