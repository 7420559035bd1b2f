"""Files and directories of a sandbox (``filesystem.Filesystem`` of E2B's envd), over the native calls of files.

Rules
1. An entry has the name, the path as the client means it, and what the native call records. Owner and group are the
   user that the request names. A link has the type of its target, and the target as an absolute path. Its metadata
   are the extended attributes ``user.e2b.*`` of a file.
2. A directory has the size 4096: the native call records none.
3. A watcher belongs to the node of the sandbox. A stream of events makes one and removes it at its end.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC
from typing import Final

from msgspec import UNSET

from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.ports.files import FileFacts, FileKind
from domain.ports.watching import WatchEvent
from facades.e2b.connect import Message, read
from facades.e2b.messages import EntryMove, PathRequest, WatcherRequest
from facades.e2b.paths import Homes, resolved, user_of
from facades.e2b.sandbox import OpenSandbox, sandbox_of
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest

_TYPES: Final = {
    FileKind.FILE: "FILE_TYPE_FILE",
    FileKind.DIRECTORY: "FILE_TYPE_DIRECTORY",
    FileKind.LINK: "FILE_TYPE_SYMLINK",
    FileKind.OTHER: "FILE_TYPE_UNSPECIFIED",
}
_KINDS: Final = {FileKind.DIRECTORY: stat.S_IFDIR, FileKind.LINK: stat.S_IFLNK}
_DIRECTORY_BYTES: Final = 4096
#: Deepest listing, and most entries of one.
_MOST_DEPTH: Final = 64
_MOST_ENTRIES: Final = 100_000
#: Namespace of a file's metadata among its extended attributes.
ATTRIBUTE: Final = "e2b."
#: In the id of a watcher whose events have entries, before the path that it watches.
_ENTRIES_OF: Final = ":"
#: Wait of one request for events; a stream repeats it.
_EVENT_SECONDS: Final = 20.0
KEEP_ALIVE: Final[Message] = {"keepalive": {}}


class Filesystem:
    """Handlers of ``filesystem.Filesystem``."""

    def __init__(self, port: FacadePort, homes: Homes) -> None:
        self._port = port
        self._homes = homes

    async def stat(self, request: HttpRequest, message: Message) -> Message:
        """Stat."""
        sandbox, _, path = await self._asked(request, message)
        return {"entry": await entry_at(sandbox, path, user_of(request))}

    async def make_directory(self, request: HttpRequest, message: Message) -> Message:
        """MakeDir: with those before it; one that exists is an error."""
        sandbox, _, path = await self._asked(request, message)
        try:
            there = await sandbox.native.stat(sandbox.name, path)
        except NotFound:
            await sandbox.native.make_directory(sandbox.name, path)
            return {"entry": await entry_at(sandbox, path, user_of(request))}
        if there.kind is FileKind.DIRECTORY:
            raise HttpError(409, "exists", f"directory already exists: {path}")
        raise InvalidRequest(f"path already exists but it is not a directory: {path}")

    async def move(self, request: HttpRequest, message: Message) -> Message:
        """Move: what is at the destination is replaced, as by rename(2)."""
        sandbox, asked = await sandbox_of(self._port, request), read(message, EntryMove)
        user = user_of(request)
        home = await self._homes.of(sandbox, user)
        source, target = resolved(asked.source, home), resolved(asked.destination, home)
        await sandbox.native.make_directory(sandbox.name, posixpath.dirname(target))
        await sandbox.native.move(sandbox.name, source, target, replace=True)
        return {"entry": await entry_at(sandbox, target, user)}

    async def list_directory(self, request: HttpRequest, message: Message) -> Message:
        """ListDir: entries down to ``depth``, each directory before what it holds."""
        sandbox, asked, path = await self._asked(request, message)
        there = await sandbox.native.stat(sandbox.name, path)
        if there.kind is not FileKind.DIRECTORY:
            raise InvalidRequest(f"path is not a directory: {path}")
        found: list[Message] = []
        depth = min(asked.depth or 1, _MOST_DEPTH)
        await self._walk(sandbox, path, depth, user_of(request), found)
        return {"entries": found}

    async def _walk(
        self, sandbox: OpenSandbox, path: str, depth: int, user: str, found: list[Message]
    ) -> None:
        for facts in await sandbox.native.entries(sandbox.name, path, attributes=True):
            if len(found) >= _MOST_ENTRIES:
                raise HttpError(413, "too_large", f"more than {_MOST_ENTRIES} entries")
            below = posixpath.join(path, facts.name)
            found.append(_entry(facts, below, user))
            if depth > 1 and facts.kind is FileKind.DIRECTORY:
                await self._walk(sandbox, below, depth - 1, user, found)

    async def remove(self, request: HttpRequest, message: Message) -> Message:
        """Remove: a directory with all it holds; what is missing is no error."""
        sandbox, _, path = await self._asked(request, message)
        with suppress(NotFound):
            await sandbox.native.remove(sandbox.name, path, recursive=True)
        return {}

    async def watch(self, request: HttpRequest, message: Message) -> AsyncIterator[Message]:
        """WatchDir."""
        sandbox, asked, path = await self._asked(request, message)
        watcher = await sandbox.native.watch(sandbox.name, path, recursive=asked.recursive)
        return _watched(sandbox, watcher, path if asked.include_entry else "", user_of(request))

    async def create_watcher(self, request: HttpRequest, message: Message) -> Message:
        """CreateWatcher."""
        sandbox, asked, path = await self._asked(request, message)
        watcher = await sandbox.native.watch(sandbox.name, path, recursive=asked.recursive)
        shown = f"{watcher}{_ENTRIES_OF}{path}" if asked.include_entry else watcher
        return {"watcherId": shown}

    async def events(self, request: HttpRequest, message: Message) -> Message:
        """GetWatcherEvents: those since the call before."""
        sandbox, asked = await sandbox_of(self._port, request), read(message, WatcherRequest)
        watcher, _, path = asked.watcher_id.partition(_ENTRIES_OF)
        try:
            found = await sandbox.native.watched(sandbox.name, watcher)
        except Conflict:  # it has no environment yet
            raise NotFound(f"watcher with id {watcher[:64]} not found") from None
        user = user_of(request)
        return {"events": [await _shown(sandbox, each, path, user) for each in found]}

    async def remove_watcher(self, request: HttpRequest, message: Message) -> Message:
        """RemoveWatcher."""
        sandbox, asked = await sandbox_of(self._port, request), read(message, WatcherRequest)
        await sandbox.native.unwatch(sandbox.name, asked.watcher_id.partition(_ENTRIES_OF)[0])
        return {}

    async def _asked(
        self, request: HttpRequest, message: Message
    ) -> tuple[OpenSandbox, PathRequest, str]:
        """Return the sandbox, the message and the absolute path of a request."""
        sandbox, asked = await sandbox_of(self._port, request), read(message, PathRequest)
        home = await self._homes.of(sandbox, user_of(request))
        return sandbox, asked, resolved(asked.path, home)


async def entry_at(sandbox: OpenSandbox, path: str, user: str) -> Message:
    """Return the entry at an absolute path. Raises NotFound."""
    facts = await sandbox.native.stat(sandbox.name, path, follow=False, attributes=True)
    shown = _entry(facts, path, user)
    if facts.kind is FileKind.LINK:
        try:
            target = await sandbox.native.stat(sandbox.name, path)
        except InvalidRequest:  # it leads nowhere
            return shown
        shown["type"] = _TYPES[target.kind]
    return shown


def _entry(facts: FileFacts, path: str, user: str) -> Message:
    mode = int(facts.mode, 8)
    is_directory = facts.kind is FileKind.DIRECTORY
    size = _DIRECTORY_BYTES if is_directory else facts.size_bytes
    modified = facts.modified_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    entry: Message = {
        "name": posixpath.basename(path) or "/",
        "type": _TYPES[facts.kind],
        "path": path,
        "size": str(size),
        "mode": mode & 0o777,
        "permissions": stat.filemode(_KINDS.get(facts.kind, stat.S_IFREG) | mode),
        "owner": user,
        "group": user,
        "modifiedTime": modified,
    }
    if facts.target is not None:
        joined = posixpath.join(posixpath.dirname(path), facts.target)
        entry["symlinkTarget"] = posixpath.normpath(joined)
    attributes = {} if facts.attributes is UNSET else facts.attributes
    prefixed = {name: text for name, text in attributes.items() if name.startswith(ATTRIBUTE)}
    if prefixed:
        entry["metadata"] = {name.removeprefix(ATTRIBUTE): prefixed[name] for name in prefixed}
    return entry


async def _watched(
    sandbox: OpenSandbox, watcher: str, path: str, user: str
) -> AsyncIterator[Message]:
    """Yield the events of a watcher, which is removed at the end; ``path``: as `_shown` takes it."""
    try:
        yield {"start": {}}
        while True:
            for event in await sandbox.native.watched(sandbox.name, watcher, _EVENT_SECONDS):
                yield {"filesystem": await _shown(sandbox, event, path, user)}
    finally:
        await sandbox.native.unwatch(sandbox.name, watcher)


async def _shown(sandbox: OpenSandbox, event: WatchEvent, path: str, user: str) -> Message:
    """Return an event; with its entry for a watched ``path``, unless what it names is gone."""
    shown: Message = {"name": event.name, "type": f"EVENT_TYPE_{event.kind.upper()}"}
    if path and event.kind not in ("remove", "rename"):
        try:
            shown["entry"] = await entry_at(sandbox, posixpath.join(path, event.name), user)
        except TangramError:
            return shown
    return shown
