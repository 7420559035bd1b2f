"""Holders of cores and GPUs by node, for the labels of the maps.

An action that holds numbered units is a holder from its grant to its end, so there are never more
holders than units, except for light actions, which share cores: a node lists at most `MAX_LISTED`
holders and the number of the others. Rows are rebuilt at most once a second.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any, Final

from domain.ids import ActionId
from domain.resources import units
from tangram_web.live.capacity import as_ranges
from tangram_web.live.open_actions import OpenAction, OpenActions

#: Holders of one node in a frame.
MAX_LISTED: Final = 256
#: Between two rebuilds of the rows.
REBUILD_SECONDS: Final = 1.0


class Holders:
    """Actions that hold numbered units, by node, in the order of their grants."""

    def __init__(self) -> None:
        self.revision = 0
        self._nodes: dict[str, OrderedDict[ActionId, tuple[OpenAction, float]]] = {}
        self._changed = False
        self._built_at = float("-inf")
        self._rows: list[dict[str, Any]] = []

    def add(self, action: OpenAction, at: float) -> None:
        """Add an action that holds numbered units since ``at``."""
        if action.node is not None and any(held.units for held in action.allocations):
            self._nodes.setdefault(action.node, OrderedDict())[action.id] = (action, at)
            self._changed = True

    def remove(self, action: OpenAction) -> None:
        """Remove an action; one that holds nothing is not an error."""
        held = self._nodes.get(action.node or "")
        if held is not None and held.pop(action.id, None) is not None:
            self._changed = True

    def for_actions(self, actions: OpenActions) -> Holders:
        """Return the holders that are among ``actions``."""
        own = Holders()
        for name, held in self._nodes.items():
            among = OrderedDict(
                (id_, (actions.by_id[id_], since))
                for id_, (_, since) in held.items()
                if id_ in actions.by_id
            )
            if among:
                own._nodes[name], own._changed = among, True
        return own

    def held_by_others(self, project: str, kind: str) -> dict[str, str]:
        """Return the units of ``kind`` that other projects hold, by node, as ranges."""
        units = {
            name: {
                unit
                for action, _ in held.values()
                if action.project != project
                for allocation in action.allocations
                if allocation.resource.startswith(f"{kind}:")
                for unit in allocation.units
            }
            for name, held in self._nodes.items()
        }
        return {name: as_ranges(tuple(sorted(found))) for name, found in units.items() if found}

    def rows(self, at: float, wall_offset: float) -> list[dict[str, Any]]:
        """Return one row per node with holders."""
        if self._changed and at - self._built_at >= REBUILD_SECONDS:
            self._built_at, self._changed = at, False
            self._rows = self.current_rows(wall_offset)
            self.revision += 1
        return self._rows

    def current_rows(self, wall_offset: float) -> list[dict[str, Any]]:
        """Return the same rows, always rebuilt."""
        return [self._row(name, held, wall_offset) for name, held in sorted(self._nodes.items())]

    @staticmethod
    def _row(
        name: str, held: OrderedDict[ActionId, tuple[OpenAction, float]], wall_offset: float
    ) -> dict[str, Any]:
        return {
            "name": name,
            "holders": [
                holder
                for action, since in islice(held.values(), MAX_LISTED)
                for holder in _holdings(action, since + wall_offset)
            ],
            "more": max(0, len(held) - MAX_LISTED),
        }


def _holdings(action: OpenAction, since: float) -> list[dict[str, Any]]:
    return [
        {
            "id": action.id,
            "project": action.project,
            "task": action.task,
            "trajectory": action.trajectory,
            "kind": held.resource.partition(":")[0],
            "units": as_ranges(held.units),
            "amount": units(held.amount),
            "shared": held.shared,
            "since": since,
        }
        for held in action.allocations
        if held.units
    ]
