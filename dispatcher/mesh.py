"""Mesh: ranks in a grid whose axes are kinds of parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from dispatcher.errors import LayoutError
from dispatcher.placements import integer, integers

AXES: Final = ("dp", "pp", "cp", "tp")
#: A description from outside cannot ask for more.
MOST_RANKS: Final = 65_536


class Mesh:
    """Ranks in a grid of data (dp), pipeline (pp), context (cp) and tensor (tp) parallelism.

    ``ranks`` are distinct numbers, tp fastest: rank ``ranks[((d * pp + p) * cp + c) * tp + t]`` has the coordinates (d, p, c, t). By default 0, 1, ….
    """

    def __init__(
        self,
        dp: int = 1,
        pp: int = 1,
        cp: int = 1,
        tp: int = 1,
        ranks: Sequence[int] | None = None,
    ) -> None:
        given = dict(zip(AXES, (dp, pp, cp, tp), strict=True))
        sizes = tuple(integer(each, f"mesh.{axis}", 1) for axis, each in given.items())
        size = math.prod(sizes)
        if size > MOST_RANKS:
            raise LayoutError("mesh", f"has {size} ranks; at most {MOST_RANKS} are possible")
        self.sizes = sizes
        self.size = size
        self.ranks: tuple[int, ...] = tuple(
            range(size) if ranks is None else integers(ranks, "mesh.ranks", 0).tolist()
        )
        if len(self.ranks) != size:
            raise LayoutError(
                "mesh.ranks", f"has {len(self.ranks)} ranks; the axes {self.axes} need {size}"
            )
        self._position = {rank: position for position, rank in enumerate(self.ranks)}
        if len(self._position) != size:
            twice = next(rank for rank in self.ranks if self.ranks.count(rank) > 1)
            raise LayoutError("mesh.ranks", f"has {twice} twice; each rank has one place")

    @property
    def axes(self) -> dict[str, int]:
        """Axis → size."""
        return dict(zip(AXES, self.sizes, strict=True))

    def __contains__(self, rank: object) -> bool:
        return rank in self._position

    def position(self, rank: int) -> int:
        """Return the index of a rank in ``ranks``; LayoutError for a rank of elsewhere."""
        try:
            return self._position[rank]
        except KeyError:
            raise LayoutError("rank", f"{rank} is not in this mesh of {self.size}") from None

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return axis → coordinate of a rank."""
        found = np.unravel_index(self.position(rank), self.sizes)
        return {axis: int(each) for axis, each in zip(AXES, found, strict=True)}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.axes.items() if size > 1)
        return f"Mesh({sizes or 'one rank'})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and (self.sizes, self.ranks) == (other.sizes, other.ranks)

    def __hash__(self) -> int:
        return hash((self.sizes, self.ranks))
