"""File tree: the operations on files of one environment, from outside (`domain.ports.files`).

Each operation opens the root of the tree, takes the environment's uid for as long as it touches files, and
resolves its path by `resolution`; what follows is relative to a descriptor of the parent directory and names
one entry, which is never followed as a link. So a program inside that renames and links beside it changes
what it finds, and never leads it out of the tree.

A file is written beside its place under a name of its own and renamed at the end: readers see the old
or the new content, and an upload that breaks off leaves the old one.

Extended attributes are those that any user may set (``user.*``), without the marks of overlay file systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import heapq
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from domain.errors import InvalidRequest
from domain.ports.drivers import MAX_FILE_BYTES
from domain.ports.files import MAX_ENTRIES, DirectoryListing, FileFacts, FileKind
from managers.cpu.files.place import TreePlace, blaming, closing
from managers.cpu.files.resolution import PathScope, open_path, read_link
from managers.cpu.files.watching import InotifyWatcher
from managers.cpu.workspaces import MOUNT, acting_as

#: Permissions of a new file.
NEW_FILE_MODE: Final = 0o644
_PERMISSIONS: Final = 0o7777
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: Non-blocking: a named pipe in its place, which `reopen` refuses, would block.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_RENAME_NOREPLACE: Final = 1
_ATTRIBUTE: Final = "user."
_MARK: Final = "user.overlay."
#: Entries that are read before other threads of this process may run.
_ENTRIES_AT_ONCE: Final = 2000
_BREATH_SECONDS: Final = 0.001
_libc: Final = ctypes.CDLL(None, use_errno=True)


class FileTree:
    """The files of one environment (`domain.ports.EnvironmentFiles`), except whole trees."""

    def __init__(self, place: TreePlace) -> None:
        self.place = place

    def stat(self, path: str, *, follow: bool = True, attributes: bool = False) -> FileFacts:
        """Return the facts of what a path names."""
        with self._opened(path, follow=follow) as handle:
            facts = facts_of(path, handle)
            if not attributes:
                return facts
            return _with_attributes(facts, f"/proc/self/fd/{handle}", follow=True)

    def entries(
        self, path: str, *, after: str = "", limit: int = MAX_ENTRIES, attributes: bool = False
    ) -> DirectoryListing:
        """Return a page of the entries of a directory."""
        limit = max(1, min(limit, MAX_ENTRIES))
        with self._opened(path) as handle:
            directory = self.place.reopened(handle, os.O_RDONLY | os.O_DIRECTORY)
            try:
                names = heapq.nsmallest(limit + 1, _names(directory, after))
                entries = [_entry(directory, name, attributes) for name in names[:limit]]
            finally:
                os.close(directory)
        found = [entry for entry in entries if entry is not None]
        return DirectoryListing(found, shown(names[limit - 1]) if len(names) > limit else None)

    def make_directory(self, path: str, *, mode: int = 0o755, parents: bool = True) -> FileFacts:
        """Make a directory."""
        before, name = self._named(path)
        with blaming(path), self.place.opened() as root:
            self.place.room.take(0, 1)
            parent = self.place.directory(root, before, create=0o755 if parents else None)
            try:
                try:
                    os.mkdir(name, dir_fd=parent)
                except FileExistsError:
                    if not parents:
                        raise
                else:
                    _set_mode(parent, name, mode)
                with closing(self.place.directory(root, [*before, name])) as made:
                    return facts_of(path, made)
            finally:
                os.close(parent)

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        """Rename."""
        (here, old), (there, new) = self._named(source), self._named(target)
        with (
            blaming(source),
            self.place.opened() as root,
            closing(self.place.directory(root, here)) as first,
        ):
            os.stat(old, dir_fd=first, follow_symlinks=False)
            with blaming(target), closing(self.place.directory(root, there)) as second:
                _rename(first, old, second, new, replace=replace)

    def remove(self, path: str) -> None:
        """Delete a file, a link or an empty directory."""
        before, name = self._named(path)
        with (
            blaming(path),
            self.place.opened() as root,
            closing(self.place.directory(root, before)) as parent,
        ):
            facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

    def set_mode(self, path: str, mode: int) -> FileFacts:
        """Set the permissions of a file or directory."""
        with self._opened(path) as handle:
            os.chmod(f"/proc/self/fd/{handle}", mode & _PERMISSIONS)
            return facts_of(path, handle)

    def open_file(self, path: str) -> FileDownload:
        """Open a regular file for reading."""
        with self._opened(path) as handle:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise InvalidRequest(f"{path!r} is not a regular file", pointer="/path")
            return FileDownload(self.place.reopened(handle, _READ), path)

    def write_file(
        self,
        path: str,
        *,
        mode: int | None = None,
        size_bytes: int | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> FileUpload:
        """Begin a file, which replaces what is at its place when it is complete."""
        before, name = self._named(path)
        if path.endswith("/"):
            raise InvalidRequest(f"{path!r} does not name a file", pointer="/path")
        upload = FileUpload(self.place, path, before, name, mode, size_bytes)
        if attributes:
            upload.set_attributes(attributes)
        return upload

    def watch(self, path: str, *, recursive: bool = False) -> InotifyWatcher:
        """Watch a directory."""

        @contextlib.contextmanager
        def below(relative: str) -> Iterator[int]:
            with self._opened(f"{path}/{relative}", follow=False) as handle:
                yield handle

        with self._opened(path) as handle:
            if not stat.S_ISDIR(os.fstat(handle).st_mode):
                raise InvalidRequest(f"{path!r} is not a directory", pointer="/path")
            return InotifyWatcher(handle, below, recursive=recursive)

    def _named(self, path: str) -> tuple[list[str], str]:
        """Return the directory and the name of an entry. Raises InvalidRequest for the root."""
        *before, name = self.place.split(path) or [""]
        if not name or (self.place.scope is PathScope.ROOT and [*before, name] == [MOUNT[1:]]):
            raise InvalidRequest(
                f"{path!r} is the root of the tree: name something in it", pointer="/path"
            )
        return before, name

    @contextlib.contextmanager
    def _opened(self, path: str, *, follow: bool = True) -> Iterator[int]:
        """Open what a path names, as O_PATH; act as the environment's uid meanwhile."""
        parts = self.place.split(path)
        with blaming(path), self.place.opened() as root:
            handle = open_path(root, "/".join(parts), self.place.scope, follow=follow)
            with closing(handle):
                yield handle


