"""Batches that gather: the first generations of a batch wait until all its members have arrived, so that they are arranged together.

Rules
1. A batch gathers from its first member's request, for `GATHER_SECONDS` at most, or until the announced size has arrived.
   One of unknown size gathers all that time.
2. A member that arrives later waits for none: its policy chooses for it alone.
3. A batch is known until its last member has left; an announced one without members as long as a silent trajectory. Its
   name may return afterwards: then it is another batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from placement.facts import ArrangedGroup

GATHER_SECONDS: Final = 0.5


class GatheringBatch(msgspec.Struct, omit_defaults=True):
    """One batch."""

    name: str
    #: Announced members; 0: unknown.
    size: int = 0
    #: When it was announced, or its first member arrived.
    known_since: float = 0.0
    #: Until when members wait; None: none has waited.
    until: float | None = None
    #: Whether members wait for no others any more.
    closed: bool = False
    #: Members that wait, by arrival.
    gathered: list[str] = msgspec.field(default_factory=list)
    #: Members that arrived so far, and those of them that have not left.
    arrived: int = 0
    members: int = 0
    #: As arranged; none: it was not.
    groups: tuple[ArrangedGroup, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all announced members have arrived."""
        return 0 < self.size <= self.arrived


class Gathering:
    """The batches of a fleet."""

    def __init__(self) -> None:
        self._batches: dict[str, GatheringBatch] = {}
        #: Those with members that wait.
        self._open: dict[str, GatheringBatch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def get(self, name: str) -> GatheringBatch | None:
        """Return a batch that is known."""
        return self._batches.get(name)

    def expect(self, name: str, size: int, at: float) -> GatheringBatch:
        """Announce a batch of ``size`` members; of several sizes the largest counts."""
        batch = self._batches.get(name)
        if batch is None:
            batch = self._batches[name] = GatheringBatch(name, known_since=at)
        batch.size = max(batch.size, size)
        return batch

    def join(self, name: str, key: str, size: int, at: float, *, gather: bool) -> GatheringBatch:
        """Add a member. With ``gather`` it waits, unless the batch is closed; then the batch is open."""
        batch = self.expect(name, size, at)
        batch.arrived += 1
        batch.members += 1
        batch.closed = batch.closed or not gather
        if not batch.closed:
            batch.until = at + GATHER_SECONDS if batch.until is None else batch.until
            batch.gathered.append(key)
            self._open[name] = batch
        return batch

    def leave(self, name: str, key: str) -> None:
        """Remove a member that is finished."""
        batch = self._batches.get(name)
        if batch is None:
            return
        batch.members -= 1
        if key in batch.gathered:
            batch.gathered.remove(key)
        if batch.members <= 0:
            del self._batches[name]
            self._open.pop(name, None)

    def close(self, batch: GatheringBatch) -> list[str]:
        """End the gathering of a batch; return the members that waited."""
        gathered, batch.gathered, batch.closed = batch.gathered, [], True
        self._open.pop(batch.name, None)
        return gathered

    def due(self) -> float | None:
        """Return when the next batch stops to gather."""
        return min((each.until or 0.0 for each in self._open.values()), default=None)

    def overdue(self, at: float) -> list[GatheringBatch]:
        """Return the batches that gather until ``at`` or less, earliest first."""
        found = [each for each in self._open.values() if (each.until or 0.0) <= at]
        return sorted(found, key=lambda each: (each.until or 0.0, each.name))

    def forget_unused(self, before: float) -> None:
        """Forget announced batches without a member that are older."""
        unused = [
            name
            for name, each in self._batches.items()
            if not each.members and each.known_since < before
        ]
        for name in unused:
            del self._batches[name]

    def remember(self) -> list[GatheringBatch]:
        """Return all batches by name."""
        return [self._batches[name] for name in sorted(self._batches)]

    def recall(self, memory: Iterable[GatheringBatch]) -> None:
        """Replace what is stored by what `remember` returned."""
        self._batches = {each.name: each for each in memory}
        self._open = {each.name: each for each in self._batches.values() if each.gathered}
