"""Failed placements: chunks on which a service failed to start, avoided while another is free (rule 9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from domain.allocation import Home
from domain.chunks import SIZES
from managers.gpu.ledger.layout import ChunkLayout


class FailedPlacements:
    """Pairs of a service and a chunk, from a failure to `clear`."""

    def __init__(self, homes: Iterable[Home] = ()) -> None:
        self._homes = set(homes)

    def __bool__(self) -> bool:
        return bool(self._homes)

    def all(self) -> list[Home]:
        """Return the pairs, sorted."""
        return sorted(self._homes)

    def add(self, home: Home) -> None:
        """Record a failure."""
        self._homes.add(home)

    def clear(self, service: str, units: Sequence[int] = ()) -> None:
        """Drop the failure of ``service`` on ``units``; without units, all of its failures."""
        cleared = {each for each in self._homes if each.service == service}
        self._homes -= {each for each in cleared if not units or each.units == tuple(units)}

    def concerns(self, service: str) -> bool:
        """Say whether ``service`` has failed anywhere."""
        return any(home.service == service for home in self._homes)

    def places(self, service: str, level: int, layout: ChunkLayout) -> list[int]:
        """Return the places of ``level`` on which ``service`` has failed, as flat indices."""
        chunks = [layout.chunk(each.units) for each in self._homes if each.service == service]
        return [slots[0] >> level for slots in chunks if len(slots) == SIZES[level]]
