"""Who this node is: an identity bound to its state directory, and a count of starts."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple


class Identity(NamedTuple):
    """One start of the worker on one state directory."""

    identity: str
    incarnation: int


def next_incarnation(state_directory: Path) -> Identity:
    """Count one more start. The file is replaced as a whole, so a crash leaves the old or the new."""
    state_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = state_directory / "identity.json"
    if path.exists():
        known = json.loads(path.read_text())
        current = Identity(known["identity"], known["incarnation"] + 1)
    else:
        current = Identity(secrets.token_hex(8), 1)
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump(current._asdict(), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return current
