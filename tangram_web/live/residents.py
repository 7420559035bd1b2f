"""Which services lie on which chunks, and what came and went: the GPU map's other half.

A grant says who leaves a chunk and who is brought there; a node's report says what really happened
(`domain.events.ChunkNews`), and is believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from domain.allocation import Allocation, Home
from domain.decisions import Evict
from domain.events import ActionFinished
from domain.inventory import NodeInventory
from tangram_web.live.capacity import as_ranges

#: Comings and goings that are kept.
KEPT: Final = 50


@dataclass
class _Resident:
    since: float
    used_at: float
    uses: int = 0


class Residents:
    """Services in the memory of GPUs, by node and chunk."""

    def __init__(self) -> None:
        self.revision = 0
        self._nodes: dict[str, dict[Home, _Resident]] = {}
        self._log: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def join(self, inventory: NodeInventory, at: float) -> None:
        """Believe what a node says is in its memory when it joins."""
        gpu = inventory.resources.get("gpu")
        found = gpu.residents if gpu is not None else ()
        if found or inventory.name in self._nodes:
            self.revision += 1
            self._nodes[inventory.name] = {Home(*home): _Resident(at, at) for home in found}

    def grant(self, node: str | None, allocations: Iterable[Allocation], at: float) -> None:
        """Enter what a grant does to the memory of a chunk."""
        for allocation in allocations:
            hosting = allocation.hosting
            if node is None or hosting is None:
                continue
            self.revision += 1
            for home in hosting.evicted:
                self._leave(node, Home(*home), "evicted", at)
            if hosting.service:
                home = Home(hosting.service, allocation.units)
                there = self._nodes.setdefault(node, {})
                if home not in there:
                    there[home] = _Resident(at, at)
                    self._note("restored", node, home, at)
                there[home].used_at = at
                there[home].uses += 1

    def evict(self, decision: Evict, at: float) -> None:
        """Somebody made a service leave."""
        self.revision += 1
        self._leave(decision.node, Home(*decision.home), "evicted", at)

    def report(self, event: ActionFinished, at: float) -> None:
        """Enter what a node says against the books, and how long a restore took."""
        if event.chunk is None:
            return
        self.revision += 1
        for home in event.chunk.gone:
            self._leave(event.node, Home(*home), "gone", at)
        if event.chunk.restore_seconds:
            for row in reversed(self._log):
                if row["node"] == event.node and row["what"] == "restored" and not row["seconds"]:
                    row["seconds"] = event.chunk.restore_seconds
                    break

    def rows(self, wall_offset: float) -> dict[str, Any]:
        """Return who lies where, by node and chunk, and the newest comings and goings first."""
        return {
            "residents": [
                {
                    "node": node,
                    "service": home.service,
                    "units": as_ranges(home.units),
                    "since": resident.since + wall_offset,
                    "used": resident.used_at + wall_offset,
                    "uses": resident.uses,
                }
                for node, there in sorted(self._nodes.items())
                for home, resident in sorted(there.items(), key=lambda item: item[0].units)
            ],
            "log": [row | {"at": row["at"] + wall_offset} for row in reversed(self._log)],
        }

    def _leave(self, node: str, home: Home, what: str, at: float) -> None:
        if self._nodes.get(node, {}).pop(home, None) is not None:
            self._note(what, node, home, at)

    def _note(self, what: str, node: str, home: Home, at: float) -> None:
        self._log.append(
            {
                "at": at,
                "what": what,
                "node": node,
                "service": home.service,
                "units": as_ranges(home.units),
                "seconds": 0.0,
            }
        )
