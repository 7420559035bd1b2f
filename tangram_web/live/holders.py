"""Holders of cores and GPUs by node, for the labels of the maps.

An action that holds numbered units is a holder from its grant to its end, so there are never more
holders than units, except for light actions, which share cores. A frame lists all holders of GPUs and
those of cores that have held most, units times seconds, at most `MAX_LISTED` of a node and `MAX_CORES`
of all: thousands change faster than a person reads. The others are counted. Rows are rebuilt at
most once a second.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice
from typing import Any, Final, NamedTuple

from domain.ids import ActionId
from domain.resources import units
from tangram_web.live.capacity import as_ranges
from tangram_web.live.open_actions import OpenAction, OpenActions

#: Holders of one node in a frame.
MAX_LISTED: Final = 256
#: Holders of cores of all nodes in a frame.
MAX_CORES: Final = 400
#: Between two rebuilds of the rows.
REBUILD_SECONDS: Final = 1.0


class _UnitHolder(NamedTuple):
    """An action, and since when it holds."""

    action: OpenAction
    since: float

    def unit_seconds(self, at: float) -> float:
        """Return what it has held until ``at``."""
        amount = sum(held.amount for held in self.action.allocations if held.units)
        return amount * (at - self.since)

    @property
    def holds_gpus(self) -> bool:
        """Whether GPUs are among its units."""
        return any(held.units and not _is_core(held.resource) for held in self.action.allocations)


def _is_core(resource: str) -> bool:
    return resource.startswith("cpu:")


class Holders:
    """Actions that hold numbered units, by node, in the order of their grants."""

    def __init__(self) -> None:
        self.revision = 0
        self._nodes: dict[str, OrderedDict[ActionId, _UnitHolder]] = {}
        self._changed = False
        self._built_at = float("-inf")
        self._rows: list[dict[str, Any]] = []

    def add(self, action: OpenAction, at: float) -> None:
        """Add an action that holds numbered units since ``at``."""
        if action.node is not None and any(held.units for held in action.allocations):
            self._nodes.setdefault(action.node, OrderedDict())[action.id] = _UnitHolder(action, at)
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
                (id_, _UnitHolder(actions.by_id[id_], since))
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
            self._rows = self.current_rows(at, wall_offset)
            self.revision += 1
        return self._rows

    def current_rows(self, at: float, wall_offset: float) -> list[dict[str, Any]]:
        """Return the same rows, always rebuilt."""
        listed = self._listed(at)
        return [
            self._row(name, held, listed, wall_offset) for name, held in sorted(self._nodes.items())
        ]

    def _listed(self, at: float) -> set[ActionId]:
        """Return the actions that a frame lists."""
        gpus: list[_UnitHolder] = []
        cores: list[_UnitHolder] = []
        for each in self._each():
            (gpus if each.holds_gpus else cores).append(each)
        if len(cores) > MAX_CORES:
            cores = nlargest(MAX_CORES, cores, key=lambda each: each.unit_seconds(at))
        return {each.action.id for each in (*gpus, *cores)}

    def _each(self) -> Iterator[_UnitHolder]:
        for held in self._nodes.values():
            yield from held.values()

    @staticmethod
    def _row(
        name: str,
        held: OrderedDict[ActionId, _UnitHolder],
        listed: set[ActionId],
        wall_offset: float,
    ) -> dict[str, Any]:
        shown = [each for id_, each in held.items() if id_ in listed]
        return {
            "name": name,
            "holders": [
                holder
                for action, since in islice(shown, MAX_LISTED)
                for holder in _holdings(action, since + wall_offset)
            ],
            "more": len(held) - min(len(shown), MAX_LISTED),
            "held": _exclusive(held),
        }


def _exclusive(held: OrderedDict[ActionId, _UnitHolder]) -> dict[str, float]:
    """Return kind → units that single actions have for themselves, listed or not."""
    found: Counter[str] = Counter()
    for action, _ in held.values():
        for allocation in action.allocations:
            if allocation.units and not allocation.shared:
                found[allocation.resource.partition(":")[0]] += allocation.amount
    return {kind: units(amount) for kind, amount in found.items()}


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
