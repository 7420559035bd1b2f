"""Knowing without Django that the database needs no migration.

The second start is quick because of this: the programs need not wait for `manage.py setup`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from tangram_web.supervisor.home import Home


def is_current(home: Home, root: Path, environment: Mapping[str, str]) -> bool:
    """Say whether the database in ``home`` has had all migrations there are.

    Only our own SQLite file can be known so well; of a database elsewhere nothing is known.
    """
    if environment.get("DATABASE_URL") or not home.database.exists():
        return False
    try:
        return home.schema_mark.read_text() == fingerprint(root)
    except OSError:
        return False


def mark_current(home: Home, root: Path) -> None:
    """Remember that all migrations there are have been applied."""
    home.schema_mark.write_text(fingerprint(root))


def fingerprint(root: Path) -> str:
    """Return a digest of our migrations, and of the versions that bring the others."""
    lock = root / "requirements" / "core.lock"
    # An installed distribution has no lock file; what is installed stands for it.
    digest = hashlib.sha256(lock.read_bytes() if lock.exists() else _installed().encode())
    for path in sorted((root / "tangram_web").glob("*/migrations/*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _installed() -> str:
    return "\n".join(sorted(f"{each.name} {each.version}" for each in distributions()))
