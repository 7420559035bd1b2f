"""Which services could not be brought to which chunks, and go elsewhere as long as they can (rule 9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from domain.allocation import Home
from domain.chunks import SIZES
from managers.gpu.layout import Layout


class Shunned:
    """Homes that failed and were not cured."""

    def __init__(self, homes: Iterable[Home] = ()) -> None:
        self._homes = set(homes)

    def __bool__(self) -> bool:
        return bool(self._homes)

    def all(self) -> list[Home]:
        """Return them in a fixed order."""
        return sorted(self._homes)

    def add(self, home: Home) -> None:
        """Note a failure."""
        self._homes.add(home)

    def cure(self, service: str, units: Sequence[int] = ()) -> None:
        """``service`` may go to ``units`` like anywhere else; without any, to all of them."""
        cured = {each for each in self._homes if each.service == service}
        self._homes -= {each for each in cured if not units or each.units == tuple(units)}

    def concerns(self, service: str) -> bool:
        """Say whether ``service`` is shunned anywhere."""
        return any(home.service == service for home in self._homes)

    def places(self, service: str, level: int, layout: Layout) -> list[int]:
        """Return the places of ``level`` on which ``service`` is shunned, as flat indices."""
        chunks = [layout.chunk(each.units) for each in self._homes if each.service == service]
        return [slots[0] >> level for slots in chunks if len(slots) == SIZES[level]]
