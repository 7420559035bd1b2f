"""Place of a tree of files: its root, its rights, the paths that name something in it, and its quota.

The root is opened for each operation, because an environment may get another root while it lives; the
environment's uid is taken only while files are touched. Errors of the kernel about a path become
errors that the client can act on (`blaming`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from domain.errors import Conflict, InvalidRequest, NotFound, StorageFull
from managers.cpu.disk_watch import RoomLeft
from managers.cpu.files.resolution import PathScope, open_path, reopen
from managers.cpu.workspaces import MOUNT, acting_as

_ROOT: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UploadRoom(Protocol):
    """Disk that uploads into one environment may still use. Its methods may be called from any thread."""

    def take(self, size_bytes: int, files: int = 0) -> None:
        """Count bytes before they are written. Raises StorageFull beyond the quota."""

    def give_back(self, size_bytes: int, files: int = 0) -> None:
        """Count bytes that were not written after all, or were deleted again."""

    def left(self) -> RoomLeft:
        """Return what is left of the quota now."""


class NoQuota:
    """Room that is not limited (`UploadRoom`): for files that Tangram itself reads and deletes."""

    def take(self, size_bytes: int, files: int = 0) -> None:
        """Permit it."""

    def give_back(self, size_bytes: int, files: int = 0) -> None:
        """Ignore it."""

    def left(self) -> RoomLeft:
        """Return more than any disk has."""
        return RoomLeft(2**62, 2**62, 2**62)


@dataclass(frozen=True)
class TreePlace:
    """Where the files of an environment are, and under which rights they are accessed."""

    #: Returns a descriptor of the root; the caller closes it. Raises OSError.
    open_root: Callable[[], int]
    #: `PathScope.ROOT`: the root is ``/`` of the environment; `PathScope.FOLDER`: it is ``/workspace``.
    scope: PathScope
    #: Uid that the files are accessed as; None: the worker's.
    uid: int | None
    room: UploadRoom
    #: Number of uids of the environment, from ``uid`` on: its other users.
    uids: int = 1

    @classmethod
    def folder(
        cls, folder: Path, uid: int | None, room: UploadRoom, scope: PathScope = PathScope.FOLDER
    ) -> TreePlace:
        """Return the place of a workspace that is a folder of the host."""
        return cls(partial(os.open, folder, _ROOT), scope, uid, room)

    def split(self, path: str) -> list[str]:
        """Return the parts of a path below the root. Raises InvalidRequest for one outside of it."""
        if "\0" in path:
            raise InvalidRequest("a path cannot contain a zero byte", pointer="/path")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise InvalidRequest(
                f"{path!r} climbs with '..': give the path without it", pointer="/path"
            )
        if self.scope is PathScope.ROOT:
            return parts if path.startswith("/") else [MOUNT[1:], *parts]
        if not path.startswith("/"):
            return parts
        if parts[:1] != [MOUNT[1:]]:
            raise InvalidRequest(
                f"{path!r} is outside the workspace, and this environment has no other files: give a"
                f" relative path, or one below {MOUNT}",
                pointer="/path",
                code="path_outside_workspace",
            )
        return parts[1:]

    def reopened(self, handle: int, flags: int) -> int:
        """Open what an O_PATH descriptor stands for, as its owner if that is a user of the environment.

        The root of an environment may read the files of its users, but has no such right outside of it. Raises
        OSError.
        """
        try:
            return reopen(handle, flags)
        except PermissionError:
            owner = os.fstat(handle).st_uid
            if self.uid is None or not self.uid < owner < self.uid + self.uids:
                raise
            with acting_as(owner):
                return reopen(handle, flags)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Open the root, and act as the environment's uid meanwhile. Raises OSError."""
        root = self.open_root()
        try:
            with acting_as(self.uid):
                yield root
        finally:
            os.close(root)

    def directory(self, root: int, parts: list[str], *, create: int | None = None) -> int:
        """Return an O_PATH descriptor of a directory; ``create``: permissions of missing ones."""
        try:
            return self._as_directory(open_path(root, "/".join(parts), self.scope))
        except FileNotFoundError:
            if create is None:
                raise
        here = os.dup(root)
        try:
            for number, part in enumerate(parts, 1):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, create, dir_fd=here)
                step = open_path(root, "/".join(parts[:number]), self.scope)
                os.close(here)
                here = step
            return self._as_directory(os.dup(here))
        finally:
            os.close(here)

    @staticmethod
    def _as_directory(handle: int) -> int:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


@contextlib.contextmanager
def closing(handle: int) -> Iterator[int]:
    """Close a descriptor at the end."""
    try:
        yield handle
    finally:
        os.close(handle)


_REFUSALS: Final = {
    errno.EXDEV: "a link on it leaves the tree, or it is on another file system: name the real place",
    errno.ELOOP: "it leads through too many links",
    errno.ENOTDIR: "a part of it is not a directory",
    errno.ENOTEMPTY: "the directory is not empty: give recursive=true",
    errno.EEXIST: "it exists",
    errno.EBUSY: "it is in use as a mount",
    errno.ENOSPC: "its disk, or that of its node, is full",
    errno.EDQUOT: "the disk quota of the node's user is used up",
    errno.EFBIG: "the file would be larger than this node permits",
    errno.EOPNOTSUPP: "its file system stores no extended attributes",
}
#: What a client tells apart by its code.
_CODES: Final = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EISDIR: "is_directory",
    errno.ENOTDIR: "not_a_directory",
}
_CONFLICTS: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OF_THE_CALLER: Final = frozenset({
    errno.EXDEV, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM,
    errno.ENXIO, errno.EROFS, errno.ETXTBSY, errno.EINVAL, errno.EOPNOTSUPP, errno.E2BIG, errno.ERANGE,
})  # fmt: skip


def refusal(path: str, number: int) -> Exception | None:
    """Return the error that a client reads for an errno of its path; None: it is not the client's."""
    if number == errno.ENOENT:
        return NotFound(f"{path!r} is not in this environment")
    detail = f"{path!r}: {_REFUSALS.get(number) or os.strerror(number)}"
    if number in _CONFLICTS:
        return Conflict(detail, pointer="/path", code="exists")
    if number in _FULL:
        return StorageFull(detail)
    if number not in _OF_THE_CALLER:
        return None
    return InvalidRequest(detail, pointer="/path", code=_CODES.get(number, "invalid"))


@contextlib.contextmanager
def blaming(path: str) -> Iterator[None]:
    """Translate errors of the path into errors for the client; other errors pass."""
    try:
        yield
    except OSError as error:
        found = refusal(path, error.errno or 0)
        if found is None:
            raise
        raise found from error
