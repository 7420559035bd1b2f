"""Confirmation of writes by replicas of Redis: how many, and within which time. The waiting: `scheduler.runtime.redis.confirmation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Nodes also wait between two signs of life, which expire after 5 s.
MOST_MILLISECONDS: Final = 2000


@dataclass(frozen=True)
class Confirmation:
    """How many replicas confirm a write before it counts, and how long they may take."""

    #: 0: a write counts once the master has it on disk.
    replicas: int = 0
    milliseconds: int = 1000

    @property
    def command(self) -> tuple[str, int, int]:
        """Return the command that waits for it."""
        return "WAIT", self.replicas, self.milliseconds


#: A write counts once the master has it on disk.
NONE_NEEDED: Final = Confirmation()
