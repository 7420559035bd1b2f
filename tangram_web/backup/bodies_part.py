"""Stored bodies and logs of rollouts in a backup: one archive of the folder that all parts share.

Saved after Redis: a reference is written after its bytes, so every body that the saved journal refers to is in the archive.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from django.conf import settings

from domain.errors import InvalidRequest


def directory() -> str:
    """Return the folder of stored bodies: that of the settings, else the one that ``tangram up`` uses."""
    return settings.TANGRAM_BODIES_DIRECTORY or str(settings.TANGRAM_HOME / "bodies")


def save(directory: str, archive: Path) -> int:
    """Write the bodies of ``directory`` to ``archive``; return their number. Nothing without a folder."""
    folder = Path(directory)
    if not directory or not folder.is_dir():
        return 0
    count = 0
    with tarfile.open(archive, "w") as tar:
        for path in sorted([*folder.glob("??/*"), *folder.glob("rollouts/*/log")]):
            if path.suffix != ".new":
                tar.add(path, str(path.relative_to(folder)), recursive=False)
                count += 1
    return count


def load(directory: str, archive: Path) -> int:
    """Put the bodies of ``archive`` into ``directory``; return their number. Raises InvalidRequest."""
    if not archive.exists():
        return 0
    if not directory:
        raise InvalidRequest("the backup has stored bodies: set TANGRAM_BODIES_DIRECTORY")
    folder = Path(directory)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        tar.extractall(folder, members, filter="data")
    return len(members)
