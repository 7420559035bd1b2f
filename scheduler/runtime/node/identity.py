"""Who this node is: an identity bound to its state directory, and a count of starts."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from managers.common.start_log import sync_directory


class Identity(NamedTuple):
    """One start of the worker on one state directory."""

    identity: str
    incarnation: int


def next_incarnation(state_directory: Path) -> Identity:
    """Count one more start."""
    state_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = _file(state_directory)
    if path.exists():
        known = json.loads(path.read_text())
        current = Identity(known["identity"], known["incarnation"] + 1)
    else:
        current = Identity(secrets.token_hex(8), 1)
    _store(path, current)
    return current


def another(state_directory: Path, before: Identity) -> Identity:
    """Begin anew in the same place, as nobody that was there before."""
    fresh = Identity(secrets.token_hex(8), before.incarnation + 1)
    _store(_file(state_directory), fresh)
    return fresh


def _file(state_directory: Path) -> Path:
    return state_directory / "identity.json"


def _store(path: Path, identity: Identity) -> None:
    """Replace the file as a whole, so that a crash leaves the old or the new."""
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump(identity._asdict(), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)  # or a power cut could bring the old one back, and count twice
