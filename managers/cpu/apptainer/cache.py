"""Cache of SIF files: built for one environment, once by content, or once for all workers that share its folder.

    async with cache.place(definition) as place:
        if not place.is_ready:
            build(place.draft)
            place.keep()
        use(place.file)

``scratch``: each use has a file of its own, which is deleted when the use ends. ``versioned``: ``NAME-KEY.sif``; two workers
that build it at once both finish, and the first file stays. ``lock``: ``NAME.sif``, built by the first user under a file lock,
which the kernel releases when that user dies; it is not built again when its definition changes, until it is deleted.

A draft and a file of ``scratch`` begin with a dot, so a file with the name of an image is complete, and `SifCache.clean` finds
what a killed worker left. A cache that cannot be written still serves what it has.

The access time of a file is its last use by any worker; `SifCache.surplus` names the files that were not used for longest,
where all together are larger than the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from managers.cpu.apptainer.definitions import ContentDigests, Definition
from managers.cpu.apptainer.settings import CacheMode
from managers.cpu.tree.images import ImageMissing
from managers.cpu.workspaces import safe_name

SUFFIX: Final = ".sif"
_DRAFT: Final = ".draft"
_SCRATCH: Final = ".scratch"
#: A file that was used so short ago may be about to become an image of a node.
_RECENT_SECONDS: Final = 600.0
#: Time for which a failed build is not tried again.
FAILED_SECONDS: Final = 60.0
#: The kernel does not notify about a lock that another process releases.
_PAUSE_SECONDS: Final = 0.05
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass
class CachePlace:
    """The file of one definition."""

    file: Path
    draft: Path
    is_ready: bool = False

    def keep(self) -> None:
        """Make the draft the file, unless another worker has been faster. Raises OSError."""
        try:
            os.link(self.draft, self.file)
        except FileExistsError:
            pass
        except OSError as error:  # a file system without hard links
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            self.draft.rename(self.file)
        self.draft.unlink(missing_ok=True)
        self.is_ready = True


class FailedBuilds:
    """Builds that failed a short time ago: all environments of one definition would repeat the failure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: What was built → when it failed, and the message.
        self._known: dict[Hashable, tuple[float, str]] = {}

    def add(self, key: Hashable, message: str) -> None:
        """Record a failure."""
        self._known[key] = (self._clock(), message)

    def of(self, key: Hashable) -> str:
        """Return the message of a failure of the last `FAILED_SECONDS`; empty without one."""
        oldest = self._clock() - FAILED_SECONDS
        self._known = {each: found for each, found in self._known.items() if found[0] > oldest}
        return self._known.get(key, (0.0, ""))[1]


class SifCache:
    """The SIF files of one folder."""

    def __init__(
        self,
        folder: Path,
        mode: CacheMode,
        most_bytes: float = 0,
        clock: Callable[[], float] = time.time,  # noqa: TID251 - compared with times of files
    ) -> None:
        """``most_bytes``: limit of all files together; 0 for half of the file system that has the folder."""
        self.folder, self.mode = folder, mode
        self._most_bytes, self._clock = most_bytes, clock
        self._contents = ContentDigests()

    def clean(self, seconds: float) -> None:
        """Delete drafts and files of ``scratch`` that were not written for so long. Blocks."""
        oldest = self._clock() - seconds
        for suffix in (_DRAFT, f"{_SCRATCH}{SUFFIX}"):
            for path in self.folder.glob(f".*{suffix}"):
                with contextlib.suppress(
                    OSError
                ):  # deleted meanwhile, or the folder cannot be written
                    if path.stat().st_mtime <= oldest:
                        path.unlink()

    def surplus(self) -> Iterator[Path]:
        """Yield files to delete, that of the least recent use first, while the cache is above its limit. Blocks.

        It goes on until those that the caller did delete are enough. Raises OSError.
        """
        most = self._most_bytes or shutil.disk_usage(self.folder).total / 2
        found = []
        for path in self.folder.glob(f"[!.]*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat(), path))
        size = sum(facts.st_size for facts, _ in found)
        newest = self._clock() - _RECENT_SECONDS
        for facts, path in sorted(found, key=lambda each: each[0].st_atime):
            if size <= most or facts.st_atime > newest:
                return
            yield path
            if not path.exists():
                size -= facts.st_size

    def file_of(self, definition: Definition) -> Path:
        """Return the path of a definition's file. Blocks, as the key does."""
        name = safe_name(definition.image)
        if self.mode is CacheMode.SCRATCH:
            return self.folder / f".{name}-{secrets.token_hex(8)}{_SCRATCH}{SUFFIX}"
        if self.mode is CacheMode.LOCK:
            return self.folder / f"{name}{SUFFIX}"
        return self.folder / f"{name}-{definition.key(self._contents)}{SUFFIX}"

    @contextlib.asynccontextmanager
    async def place(self, definition: Definition) -> AsyncIterator[CachePlace]:
        """Give the file of a definition, alone to this user where the mode says so. Raises ImageMissing, OSError."""
        file = await asyncio.to_thread(self.file_of, definition)
        draft = file.with_name(f".{file.name.lstrip('.')}.{secrets.token_hex(4)}{_DRAFT}")
        place = CachePlace(file, draft, file.exists())
        if place.is_ready:
            self._record_use(file)
            yield place
            return
        self._make()
        try:
            if self.mode is CacheMode.LOCK:
                async with self._locked(file):
                    place.is_ready = file.exists()
                    yield place
            else:
                yield place
        finally:
            draft.unlink(missing_ok=True)
            if self.mode is CacheMode.SCRATCH:
                file.unlink(missing_ok=True)

    def _record_use(self, file: Path) -> None:
        with contextlib.suppress(OSError):  # a cache that cannot be written
            # The time of change stays: it is part of what tells an image from others.
            os.utime(file, ns=(int(self._clock() * 1e9), file.stat().st_mtime_ns))

    def _make(self) -> None:
        """Make the folder. Raises ImageMissing where nothing can be written in it, OSError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            trial = self.folder / f".{secrets.token_hex(8)}{_DRAFT}"
            trial.touch()
            trial.unlink()
        except OSError as error:
            if error.errno in _READ_ONLY:
                raise self._read_only(error) from error
            raise

    def _read_only(self, error: OSError) -> ImageMissing:
        return ImageMissing(
            f"the image is not in the cache {self.folder}, which cannot be written ({error.strerror}): build it there by"
            " an account that may, or set TANGRAM_APPTAINER_CACHE to a folder of the node worker"
        )

    @contextlib.asynccontextmanager
    async def _locked(self, file: Path) -> AsyncIterator[None]:
        """Hold the lock of a file; another thread, worker or machine waits for it."""
        handle = os.open(
            file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(_PAUSE_SECONDS)
            yield
        finally:
            os.close(handle)
