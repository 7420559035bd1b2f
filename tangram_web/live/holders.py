"""Who holds which cores and GPUs, by node: what the maps name under the pointer.

An action that holds units with numbers is here from its grant to its end, so there are never more
rows than units, but for light actions, which share cores: a node shows at most `MOST` rows and says
how many more there are. Rows are made at most once a second, however often frames are.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any, Final

from domain.ids import ActionId
from domain.resources import units
from tangram_web.live.capacity import as_ranges
from tangram_web.live.population import Live, Population

#: Rows of one node in a frame.
MOST: Final = 256
#: Between two makings of the rows.
PAUSE_SECONDS: Final = 1.0


class Holders:
    """Actions that hold numbered units, by node, in the order of their grants."""

    def __init__(self) -> None:
        self.revision = 0
        self._nodes: dict[str, OrderedDict[ActionId, tuple[Live, float]]] = {}
        self._changed = False
        self._made_at = float("-inf")
        self._rows: list[dict[str, Any]] = []

    def take(self, live: Live, at: float) -> None:
        """Enter an action that was granted units with numbers, or other ones than before."""
        if live.node is not None and any(held.units for held in live.allocations):
            self._nodes.setdefault(live.node, OrderedDict())[live.id] = (live, at)
            self._changed = True

    def drop(self, live: Live) -> None:
        """Strike an action out; one that holds nothing is not an error."""
        held = self._nodes.get(live.node or "")
        if held is not None and held.pop(live.id, None) is not None:
            self._changed = True

    def part(self, population: Population) -> Holders:
        """Return what the actions of ``population`` hold, since when they hold it."""
        part = Holders()
        for name, held in self._nodes.items():
            mine = OrderedDict(
                (id_, (population.actions[id_], since))
                for id_, (_, since) in held.items()
                if id_ in population.actions
            )
            if mine:
                part._nodes[name], part._changed = mine, True
        return part

    def of_others(self, project: str, kind: str) -> dict[str, str]:
        """Return what other projects hold of ``kind``, by node, as ranges."""
        units = {
            name: {
                unit
                for live, _ in held.values()
                if live.project != project
                for allocation in live.allocations
                if allocation.resource.startswith(f"{kind}:")
                for unit in allocation.units
            }
            for name, held in self._nodes.items()
        }
        return {name: as_ranges(tuple(sorted(found))) for name, found in units.items() if found}

    def rows(self, at: float, wall_offset: float) -> list[dict[str, Any]]:
        """Return one row per node that somebody holds something of, with its holders."""
        if self._changed and at - self._made_at >= PAUSE_SECONDS:
            self._made_at, self._changed = at, False
            self._rows = self.now(wall_offset)
            self.revision += 1
        return self._rows

    def now(self, wall_offset: float) -> list[dict[str, Any]]:
        """Return the same rows, made anew."""
        return [self._row(name, held, wall_offset) for name, held in sorted(self._nodes.items())]

    @staticmethod
    def _row(
        name: str, held: OrderedDict[ActionId, tuple[Live, float]], wall_offset: float
    ) -> dict[str, Any]:
        return {
            "name": name,
            "holders": [
                holder
                for live, since in islice(held.values(), MOST)
                for holder in _holdings(live, since + wall_offset)
            ],
            "more": max(0, len(held) - MOST),
        }


def _holdings(live: Live, since: float) -> list[dict[str, Any]]:
    return [
        {
            "id": live.id,
            "project": live.project,
            "task": live.task,
            "trajectory": live.trajectory,
            "kind": held.resource.partition(":")[0],
            "units": as_ranges(held.units),
            "amount": units(held.amount),
            "shared": held.shared,
            "since": since,
        }
        for held in live.allocations
        if held.units
    ]
