"""Which free chunk a service gets: rules 3 and 9 of `managers.gpu`, over all places at once.

A place is the flat index of an aligned run of 2^level slots (`layout`). Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from domain.chunks import TOP, Counts, source_of
from managers.gpu.buddies import Buddies, Places
from managers.gpu.failed_placements import Shunned
from managers.gpu.layout import Layout
from managers.gpu.residents import Residents


class Board(NamedTuple):
    """What a choice looks at."""

    layout: Layout
    buddies: Buddies
    residents: Residents
    shunned: Shunned

    def is_free(self, place: int, level: int) -> bool:
        """Say whether nobody holds any GPU of a place, and all are healthy."""
        return all(map(self.buddies.free, range(place << level, (place + 1) << level)))

    def homes(self, service: str, level: int) -> list[int]:
        """Return the free places of ``level`` that cache ``service``."""
        homes = self.residents.homes(service, level) if service else ()
        return [place for place in homes if self.is_free(place, level)]

    def comes(self, service: str, place: int, level: int) -> bool:
        """Say whether ``service`` is still on its way to a place."""
        resident = self.residents.find(service, self.layout.units(place, level))
        return resident is not None and resident.coming

    def soonest(self, places: Sequence[int], service: str, level: int) -> int:
        """Return the first of ``places``, which cache ``service``, to which it is not still on its way."""
        return min(places, key=lambda place: (self.comes(service, place, level), place))

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

        ``memory_bytes``: of each GPU. ``wanted``: who is evicted last. For ``anywhere`` see
        `_welcoming`.
        """
        source = source_of(self.buddies.counts, level)
        if source is None:
            return None
        places = self._welcoming(service, level, source, anywhere=anywhere)
        homes = self.residents.homes(service, level) if service else ()
        cached = [place for place in homes if places.flat[place]]
        if cached:
            return self.soonest(cached, service, level)
        costs = self.residents.costs(level, memory_bytes)
        if service and wanted:
            costs = costs + self.residents.dear(wanted - {service}, level) * (costs > 0)
        return int(np.where(places, costs, np.inf).argmin())

    def with_room(
        self, level: int | None, memory_bytes: int, without: Sequence[int] = ()
    ) -> Places | None:
        """Return the places of ``level`` in the smallest free blocks where nobody has to leave.

        ``without``: places that do not count. None: no chunk of ``level`` is free.
        """
        source = None if level is None else source_of(self.buddies.counts, level)
        if level is None or source is None:
            return None
        room: Places = self.residents.costs(level, memory_bytes) == 0.0
        room.flat[list(without)] = False
        return self.buddies.places(level, source) & room

    def welcomes(self, service: str, level: int, most: Counts, *, now: bool) -> bool:
        """Say whether ``service`` is not shunned on some chunk of ``level``, free ``now`` or of ``most``."""
        counts = self.buddies.counts if now else most
        failed = self.shunned.places(service, level, self.layout)
        failed = [place for place in failed if not now or self.is_free(place, level)]
        return sum(counts[size] << size - level for size in range(level, TOP + 1)) > len(failed)

    def _welcoming(self, service: str, level: int, source: int, *, anywhere: bool) -> Places:
        """Return the places in blocks of ``source`` where ``service`` neither failed nor has to wait.

        It is shunned where it failed (rule 9), and waits where another one is on its way (rule 8).
        ``anywhere``: in larger blocks where there are none. Where it waits when there is no such
        place, and all of them when it failed there too.
        """
        failed = self.shunned.places(service, level, self.layout) if self.shunned else []
        waits = self.residents.awaited(service, level)
        for avoided in ([*failed, *waits], failed) if waits else (failed,):
            for block in range(source, TOP + 1 if anywhere and avoided else source + 1):
                places = self.buddies.places(level, block)
                places.flat[avoided] = False
                if places.any():
                    return places
        return self.buddies.places(level, source)
