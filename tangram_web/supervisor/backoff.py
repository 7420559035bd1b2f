"""How long to wait before a dead child is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Backoff:
    """Waits that double while a child keeps dying young, and start over once it lived."""

    first_seconds: float = 0.5
    most_seconds: float = 30.0
    #: A child that lived this long was well; its death is a new story.
    healthy_seconds: float = 60.0
    #: Deaths in a row, each of a child that did not live long.
    deaths: int = 0

    def after(self, lived_seconds: float) -> float:
        """Return the wait after a child that lived so long."""
        self.deaths = 1 if lived_seconds >= self.healthy_seconds else self.deaths + 1
        # The exponent is held down: 2.0 ** 1100 is an error, and nobody waits that long anyway.
        return min(self.first_seconds * 2.0 ** min(self.deaths - 1, 32), self.most_seconds)
