"""Records of forked environments: the image of the engine that the container of a trajectory begins from."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from domain.ids import TrajectoryKey
from managers.common.start_log import sync_directory


class ForkRecords:
    """Which image the environment of a trajectory begins from, where it was forked."""

    def __init__(self, directory: Path, name_of: Callable[[TrajectoryKey], str]) -> None:
        """``name_of``: the name of a trajectory's workspace."""
        self._at, self._name_of = directory, name_of

    def begin(self, trajectory: TrajectoryKey, image: str, *, durable: bool = False) -> None:
        """Record the image of a fork; a ``durable`` record is on disk afterwards. Raises OSError."""
        self._at.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = self._at / self._name_of(trajectory)
        draft = place.with_name(f".{place.name}")
        with open(draft, "w") as file:
            file.write(image)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        draft.replace(place)
        if durable:
            sync_directory(self._at)

    def is_fork(self, trajectory: TrajectoryKey) -> bool:
        """Say whether it was forked completely."""
        return (self._at / self._name_of(trajectory)).exists()

    def image_of(self, trajectory: TrajectoryKey) -> str:
        """Return the image of a fork; empty: the declared one."""
        try:
            return (self._at / self._name_of(trajectory)).read_text().strip()
        except FileNotFoundError:
            return ""

    def images(self) -> set[str]:
        """Return the images that forks begin from."""
        found: set[str] = set()
        with suppress(FileNotFoundError):
            for each in list(self._at.iterdir()):
                with suppress(
                    FileNotFoundError
                ):  # a draft that has its name now is listed under it
                    found.add(each.read_text().strip())
        return found

    def forget(self, trajectory: TrajectoryKey) -> bool:
        """Delete the record of a trajectory; return whether it had one."""
        place = self._at / self._name_of(trajectory)
        known = place.exists()
        place.unlink(missing_ok=True)
        return known