class FileDownload:
    """A regular file that is open for reading (`domain.ports.FileReader`)."""

    def __init__(self, handle: int, path: str) -> None:
        self._handle = handle
        self.facts = facts_of(path, handle)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``."""
        return os.pread(self._handle, size, offset)

    def close(self) -> None:
        """Close it; idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class FileUpload:
    """A file that is being written (`domain.ports.FileWriter`)."""

    def __init__(
        self,
        place: TreePlace,
        path: str,
        before: list[str],
        name: str,
        mode: int | None,
        size_bytes: int | None,
    ) -> None:
        self._place, self._path, self._name = place, path, name
        #: Bytes that were taken of the room, and those that were written.
        self._taken = self._written = 0
        self._temporary = f".{secrets.token_hex(8)}.tmp"
        self._parent = self._handle = -1
        with blaming(path):
            self._take(size_bytes or 0, 1)
            try:
                with place.opened() as root:
                    self._begin(root, before, mode)
            except BaseException:
                self.abort()
                raise

    def _begin(self, root: int, before: list[str], mode: int | None) -> None:
        self._parent = self._place.directory(root, before, create=0o755)
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
            if stat.S_ISDIR(there.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if mode is None and stat.S_ISREG(there.st_mode):
                mode = stat.S_IMODE(there.st_mode)
        self._handle = os.open(self._temporary, _CREATE, 0o600, dir_fd=self._parent)
        os.fchmod(self._handle, (NEW_FILE_MODE if mode is None else mode) & _PERMISSIONS)

    def _take(self, size_bytes: int, files: int = 0) -> None:
        self._place.room.take(size_bytes, files)
        self._taken += size_bytes

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Set extended attributes. Raises InvalidRequest on a file system that has none."""
        try:
            with blaming(self._path), acting_as(self._place.uid):
                mode = stat.S_IMODE(os.fstat(self._handle).st_mode)
                os.fchmod(self._handle, 0o600)  # a file that may not be written takes no attribute
                for name, value in attributes.items():
                    os.setxattr(self._handle, _ATTRIBUTE + name, value.encode())
                os.fchmod(self._handle, mode)
        except BaseException:
            self.abort()
            raise

    def write(self, piece: bytes) -> None:
        """Append."""
        with blaming(self._path):
            self._take(max(0, self._written + len(piece) - self._taken))
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._handle, rest) :]
            self._written += len(piece)

    def commit(self) -> FileFacts:
        """Put the file in its place."""
        with blaming(self._path), acting_as(self._place.uid):
            facts = facts_of(self._path, self._handle)
            os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._temporary = ""
        self.abort()
        return facts

    def abort(self) -> None:
        """Delete what was written, unless it is in its place; close."""
        if self._temporary:
            if self._handle >= 0:
                with contextlib.suppress(OSError), acting_as(self._place.uid):
                    os.unlink(self._temporary, dir_fd=self._parent)
            self._place.room.give_back(self._taken, 1)
        self._temporary = ""
        for handle in (self._handle, self._parent):
            if handle >= 0:
                os.close(handle)
        self._handle = self._parent = -1


def write_whole(tree: FileTree, path: str, content: bytes) -> FileFacts:
    """Write a small file at once. Raises as `FileTree.write_file`, and InvalidRequest above `MAX_FILE_BYTES`."""
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path!r} is larger than {MAX_FILE_BYTES} bytes", pointer="/path")
    written = tree.write_file(path, size_bytes=len(content))
    try:
        written.write(content)
        return written.commit()
    finally:
        written.abort()


def read_whole(tree: FileTree, path: str, limit_bytes: int) -> bytes:
    """Return the content of a small file. Raises InvalidRequest above the limit."""
    opened = tree.open_file(path)
    try:
        content = opened.read(0, limit_bytes + 1)
    finally:
        opened.close()
    if len(content) > limit_bytes:
        raise InvalidRequest(
            f"{path!r} is larger than {limit_bytes} bytes: pack or split it", pointer="/path"
        )
    return content


def shown(name: str) -> str:
    """Return a name as text; bytes that are no UTF-8 become escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def facts_of(path: str, handle: int) -> FileFacts:
    """Return the facts of what a descriptor stands for. Raises OSError."""
    found = os.fstat(handle)
    target = read_link(handle) if stat.S_ISLNK(found.st_mode) else None
    return _facts(path, found, target)


def _facts(name: str, found: os.stat_result, target: str | None) -> FileFacts:
    kind = FileKind.OTHER
    if stat.S_ISREG(found.st_mode):
        kind = FileKind.FILE
    elif stat.S_ISDIR(found.st_mode):
        kind = FileKind.DIRECTORY
    elif stat.S_ISLNK(found.st_mode):
        kind = FileKind.LINK
    return FileFacts(
        shown(name),
        kind,
        found.st_size if kind is FileKind.FILE else 0,
        f"{stat.S_IMODE(found.st_mode):04o}",
        _time(found.st_mtime),
        None if target is None else shown(target),
    )


def _time(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # a program may set any time
        return datetime.fromtimestamp(0, UTC)


def _names(directory: int, after: str) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries, 1):
            if number % _ENTRIES_AT_ONCE == 0:
                time.sleep(_BREATH_SECONDS)
            if shown(entry.name) > after:
                yield entry.name


def _with_attributes(facts: FileFacts, place: str, *, follow: bool) -> FileFacts:
    """Return facts with the extended attributes of a file or directory; what may not be read is left out."""
    found: dict[str, str] = {}
    if facts.kind in (FileKind.FILE, FileKind.DIRECTORY):
        with contextlib.suppress(OSError):
            for name in os.listxattr(place, follow_symlinks=follow):
                if name.startswith(_ATTRIBUTE) and not name.startswith(_MARK):
                    value = os.getxattr(place, name, follow_symlinks=follow)
                    own = shown(name.removeprefix(_ATTRIBUTE))
                    found[own] = value.decode(errors="backslashreplace")
    return msgspec.structs.replace(facts, attributes=found)


def _entry(directory: int, name: str, attributes: bool) -> FileFacts | None:
    """Return the facts of an entry; None when it was removed meanwhile."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            facts = _facts(name, found, None)
            if not attributes:
                return facts
            return _with_attributes(facts, f"/proc/self/fd/{directory}/{name}", follow=False)
        # A program may replace the link meanwhile: facts and target are of one object.
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        with closing(handle):
            found = os.fstat(handle)
            target = read_link(handle) if stat.S_ISLNK(found.st_mode) else None
            return _facts(name, found, target)
    except FileNotFoundError:
        return None


def _set_mode(parent: int, name: str, mode: int) -> None:
    """Set the permissions of a directory that was just made, whatever the umask."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    with closing(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", mode & _PERMISSIONS)


def _rename(first: int, old: str, second: int, new: str, *, replace: bool) -> None:
    if replace:
        os.rename(old, new, src_dir_fd=first, dst_dir_fd=second)
        return
    names = os.fsencode(old), os.fsencode(new)
    if _libc.renameat2(first, names[0], second, names[1], _RENAME_NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
