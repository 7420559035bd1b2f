"""Files of an environment, as a node offers them to what is outside of it. No grant, no command.

Paths are absolute inside the environment, or relative to its ``/workspace``. A driver without images shows only
the workspace; there, an absolute path is below ``/workspace``. Links are followed as programs inside
follow them, never out of the environment.

All methods raise InvalidRequest (the path leaves the tree, is of another kind, is not permitted), NotFound
(it, or a part before it, is missing), Conflict (it exists, is not empty), StorageFull. Methods that are not
coroutines block: call them in a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import msgspec
from msgspec import UNSET, UnsetType

from domain.action import EnvironmentSpec
from domain.ids import TrajectoryKey
from domain.ports.watching import DirectoryWatcher

#: Largest file or archive that one upload may bring.
MAX_UPLOAD_BYTES: Final = 1024 * 1024 * 1024
#: Most entries of a directory on one page.
MAX_ENTRIES: Final = 10_000
#: Largest names and values, together, of the extended attributes that a write may set.
MAX_ATTRIBUTE_BYTES: Final = 2048


class FileKind(StrEnum):
    """Kind of an entry of a directory."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    #: A named pipe, a socket, a device.
    OTHER = "other"


class FileFacts(msgspec.Struct, frozen=True):
    """What a directory records of an entry."""

    #: Of an entry of a listing; else the path that was asked for. Bytes that are no UTF-8 are shown as ``\\xff``.
    name: str
    kind: FileKind
    #: Of a file.
    size_bytes: int
    #: Permissions in octal: ``0644``.
    mode: str
    modified_at: datetime
    #: Of a link: where it leads, as it is written.
    target: str | None = None
    #: Extended attributes of a file or directory (`user.*`), where they were asked for, without that prefix.
    attributes: dict[str, str] | UnsetType = UNSET


class DirectoryListing(msgspec.Struct, frozen=True):
    """A page of the entries of a directory, by name."""

    entries: list[FileFacts]
    #: Name to continue after; None on the last page.
    next: str | None = None


class UnpackedArchive(msgspec.Struct, frozen=True):
    """What an archive brought."""

    files: int
    size_bytes: int


class FileReader(Protocol):
    """A regular file that is open for reading."""

    facts: FileFacts

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``; none at the end."""

    def close(self) -> None:
        """Close it; idempotent."""


class FileWriter(Protocol):
    """A file that is being written beside its place, and replaces what is there at the end."""

    def write(self, piece: bytes) -> None:
        """Append."""

    def commit(self) -> FileFacts:
        """Put the complete file in its place; return its facts."""

    def abort(self) -> None:
        """Delete what was written, unless it was committed; idempotent."""


class EnvironmentFiles(Protocol):
    """The files of one environment."""

    def stat(self, path: str, *, follow: bool = True, attributes: bool = False) -> FileFacts:
        """Return the facts of what ``path`` names; ``follow``: a link at its end is followed."""

    def entries(
        self, path: str, *, after: str = "", limit: int = MAX_ENTRIES, attributes: bool = False
    ) -> DirectoryListing:
        """Return the entries of a directory behind the name ``after``, by name."""

    def make_directory(self, path: str, *, mode: int = 0o755, parents: bool = True) -> FileFacts:
        """Make a directory; ``parents``: with those before it, and one that exists is no error."""

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        """Rename; links are moved, not followed."""

    def remove(self, path: str) -> None:
        """Delete a file, a link or an empty directory."""

    def set_mode(self, path: str, mode: int) -> FileFacts:
        """Set the permissions of a file or directory."""

    def open_file(self, path: str) -> FileReader:
        """Open a regular file."""

    def write_file(
        self,
        path: str,
        *,
        mode: int | None = None,
        size_bytes: int | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> FileWriter:
        """Begin a file, with its parent directories; ``size_bytes``: what will come, if that is known.

        Without a mode it keeps that of the file it replaces, or has 0644. It has the extended ``attributes``
        and no others.
        """

    def watch(self, path: str, *, recursive: bool = False) -> DirectoryWatcher:
        """Watch a directory; ``recursive``: with all below it. Raises CapacityError without room for watches."""

    async def remove_tree(self, path: str) -> None:
        """Delete a directory with all it holds, or whatever else it is."""

    async def pack(self, path: str) -> AsyncIterator[bytes]:
        """Return the tar archive of a file or directory, as it is made."""

    async def unpack(self, path: str, archive: AsyncIterator[bytes]) -> UnpackedArchive:
        """Unpack a tar archive, plain or with gzip, into a directory, which is made if missing.

        Files that exist are replaced. An archive that is refused may have been unpacked in part.
        """


@runtime_checkable
class FileServing(Protocol):
    """A driver that serves the files of its environments."""

    async def files(self, trajectory: TrajectoryKey) -> EnvironmentFiles:
        """Return the files of a trajectory. Raises NotFound with code ``not_here``."""

    async def make_files(
        self, trajectory: TrajectoryKey, spec: EnvironmentSpec | None = None
    ) -> EnvironmentFiles:
        """Return the files of a trajectory, whose environment is made as declared if it is missing.

        Raises Unavailable, and InvalidRequest for a declaration that this node cannot meet.
        """


@runtime_checkable
class FileGuarding(Protocol):
    """A driver whose files must not be changed at times."""

    def check_writable(self, trajectory: TrajectoryKey) -> None:
        """Raise Conflict while a reward is read from the files of a trajectory's environment."""
