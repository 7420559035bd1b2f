"""Held environments of a node: those that are packed for a move, on disk, so that a worker that starts holds them before its door opens.

One small file for each, named by a digest of the trajectory. It is on disk before anything is packed, and removed when the
trajectory goes on here or its environment is gone.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from domain.ids import TrajectoryKey
from managers.common.start_log import sync_directory

log = logging.getLogger(__name__)
_SUFFIX: Final = ".json"


class HeldEnvironment(msgspec.Struct, frozen=True):
    """An environment that is held for a move."""

    trajectory: TrajectoryKey
    #: Number of the move.
    number: int
    project: str


class HeldEnvironments:
    """The files in one folder; methods that change them block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[TrajectoryKey, HeldEnvironment] = {}

    def open(self) -> list[HeldEnvironment]:
        """Return what a predecessor held."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                held = msgspec.json.decode(path.read_bytes(), type=HeldEnvironment)
            except msgspec.DecodeError as error:  # a torn file: its order was not carried out
                log.warning("%s names no held environment: %s", path, error)
                path.unlink()
                continue
            self._held[held.trajectory] = held
        return list(self._held.values())

    def of(self, trajectory: TrajectoryKey) -> HeldEnvironment | None:
        """Return an environment that is held; None for any other."""
        return self._held.get(trajectory)

    def add(self, held: HeldEnvironment) -> None:
        """Hold an environment; that is on disk afterwards."""
        with open(self._path(held.trajectory), "wb") as file:
            file.write(msgspec.json.encode(held))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._folder)
        self._held[held.trajectory] = held

    def remove(self, trajectory: TrajectoryKey) -> None:
        """Hold an environment no more. Idempotent."""
        if self._held.pop(trajectory, None) is not None:
            self._path(trajectory).unlink(missing_ok=True)

    def _path(self, trajectory: TrajectoryKey) -> Path:
        name = hashlib.blake2b(trajectory.encode(errors="surrogatepass"), digest_size=16)
        return self._folder / f"{name.hexdigest()}{_SUFFIX}"
