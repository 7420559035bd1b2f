"""Choice of a free chunk for a service: rules 3 and 9 of `managers.gpu`, over all places at once.

A place is the flat index of an aligned run of 2^level slots (`layout`). Choosing changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from domain.chunks import TOP, Counts, source_of
from managers.gpu.ledger.buddies import Buddies, Places
from managers.gpu.ledger.failed_placements import FailedPlacements
from managers.gpu.ledger.layout import ChunkLayout
from managers.gpu.ledger.residents import ResidentTable


class ChunkChoice(NamedTuple):
    """The state that a choice reads."""

    layout: ChunkLayout
    buddies: Buddies
    residents: ResidentTable
    failed: FailedPlacements

    def is_free(self, place: int, level: int) -> bool:
        """Say whether all GPUs of a place are healthy and without a holder."""
        return all(map(self.buddies.free, range(place << level, (place + 1) << level)))

    def places_caching(self, service: str, level: int) -> list[int]:
        """Return the free places of ``level`` that cache ``service``."""
        places = self.residents.places(service, level) if service else ()
        return [place for place in places if self.is_free(place, level)]

    def is_arriving(self, service: str, place: int, level: int) -> bool:
        """Say whether ``service`` is still being restored at a place."""
        resident = self.residents.find(service, self.layout.units(place, level))
        return resident is not None and resident.arriving

    def first_present(self, places: Sequence[int], service: str, level: int) -> int:
        """Return the lowest of ``places``, which cache ``service``; one where it is present first."""
        return min(places, key=lambda place: (self.is_arriving(service, place, level), place))

    def best(
        self,
        level: int,
        service: str,
        memory_bytes: int,
        wanted: frozenset[str],
        *,
        anywhere: bool,
    ) -> int | None:
        """Return the best place (rule 3); None when no chunk of ``level`` is free.

        ``memory_bytes``: of each GPU. ``wanted``: services to evict last. ``anywhere``: see
        `_candidates`.
        """
        source = source_of(self.buddies.counts, level)
        if source is None:
            return None
        candidates = self._candidates(service, level, source, anywhere=anywhere)
        places = self.residents.places(service, level) if service else ()
        cached = [place for place in places if candidates.flat[place]]
        if cached:
            return self.first_present(cached, service, level)
        costs = self.residents.eviction_costs(level, memory_bytes)
        if service and wanted:
            costs = costs + self.residents.penalties(wanted - {service}, level) * (costs > 0)
        return int(np.where(candidates, costs, np.inf).argmin())

    def with_room(
        self, level: int | None, memory_bytes: int, without: Sequence[int] = ()
    ) -> Places | None:
        """Return the places of ``level`` in the smallest free blocks that need no eviction.

        ``without``: places to leave out. None: no chunk of ``level`` is free.
        """
        source = None if level is None else source_of(self.buddies.counts, level)
        if level is None or source is None:
            return None
        room: Places = self.residents.eviction_costs(level, memory_bytes) == 0.0
        room.flat[list(without)] = False
        return self.buddies.places(level, source) & room

    def has_unfailed(self, service: str, level: int, capacity: Counts, *, now: bool) -> bool:
        """Say whether ``service`` has not failed on some chunk of ``level``.

        ``now``: among free chunks; else among all of ``capacity``.
        """
        counts = self.buddies.counts if now else capacity
        failed = self.failed.places(service, level, self.layout)
        failed = [place for place in failed if not now or self.is_free(place, level)]
        return sum(counts[size] << size - level for size in range(level, TOP + 1)) > len(failed)

    def _candidates(self, service: str, level: int, source: int, *, anywhere: bool) -> Places:
        """Return the places in blocks of ``source`` where ``service`` has not failed and need not wait.

        It waits behind a restore of another service (rule 8). ``anywhere``: search larger blocks when
        there is no such place. Without any, places behind a restore; without these, all of ``source``.
        """
        failed = self.failed.places(service, level, self.layout) if self.failed else []
        arriving = self.residents.places_of_arrivals(service, level)
        for avoided in ([*failed, *arriving], failed) if arriving else (failed,):
            for block in range(source, TOP + 1 if anywhere and avoided else source + 1):
                places = self.buddies.places(level, block)
                places.flat[avoided] = False
                if places.any():
                    return places
        return self.buddies.places(level, source)
