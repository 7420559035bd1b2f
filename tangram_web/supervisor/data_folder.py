"""The data folder of one Tangram: its paths, its lock, and the mark of its database schema.

The mark makes a second start quick: programs need not wait for `manage.py setup` when the database has
had all migrations.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tangram_web.supervisor.errors import StartFailed

DEFAULT_HOME = Path("~/.local/share/tangram")


@dataclass(frozen=True)
class DataFolder:
    """Paths below one data folder, which only its owner may read."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> DataFolder:
        """Open the folder, made if missing. Raises StartFailed."""
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
        """Digest of the migrations that the database in this folder has had."""
        return self.path / "schema"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def stored_token(self) -> str:
        """Return the token of this machine's clients that an earlier start left; empty without one."""
        try:
            return str(json.loads((self.path / "client.json").read_text())["token"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this folder for one Tangram. Raises StartFailed that names the present holder."""
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


def schema_is_current(home: DataFolder, root: Path, environment: Mapping[str, str]) -> bool:
    """Say whether the database in ``home`` has had all migrations.

    Known for our own SQLite file only; False for a database elsewhere.
    """
    if environment.get("DATABASE_URL") or not home.database.exists():
        return False
    try:
        return home.schema_mark.read_text() == migrations_digest(root)
    except OSError:
        return False


def mark_schema_current(home: DataFolder, root: Path) -> None:
    """Record that all migrations have been applied."""
    home.schema_mark.write_text(migrations_digest(root))


def migrations_digest(root: Path) -> str:
    """Return a digest of our migrations, and of the versions of all dependencies."""
    lock = root / "requirements" / "core.lock"
    # An installed distribution has no lock file; the installed versions replace it.
    digest = hashlib.sha256(lock.read_bytes() if lock.exists() else _installed().encode())
    for path in sorted((root / "tangram_web").glob("*/migrations/*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _installed() -> str:
    from importlib.metadata import distributions  # slow, and needed without a checkout alone

    return "\n".join(sorted(f"{each.name} {each.version}" for each in distributions()))
