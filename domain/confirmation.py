"""Confirmation of writes by replicas of Redis: how many, within which time, and what is said without them.

The waiting: `scheduler.runtime.redis.confirmation`, and `tangram_web.lib.bus` for pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Nodes also wait between two signs of life, which expire after 5 s.
MOST_MILLISECONDS: Final = 2000
#: Code of the error of a server with fewer replicas than its min-replicas-to-write. Inside a script, Redis 6.2 puts other words before it.
_NO_REPLICAS: Final = "NOREPLICAS"
_REFUSES: Final = (
    "Redis refuses writes while fewer replicas follow it than its min-replicas-to-write"
)
WHAT_TO_DO: Final = "start its replicas, and let them reach it"


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

    def lacking(self, confirmed: int) -> str:
        """Return that so many have confirmed; empty: that is enough."""
        if confirmed >= self.replicas:
            return ""
        return (
            f"{confirmed} of {self.replicas} replicas of Redis have confirmed a write within"
            f" {self.milliseconds} ms (TANGRAM_REDIS_WAIT_REPLICAS): {WHAT_TO_DO}"
        )


#: A write counts once the master has it on disk.
NONE_NEEDED: Final = Confirmation()


def refusal_of(error: Exception) -> str:
    """Return that Redis refuses writes for lack of replicas, and what to do; empty: the error says something else."""
    return f"{_REFUSES}: {WHAT_TO_DO}" if _NO_REPLICAS in str(error) else ""


def why_not_done(error: Exception) -> str:
    """Return why Redis did not do what was asked: it refuses writes, or does not answer."""
    return refusal_of(error) or f"redis does not answer: {error}"
