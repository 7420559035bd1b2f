"""Watcher of a directory by inotify(7) (`domain.ports.watching`).

Rules
1. The kernel watches the directory itself, not a path: a rename of it or of a directory above changes nothing.
2. With ``recursive``, directories that appear are watched too. What is in them by then is reported as created and
   written, because it may have been written before the watch.
3. A file that Tangram writes appears under a temporary name and is renamed (`file_tree`): it is reported as written
   under its own name; before that as created, with its permissions, if it was not there.
4. Links to directories are not followed.
5. A watcher ends with its directory: when that is deleted, or its file system is unmounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from domain.errors import CapacityError, InvalidRequest
from domain.ports.watching import MAX_WATCHED, WatchEvent, WatchKind

_MODIFY: Final = 0x002
_ATTRIB: Final = 0x004
_MOVED_FROM: Final = 0x040
_MOVED_TO: Final = 0x080
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_IS_DIRECTORY: Final = 0x40000000
_ONLY_DIRECTORY: Final = 0x01000000
_ALL: Final = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_DIRECTORY
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 256 * 1024
#: Name of a file that Tangram is writing (`file_tree.FileUpload`).
_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
_PATH: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc: Final = ctypes.CDLL(None, use_errno=True)


class KernelEvent(NamedTuple):
    """One event as the kernel reports it."""

    watch: int
    mask: int
    #: Common to both ends of a rename.
    cookie: int
    name: str


class InotifyWatcher:
    """A watcher of one directory."""

    def __init__(
        self,
        directory: int,
        opened: Callable[[str], AbstractContextManager[int]],
        *,
        recursive: bool,
    ) -> None:
        """``directory``: an O_PATH descriptor, which the caller closes.

        ``opened``: opens a directory below it by its relative path. Raises OSError, InvalidRequest.
        """
        self._opened = opened
        self._recursive = recursive
        self._queue = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        #: Watch → path of its directory; path → names in it.
        self._paths: dict[int, str] = {}
        self._names: dict[str, set[str]] = {}
        #: The directory itself is gone.
        self.ended = False
        #: Renames of temporary files whose other end has not come.
        self._finished: set[int] = set()
        try:
            self._add(directory, "")
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the queue."""
        return self._queue

    def read(self) -> list[WatchEvent]:
        """Return the changes since the last call."""
        found: list[WatchEvent] = []
        try:
            data = os.read(self._queue, _READ_BYTES)
        except BlockingIOError:
            return found
        for event in _parsed(data):
            if event.mask & _OVERFLOW:
                raise CapacityError("more changed than the kernel keeps: list the directory again")
            if event.mask & _IGNORED:
                gone = self._paths.pop(event.watch, None)
                self.ended |= gone == ""
                self._names.pop(gone or "", None)
            elif event.name and event.watch in self._paths:
                self._take(event, found)
        return found

    def close(self) -> None:
        """Close the queue, and with it all watches."""
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1

    def _take(self, event: KernelEvent, found: list[WatchEvent]) -> None:
        directory = self._paths[event.watch]
        names = self._names.setdefault(directory, set())
        path = f"{directory}/{event.name}" if directory else event.name
        if _TEMPORARY.fullmatch(event.name):
            if event.mask & _MOVED_FROM:
                self._finished.add(event.cookie)
            return
        if event.mask & _MOVED_TO and event.cookie in self._finished:
            self._finished.discard(event.cookie)
            self._appeared(found, names, event.name, path, written=True)
            return
        if event.mask & (_CREATE | _MOVED_TO):
            self._appeared(found, names, event.name, path, written=False)
            if event.mask & _IS_DIRECTORY and self._recursive:
                self._enter(path, found)
        elif event.mask & (_MOVED_FROM | _DELETE):
            names.discard(event.name)
            _report(found, path, "rename" if event.mask & _MOVED_FROM else "remove")
        elif event.mask & _MODIFY:
            _report(found, path, "write")
        elif event.mask & _ATTRIB:
            _report(found, path, "chmod")

    def _appeared(
        self, found: list[WatchEvent], names: set[str], name: str, path: str, *, written: bool
    ) -> None:
        """Report a name that came: created, unless it was there and was replaced."""
        if not written or name not in names:
            _report(found, path, "create")
            if written:
                _report(found, path, "chmod")
        names.add(name)
        if written:
            _report(found, path, "write")

    def _enter(self, path: str, found: list[WatchEvent]) -> None:
        """Watch a directory that appeared, and report what is in it by now."""
        try:
            with self._opened(path) as handle:
                for below, is_file in self._add(handle, path):
                    _report(found, below, "create")
                    if is_file:
                        _report(found, below, "write")
        except (OSError, InvalidRequest):  # it is gone again, or was replaced by a link
            return

    def _add(self, handle: int, path: str) -> list[tuple[str, bool]]:
        """Watch a directory, and those below it; return what is in them, and whether it is a file."""
        if len(self._paths) >= MAX_WATCHED:
            raise InvalidRequest(f"a watcher has at most {MAX_WATCHED} directories")
        place = f"/proc/self/fd/{handle}".encode()
        watch = _checked(_libc.inotify_add_watch(self._queue, place, _ALL))
        self._paths[watch] = path
        found: list[tuple[str, bool]] = []
        names = self._names[path] = set()
        directory = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(directory):
                if _TEMPORARY.fullmatch(name):
                    continue
                names.add(name)
                below = f"{path}/{name}" if path else name
                found += self._look(directory, name, below)
        finally:
            os.close(directory)
        return found

    def _look(self, directory: int, name: str, path: str) -> Iterator[tuple[str, bool]]:
        """Yield an entry of a directory; with ``recursive``, watch it if it is a directory."""
        try:
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        yield path, stat.S_ISREG(mode)
        if self._recursive and stat.S_ISDIR(mode):
            try:
                handle = os.open(name, _PATH, dir_fd=directory)
            except OSError:  # it is gone again
                return
            try:
                yield from self._add(handle, path)
            finally:
                os.close(handle)


def _report(found: list[WatchEvent], name: str, kind: WatchKind) -> None:
    """Add an event, unless it is the last one again."""
    event = WatchEvent(name, kind)
    if not found or found[-1] != event:
        found.append(event)


def _parsed(data: bytes) -> Iterator[KernelEvent]:
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        name = data[at : at + length].rstrip(b"\0")
        at += length
        yield KernelEvent(watch, mask, cookie, name.decode(errors="backslashreplace"))


def _checked(result: int) -> int:
    if result >= 0:
        return result
    number = ctypes.get_errno()
    if number in (errno.ENOSPC, errno.EMFILE, errno.ENFILE):
        raise CapacityError("the node has no more watches (fs.inotify.max_user_watches)")
    raise OSError(number, os.strerror(number))
