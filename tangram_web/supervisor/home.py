"""The folder that holds everything one Tangram keeps."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tangram_web.supervisor.errors import StartFailed

DEFAULT_HOME = Path("~/.local/share/tangram")


@dataclass(frozen=True)
class Home:
    """Paths below one data folder, which only its owner may read."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> Home:
        """Make the folder where it is missing. Raises StartFailed when it cannot be made."""
        home = cls(path.expanduser().absolute())
        try:
            for folder in (home.path, home.logs, home.redis):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StartFailed(
                f"cannot make {error.filename}: {error.strerror}; name another folder with --home"
            ) from error
        return home

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def redis(self) -> Path:
        """Redis's own folder: its append-only file and, where the path is short, its socket."""
        return self.path / "redis"

    @property
    def database(self) -> Path:
        return self.path / "tangram.sqlite3"

    @property
    def schema_mark(self) -> Path:
        """Which migrations the database in this folder has had."""
        return self.path / "schema"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold this folder for one Tangram. Raises StartFailed naming the one that has it."""
        descriptor = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptor, 64).decode() or "unknown"
                raise StartFailed(
                    f"Tangram already runs from {self.path} (process {holder}):"
                    " stop that one, or name another folder with --home"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)
