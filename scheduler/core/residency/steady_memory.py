"""What is remembered about steady counts: recent calls, and the shadow pools that replay them.

All of it follows from the journal, and is part of the snapshot.
"""

from __future__ import annotations

import msgspec

from domain.elasticity import Elasticity
from domain.resources import UnitSet


class RecentCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that was submitted."""

    at: float
    service: str
    #: Seconds on one GPU.
    base_seconds: float
    counts: UnitSet
    elasticity: Elasticity

    def count(self, steady: int) -> int:
        """Return the milli-units that the call gets under a ``steady`` count."""
        return max((each for each in self.counts if each <= steady), default=self.counts[0])

    def seconds(self, steady: int) -> float:
        """Return the seconds that the call takes under a ``steady`` count."""
        return self.elasticity.duration_seconds(self.base_seconds, self.count(steady))


class ReplayedCall(msgspec.Struct, frozen=True, array_like=True):
    """A call on a chunk of one size."""

    at_seconds: float
    service: str
    seconds: float


class WaitingCall(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A call in the queue of its service: smaller is served first."""

    turn: float
    number: int
    call: ReplayedCall


class ReplayedChunk(msgspec.Struct):
    """A chunk: the services in its memory by last use, and the calls at work."""

    free_bytes: int
    used: dict[str, int] = {}
    service: str = ""
    calls: int = 0


class ReplayedPool(msgspec.Struct):
    """A pool of chunks of one size that serves the calls of a pool as the scheduler would (`service_replay`)."""

    memory_bytes: int
    chunks: list[ReplayedChunk]
    free: set[int]
    #: Service → its waiting calls, the first one first.
    waiting: dict[str, list[WaitingCall]] = {}
    #: A heap: when the calls at work end, and on which chunk.
    ends: list[tuple[float, int]] = []
    uses: int = 0
    #: Mean seconds of a call, as far as the scheduler would know it.
    mean_seconds: float = 0.0
    #: Time up to which all has happened, and calls that arrived then and are not considered yet.
    now: float = 0.0
    arrived: bool = False
    #: Sum over time of the number of calls that wait or are at work, in call·seconds.
    area: float = 0.0


class ShadowPool(msgspec.Struct):
    """A pool that serves the same calls at ``count`` milli-units each, beside the real one (`shadow_pools`)."""

    count: int
    pool: ReplayedPool
    #: What the count would have saved since it became the better one, in call·seconds.
    regret: float = 0.0
    #: Call·seconds of late.
    spent: float = 0.0


class SteadyCount(msgspec.Struct):
    """The steady count of one pool, in milli-units, and the calls that it was chosen by."""

    count: int
    calls: int = 0
    #: Those that no shadow pool has yet; of earlier configurations the latest ones.
    recent: list[RecentCall] = []
    #: One for each count, by rising count.
    shadows: list[ShadowPool] = []
    #: The seconds in which shadows spent what they did of late, and up to when that is.
    seconds: float = 0.0
    compared_at: float = 0.0
    #: Mean seconds on one GPU of the latest calls.
    mean_seconds: float = 0.0
    #: Mean seconds of a chunk's time that a call takes beside its restore and its execution.
    hop_seconds: float = 0.0
